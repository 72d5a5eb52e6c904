// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// MIG is how a GPU is partitioned.
type MIG struct {
	Mode      MigMode
	Instances []GPUInstance `json:",omitempty"` // by ID
}

// GPUInstance is a part of a GPU's memory and engines.
type GPUInstance struct {
	ID      int               `yaml:"id"`
	Profile int               `yaml:"profile"` // NVML's number of it
	Span    Span              `yaml:"span"`
	Compute []ComputeInstance `json:",omitempty" yaml:"compute"` // by ID
}

// ComputeInstance is a part of a GPU instance's multiprocessors: what a program sees as a device.
type ComputeInstance struct {
	ID        int       `yaml:"id"`
	Profile   int       `yaml:"profile"` // NVML's number of it
	Span      Span      `yaml:"span"`
	UUID      string    `yaml:"uuid"` // "MIG-…", a new one for every instance
	Processes []Process `json:",omitempty"`
}

// Partition is a compute instance with all that it is a part of.
type Partition struct {
	Index          int    // among those of its GPU
	Name           string // "1g.10gb", or "1c.3g.40gb" when it has not all of the GPU instance
	Instance       GPUInstance
	Compute        ComputeInstance
	Profile        GPUInstanceProfile
	ComputeProfile ComputeInstanceProfile
}

// Refusal is an error that NVML has a name for.
type Refusal struct {
	Code   Error
	Reason string
}

// Error is the reason and the name.
func (r *Refusal) Error() string { return fmt.Sprintf("%s (%s)", r.Reason, r.Code) }

func refuse(code Error, format string, args ...any) error {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// CodeOf is the name that NVML has for the error: ERROR_UNKNOWN for one that is no Refusal, "" for none.
func CodeOf(err error) Error {
	var r *Refusal
	switch {
	case err == nil:
		return ""
	case errors.As(err, &r):
		return r.Code
	}
	return "ERROR_UNKNOWN"
}

func sortedKeys[V any](m map[int]V) []int { return slices.Sorted(maps.Keys(m)) }

// startMIG is how the GPU is partitioned when it has just been put in.
func (g GPU) startMIG() MIG {
	mode, _ := g.Calls.GetMigMode.Get()
	return MIG{Mode: mode, Instances: cloneInstances(g.Instances)}
}

// MIG is how the GPU is partitioned now.
func (c Card) MIG() MIG {
	if c.State.MIG != nil {
		return *c.State.MIG
	}
	return c.startMIG()
}

// MigMode is the mode of MIG that the GPU is in now.
func (c Card) MigMode() Answer[MigMode] {
	a := c.Calls.GetMigMode
	a.value = c.MIG().Mode
	return a
}

// Partitioned says whether the GPU is in MIG mode: then programs can use its partitions, and not the GPU.
func (c Card) Partitioned() bool { return c.MIG().Mode.Current != 0 }

// Partitions are the compute instances of the GPU, in the order in which NVML counts them.
func (c Card) Partitions() []Partition {
	var out []Partition
	for _, g := range c.MIG().Instances {
		for _, ci := range g.Compute {
			out = append(out, c.partition(g, ci, len(out)))
		}
	}
	return out
}

func (c Card) partition(g GPUInstance, ci ComputeInstance, index int) Partition {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	compute, _ := c.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	p := Partition{Index: index, Instance: g, Compute: ci, Profile: profiles[g.Profile], ComputeProfile: compute[g.Profile][ci.Profile]}
	p.Name = p.Profile.Name
	if p.ComputeProfile.SliceCount != p.Profile.SliceCount {
		p.Name = fmt.Sprintf("%dc.%s", p.ComputeProfile.SliceCount, p.Name)
	}
	return p
}

// Partition finds a partition of any GPU by its UUID.
func (v *View) Partition(uuid string) (Card, Partition, bool) {
	for _, c := range v.GPUs {
		for _, p := range c.Partitions() {
			if p.Compute.UUID == uuid {
				return c, p, true
			}
		}
	}
	return Card{}, Partition{}, false
}

// Memory is the partition's memory as it is now. Compute instances of one GPU instance share it.
func (p Partition) Memory() Memory {
	m := Memory{Total: p.Profile.MemorySizeMB << 20}
	for _, ci := range p.Instance.Compute {
		m.Used += held(ci.Processes)
	}
	m.Used = min(m.Used, m.Total)
	return m
}

// changeMIG changes how a GPU that can be partitioned is.
func (n *Node) changeMIG(which string, f func(Card, *MIG) error) error {
	return n.change(which, func(c Card, s *GPUState) error {
		if _, e := c.Calls.GetMigMode.Get(); e != "" {
			return refuse(e, "%s has no MIG mode", c.Name)
		}
		m := c.MIG()
		m.Instances = cloneInstances(m.Instances)
		if err := f(c, &m); err != nil {
			return err
		}
		s.setMIG(c.GPU, m)
		return nil
	})
}

// setMIG keeps how the GPU is partitioned, if that is not as it was put in.
func (s *GPUState) setMIG(g GPU, m MIG) {
	s.MIG = &m
	if start := g.startMIG(); m.Mode == start.Mode && (len(m.Instances) == 0 && len(start.Instances) == 0 || reflect.DeepEqual(m, start)) {
		s.MIG = nil
	}
}

func cloneInstances(all []GPUInstance) []GPUInstance {
	out := slices.Clone(all)
	for i := range out {
		out[i].Compute = slices.Clone(out[i].Compute)
		for j := range out[i].Compute {
			out[i].Compute[j].Processes = slices.Clone(out[i].Compute[j].Processes)
		}
	}
	return out
}

// freeSwitchSince is the compute capability from which on the mode changes at once, and is off after a start of the machine. Before,
// it changes with a reset of the GPU, and stays. (NVIDIA's MIG user guide: Hopper and newer.)
const freeSwitchSince = 9

func (c Card) switchesFreely() bool {
	capability, _ := c.Calls.GetCudaComputeCapability.Get()
	return capability.Major >= freeSwitchSince
}

// SetMigMode puts the GPU into MIG mode, or takes it out, as NVML does. activation is why the mode is not what it should be, "" if
// it is. The error is for a GPU without MIG.
func (n *Node) SetMigMode(which string, mode Switch) (activation Error, err error) {
	err = n.changeMIG(which, func(c Card, m *MIG) error {
		activation = ""
		switch to := int(mode); {
		case to == m.Mode.Current:
			m.Mode.Pending = to
		case c.occupied(*m) != nil:
			activation = "ERROR_IN_USE"
		case c.switchesFreely():
			m.Mode = MigMode{Current: to, Pending: to}
		default:
			m.Mode.Pending = to
			activation = "ERROR_RESET_REQUIRED"
		}
		return nil
	})
	return activation, err
}

// occupied says why the mode of the GPU cannot change now, nil if it can.
func (c Card) occupied(m MIG) error {
	if len(c.State.Processes) > 0 {
		return refuse(InUse, "%s is used by process %d %s", c.Name, c.State.Processes[0].PID, c.State.Processes[0].Name)
	}
	if len(m.Instances) > 0 {
		return refuse(InUse, "%s has partitions", c.Name)
	}
	return nil
}

// SwitchMIG puts the GPU into MIG mode, or takes it out, with the reset that it may take. The GPU must be idle.
func (n *Node) SwitchMIG(which string, mode Switch) error {
	return n.changeMIG(which, func(c Card, m *MIG) error {
		if err := c.occupied(*m); err != nil {
			return err
		}
		m.Mode = MigMode{Current: int(mode), Pending: int(mode)}
		return nil
	})
}

// afterStart is how the GPU is partitioned after a start of the machine.
func (c Card) afterStart(m MIG) MIG {
	if c.switchesFreely() {
		return MIG{Mode: c.startMIG().Mode}
	}
	return MIG{Mode: MigMode{Current: m.Mode.Pending, Pending: m.Mode.Pending}}
}

// profileByID finds the profile that NVML's other calls know by that ID.
func profileByID(profiles GPUInstanceProfiles, id int) (number int, p GPUInstanceProfile, ok bool) {
	for _, number := range sortedKeys(profiles) {
		if profiles[number].ID == id {
			return number, profiles[number], true
		}
	}
	return 0, p, false
}

// Placements are where GPU instances of a profile can be on the GPU, whether it is in MIG mode or not. The profile is given by its ID.
func (c Card) Placements(id int) ([]Span, error) {
	profiles, e := c.Calls.GetGpuInstanceProfileInfo.Get()
	if e != "" {
		return nil, refuse(e, "%s cannot be partitioned", c.Name)
	}
	number, _, ok := profileByID(profiles, id)
	if !ok {
		return nil, refuse(invalidArgument, "%s has no profile with the ID %d", c.Name, id)
	}
	placements, e := c.Calls.GetGpuInstancePossiblePlacements.Get()
	if e != "" {
		return nil, refuse(e, "%s does not say where partitions can be", c.Name)
	}
	return placements[number], nil
}

// Instances are the GPU instances of the GPU; it is an error when it is not in MIG mode.
func (c Card) Instances() ([]GPUInstance, error) {
	m := c.MIG()
	if m.Mode.Current == 0 {
		return nil, refuse(NotSupported, "%s is not in MIG mode", c.Name)
	}
	return m.Instances, nil
}

// Instance finds a GPU instance by its ID.
func (c Card) Instance(id int) (GPUInstance, error) {
	all, err := c.Instances()
	if err != nil {
		return GPUInstance{}, err
	}
	for _, g := range all {
		if g.ID == id {
			return g, nil
		}
	}
	return GPUInstance{}, refuse(notFound, "%s has no GPU instance %d", c.Name, id)
}

// RemainingCapacity is how many more GPU instances of the profile fit, which is given by its ID.
func (c Card) RemainingCapacity(id int) (int, error) {
	m := c.MIG()
	m.Instances = slices.Clone(m.Instances)
	for count := 0; ; count++ {
		_, err := c.addInstance(&m, id, nil)
		switch {
		case CodeOf(err) == insufficientResources:
			return count, nil
		case err != nil:
			return 0, err
		}
	}
}

// CreateGPUInstance makes a GPU instance of the profile, which is given by its ID: where at says, or, when it is nil, at the first
// place that is free.
func (n *Node) CreateGPUInstance(which string, id int, at *Span) (GPUInstance, error) {
	var out GPUInstance
	err := n.changeMIG(which, func(c Card, m *MIG) error {
		var err error
		out, err = c.addInstance(m, id, at)
		return err
	})
	return out, err
}

func (c Card) addInstance(m *MIG, id int, at *Span) (GPUInstance, error) {
	if m.Mode.Current == 0 {
		return GPUInstance{}, refuse(NotSupported, "%s is not in MIG mode", c.Name)
	}
	possible, err := c.Placements(id)
	if err != nil {
		return GPUInstance{}, err
	}
	if at != nil {
		if !slices.Contains(possible, *at) {
			return GPUInstance{}, refuse(invalidArgument, "%s: a partition of this profile cannot be at %d, with a size of %d", c.Name, at.Start, at.Size)
		}
		possible = []Span{*at}
	}
	for _, place := range possible {
		if err = c.fits(m.Instances, id, place); err == nil {
			return c.insertInstance(m, id, place), nil
		}
	}
	return GPUInstance{}, err
}

func (c Card) insertInstance(m *MIG, id int, at Span) GPUInstance {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	number, _, _ := profileByID(profiles, id)
	g := GPUInstance{ID: c.instanceID(at), Profile: number, Span: at}
	m.Instances = append(m.Instances, g)
	slices.SortFunc(m.Instances, func(a, b GPUInstance) int { return cmp.Compare(a.ID, b.ID) })
	return g
}

// instanceID is the ID that the driver gives to a GPU instance, as nvidia-smi mig -lgi shows on real GPUs: 0 for the whole, 1 and 2
// for its halves, 3 to 6 for its quarters and so on.
func (c Card) instanceID(at Span) int {
	whole := 0
	placements, _ := c.Calls.GetGpuInstancePossiblePlacements.Get()
	for _, possible := range placements {
		for _, p := range possible {
			whole = max(whole, p.Start+p.Size)
		}
	}
	return whole/at.Size - 1 + at.Start/at.Size
}

// fits says whether a GPU instance of the profile can be there beside the others: its place is free, and so are the engines that it
// takes, of which the GPU has as many as the profile with the most.
func (c Card) fits(others []GPUInstance, id int, at Span) error {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	number, want, _ := profileByID(profiles, id)
	same := 0
	sum := want.engines()
	for _, o := range others {
		if o.Span.overlaps(at) {
			return refuse(insufficientResources, "%s: %s at %d is in the way", c.Name, profiles[o.Profile].Name, o.Span.Start)
		}
		if o.Profile == number {
			same++
		}
		for i, n := range profiles[o.Profile].engines() {
			sum[i] += n
		}
	}
	if same >= want.InstanceCount {
		return refuse(insufficientResources, "%s: it has as many %s as it can have", c.Name, want.Name)
	}
	var has [len(engineNames)]int
	for _, p := range profiles {
		for i, n := range p.engines() {
			has[i] = max(has[i], n)
		}
	}
	for i, n := range sum {
		if n > has[i] {
			return refuse(insufficientResources, "%s: %s takes more %s than are left", c.Name, want.Name, engineNames[i])
		}
	}
	return nil
}

var engineNames = [...]string{"slices", "multiprocessors", "copy engines", "decoders", "encoders", "JPEG engines", "OFA engines"}

func (p GPUInstanceProfile) engines() [len(engineNames)]int {
	return [...]int{p.SliceCount, p.MultiprocessorCount, p.CopyEngineCount, p.DecoderCount, p.EncoderCount, p.JPEGCount, p.OFACount}
}

// changeInstance changes a GPU instance. The error is ERROR_NOT_FOUND when there is none.
func (n *Node) changeInstance(which string, id int, f func(Card, *MIG, int) error) error {
	return n.changeMIG(which, func(c Card, m *MIG) error {
		at := slices.IndexFunc(m.Instances, func(g GPUInstance) bool { return g.ID == id })
		if at < 0 {
			return refuse(notFound, "%s has no GPU instance %d", c.Name, id)
		}
		return f(c, m, at)
	})
}

// DestroyGPUInstance removes a GPU instance without compute instances.
func (n *Node) DestroyGPUInstance(which string, id int) error {
	return n.changeInstance(which, id, func(c Card, m *MIG, at int) error {
		if len(m.Instances[at].Compute) > 0 {
			return refuse(InUse, "%s: GPU instance %d has compute instances", c.Name, id)
		}
		m.Instances = slices.Delete(m.Instances, at, at+1)
		return nil
	})
}

// CreateComputeInstance makes a compute instance in a GPU instance, of a profile that is given by its ID.
func (n *Node) CreateComputeInstance(which string, instance, id int) (ComputeInstance, error) {
	var out ComputeInstance
	err := n.changeInstance(which, instance, func(c Card, m *MIG, at int) error {
		var err error
		out, err = c.addCompute(&m.Instances[at], id)
		return err
	})
	return out, err
}

func (c Card) addCompute(g *GPUInstance, id int) (ComputeInstance, error) {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	compute, _ := c.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	for _, number := range sortedKeys(compute[g.Profile]) {
		p := compute[g.Profile][number]
		if p.ID != id {
			continue
		}
		for start := 0; start+p.SliceCount <= profiles[g.Profile].SliceCount; start++ {
			at := Span{Start: start, Size: p.SliceCount}
			if !slices.ContainsFunc(g.Compute, func(o ComputeInstance) bool { return o.Span.overlaps(at) }) {
				return g.insertCompute(number, at), nil
			}
		}
		return ComputeInstance{}, refuse(insufficientResources, "%s: GPU instance %d has not %d slices free", c.Name, g.ID, p.SliceCount)
	}
	return ComputeInstance{}, refuse(invalidArgument, "%s: GPU instance %d has no compute instance profile with the ID %d", c.Name, g.ID, id)
}

func (g *GPUInstance) insertCompute(number int, at Span) ComputeInstance {
	id := 0
	for slices.ContainsFunc(g.Compute, func(o ComputeInstance) bool { return o.ID == id }) {
		id++
	}
	ci := ComputeInstance{ID: id, Profile: number, Span: at, UUID: randomUUID("MIG-")}
	g.Compute = append(g.Compute, ci)
	slices.SortFunc(g.Compute, func(a, b ComputeInstance) int { return cmp.Compare(a.ID, b.ID) })
	return ci
}

// DestroyComputeInstance removes a compute instance without processes.
func (n *Node) DestroyComputeInstance(which string, instance, id int) error {
	return n.changeInstance(which, instance, func(c Card, m *MIG, at int) error {
		g := &m.Instances[at]
		i := slices.IndexFunc(g.Compute, func(ci ComputeInstance) bool { return ci.ID == id })
		if i < 0 {
			return refuse(notFound, "%s: GPU instance %d has no compute instance %d", c.Name, instance, id)
		}
		if users := g.Compute[i].Processes; len(users) > 0 {
			return refuse(InUse, "%s: compute instance %d of GPU instance %d is used by process %d %s", c.Name, id, instance, users[0].PID, users[0].Name)
		}
		g.Compute = slices.Delete(g.Compute, i, i+1)
		return nil
	})
}

// randomUUID is a UUID that no other has.
func randomUUID(prefix string) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", prefix, b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
