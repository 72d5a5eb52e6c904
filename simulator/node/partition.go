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

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// MIG is the MIG mode and the partitions of a GPU.
type MIG struct {
	Mode      hwprofile.MigMode
	Instances []GPUInstance `json:",omitempty"` // by ID
}

// GPUInstance is a part of a GPU's memory and engines.
type GPUInstance struct {
	ID      int
	Profile int // NVML's number of it
	Span    hwprofile.Span
	Compute []ComputeInstance `json:",omitempty"` // by ID
}

// ComputeInstance is a part of a GPU instance's multiprocessors. Programs see it as a device.
type ComputeInstance struct {
	ID        int
	Profile   int // NVML's number of it
	Span      hwprofile.Span
	UUID      string    // "MIG-…", random
	Processes []Process `json:",omitempty"`
}

// Partition is a compute instance with its GPU instance and the profiles of both.
type Partition struct {
	Index          int    // among those of its GPU
	Name           string // "1g.10gb", or "1c.3g.40gb" if it is part of a GPU instance
	Instance       GPUInstance
	Compute        ComputeInstance
	Profile        hwprofile.GPUInstanceProfile
	ComputeProfile hwprofile.ComputeInstanceProfile
}

// Refusal is an error with an NVML error code.
type Refusal struct {
	Code   hwprofile.Error
	Reason string
}

// Error is the reason followed by the code.
func (r *Refusal) Error() string { return fmt.Sprintf("%s (%s)", r.Reason, r.Code) }

func refuse(code hwprofile.Error, format string, args ...any) error {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// CodeOf returns the NVML error of err: that of a Refusal, ERROR_UNKNOWN for other errors, "" for nil.
func CodeOf(err error) hwprofile.Error {
	var r *Refusal
	switch {
	case err == nil:
		return ""
	case errors.As(err, &r):
		return r.Code
	}
	return "ERROR_UNKNOWN"
}

// initialMIG is the MIG state of the GPU in its profile.
func initialMIG(g hwprofile.GPU) MIG {
	mode, _ := g.Calls.GetMigMode.Get()
	m := MIG{Mode: mode}
	for _, i := range g.Instances {
		instance := GPUInstance{ID: i.ID, Profile: i.Profile, Span: i.Span}
		for _, ci := range i.Compute {
			instance.Compute = append(instance.Compute, ComputeInstance{ID: ci.ID, Profile: ci.Profile, Span: ci.Span,
				UUID: ci.UUID})
		}
		m.Instances = append(m.Instances, instance)
	}
	return m
}

// MIG is the current MIG state of the GPU.
func (c GPU) MIG() MIG {
	if c.State.MIG != nil {
		return *c.State.MIG
	}
	return initialMIG(c.GPU)
}

// MigMode is the current answer of GetMigMode.
func (c GPU) MigMode() hwprofile.Answer[hwprofile.MigMode] {
	return c.Calls.GetMigMode.With(c.MIG().Mode)
}

// Partitioned reports whether the GPU is in MIG mode. Then programs can use its partitions, but not the GPU itself.
func (c GPU) Partitioned() bool { return c.MIG().Mode.Current != 0 }

// Partitions returns the compute instances of the GPU in NVML's order.
func (c GPU) Partitions() []Partition {
	var out []Partition
	for _, g := range c.MIG().Instances {
		for _, ci := range g.Compute {
			out = append(out, c.partition(g, ci, len(out)))
		}
	}
	return out
}

func (c GPU) partition(g GPUInstance, ci ComputeInstance, index int) Partition {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	compute, _ := c.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	p := Partition{Index: index, Instance: g, Compute: ci, Profile: profiles[g.Profile],
		ComputeProfile: compute[g.Profile][ci.Profile]}
	p.Name = p.Profile.Name
	if p.ComputeProfile.SliceCount != p.Profile.SliceCount {
		p.Name = fmt.Sprintf("%dc.%s", p.ComputeProfile.SliceCount, p.Name)
	}
	return p
}

// Partition finds a partition of any GPU by its UUID.
func (v *View) Partition(uuid string) (GPU, Partition, bool) {
	for _, c := range v.GPUs {
		for _, p := range c.Partitions() {
			if p.Compute.UUID == uuid {
				return c, p, true
			}
		}
	}
	return GPU{}, Partition{}, false
}

// Memory returns the current memory of the partition. Compute instances of one GPU instance share it.
func (p Partition) Memory() hwprofile.Memory {
	m := hwprofile.Memory{Total: p.Profile.MemorySizeMB << 20}
	for _, ci := range p.Instance.Compute {
		m.Used += held(ci.Processes)
	}
	m.Used = min(m.Used, m.Total)
	return m
}

// changeMIG changes the MIG state of a GPU that supports MIG.
func (n *Node) changeMIG(which string, f func(GPU, *MIG) error) error {
	return n.change(which, func(c GPU, s *GPUState) error {
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

// setMIG stores the MIG state, nil if it equals that of the profile.
func (s *GPUState) setMIG(g hwprofile.GPU, m MIG) {
	s.MIG = &m
	if start := initialMIG(g); m.Mode == start.Mode && (len(m.Instances) == 0 && len(start.Instances) == 0 ||
		reflect.DeepEqual(m, start)) {
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

// freeSwitchSince is the first compute capability whose MIG mode changes without a reset and is off after a reboot. On
// older GPUs a change takes a reset and persists. (NVIDIA's MIG user guide: Hopper and newer.)
const freeSwitchSince = 9

func (c GPU) switchesFreely() bool {
	capability, _ := c.Calls.GetCudaComputeCapability.Get()
	return capability.Major >= freeSwitchSince
}

// SetMigMode enables or disables MIG mode as NVML does. activation is why the mode did not change, "" if it did. The
// error is for a GPU without MIG.
func (n *Node) SetMigMode(which string, mode hwprofile.Switch) (activation hwprofile.Error, err error) {
	err = n.changeMIG(which, func(c GPU, m *MIG) error {
		activation = ""
		switch to := int(mode); {
		case to == m.Mode.Current:
			m.Mode.Pending = to
		case c.occupied(*m) != nil:
			activation = "ERROR_IN_USE"
		case c.switchesFreely():
			m.Mode = hwprofile.MigMode{Current: to, Pending: to}
		default:
			m.Mode.Pending = to
			activation = "ERROR_RESET_REQUIRED"
		}
		return nil
	})
	return activation, err
}

// occupied returns why the MIG mode of the GPU cannot change now, nil if it can.
func (c GPU) occupied(m MIG) error {
	if len(c.State.Processes) > 0 {
		return refuse(hwprofile.InUse, "%s is used by process %d %s", c.Name, c.State.Processes[0].PID,
			c.State.Processes[0].Name)
	}
	if len(m.Instances) > 0 {
		return refuse(hwprofile.InUse, "%s has partitions", c.Name)
	}
	return nil
}

// SwitchMIG enables or disables MIG mode, with a reset if necessary. The GPU must be idle.
func (n *Node) SwitchMIG(which string, mode hwprofile.Switch) error {
	return n.changeMIG(which, func(c GPU, m *MIG) error {
		if err := c.occupied(*m); err != nil {
			return err
		}
		m.Mode = hwprofile.MigMode{Current: int(mode), Pending: int(mode)}
		return nil
	})
}

// afterStart is the MIG state of the GPU after a reboot.
func (c GPU) afterStart(m MIG) MIG {
	if c.switchesFreely() {
		return MIG{Mode: initialMIG(c.GPU).Mode}
	}
	return MIG{Mode: hwprofile.MigMode{Current: m.Mode.Pending, Pending: m.Mode.Pending}}
}

// profileByID finds the profile by the ID that NVML's other calls use.
func profileByID(profiles hwprofile.GPUInstanceProfiles, id int) (number int, p hwprofile.GPUInstanceProfile, ok bool) {
	for _, number := range slices.Sorted(maps.Keys(profiles)) {
		if profiles[number].ID == id {
			return number, profiles[number], true
		}
	}
	return 0, p, false
}

// Placements returns the possible placements of GPU instances of the profile with that ID, in MIG mode or not.
func (c GPU) Placements(id int) ([]hwprofile.Span, error) {
	profiles, e := c.Calls.GetGpuInstanceProfileInfo.Get()
	if e != "" {
		return nil, refuse(e, "%s cannot be partitioned", c.Name)
	}
	number, _, ok := profileByID(profiles, id)
	if !ok {
		return nil, refuse(hwprofile.InvalidArgument, "%s has no profile with the ID %d", c.Name, id)
	}
	placements, e := c.Calls.GetGpuInstancePossiblePlacements.Get()
	if e != "" {
		return nil, refuse(e, "%s does not say where partitions can be", c.Name)
	}
	return placements[number], nil
}

// Instances returns the GPU instances of the GPU. It is an error if the GPU is not in MIG mode.
func (c GPU) Instances() ([]GPUInstance, error) {
	m := c.MIG()
	if m.Mode.Current == 0 {
		return nil, refuse(hwprofile.NotSupported, "%s is not in MIG mode", c.Name)
	}
	return m.Instances, nil
}

// Instance finds a GPU instance by its ID.
func (c GPU) Instance(id int) (GPUInstance, error) {
	all, err := c.Instances()
	if err != nil {
		return GPUInstance{}, err
	}
	for _, g := range all {
		if g.ID == id {
			return g, nil
		}
	}
	return GPUInstance{}, refuse(hwprofile.NotFound, "%s has no GPU instance %d", c.Name, id)
}

// RemainingCapacity returns how many more GPU instances of the profile with that ID fit.
func (c GPU) RemainingCapacity(id int) (int, error) {
	m := c.MIG()
	m.Instances = slices.Clone(m.Instances)
	for count := 0; ; count++ {
		_, err := c.addInstance(&m, id, nil)
		switch {
		case CodeOf(err) == hwprofile.InsufficientResources:
			return count, nil
		case err != nil:
			return 0, err
		}
	}
}

// CreateGPUInstance creates a GPU instance of the profile with that ID, at the given placement or, if it is nil, at the
// first free one.
func (n *Node) CreateGPUInstance(which string, id int, at *hwprofile.Span) (GPUInstance, error) {
	var out GPUInstance
	err := n.changeMIG(which, func(c GPU, m *MIG) error {
		var err error
		out, err = c.addInstance(m, id, at)
		return err
	})
	return out, err
}

func (c GPU) addInstance(m *MIG, id int, at *hwprofile.Span) (GPUInstance, error) {
	if m.Mode.Current == 0 {
		return GPUInstance{}, refuse(hwprofile.NotSupported, "%s is not in MIG mode", c.Name)
	}
	possible, err := c.Placements(id)
	if err != nil {
		return GPUInstance{}, err
	}
	if at != nil {
		if !slices.Contains(possible, *at) {
			return GPUInstance{}, refuse(hwprofile.InvalidArgument, "%s: a partition of this profile cannot be at "+
				"%d, with a size of %d", c.Name, at.Start, at.Size)
		}
		possible = []hwprofile.Span{*at}
	}
	for _, place := range possible {
		if err = c.fits(m.Instances, id, place); err == nil {
			return c.insertInstance(m, id, place), nil
		}
	}
	return GPUInstance{}, err
}

func (c GPU) insertInstance(m *MIG, id int, at hwprofile.Span) GPUInstance {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	number, _, _ := profileByID(profiles, id)
	g := GPUInstance{ID: c.instanceID(at), Profile: number, Span: at}
	m.Instances = append(m.Instances, g)
	slices.SortFunc(m.Instances, func(a, b GPUInstance) int { return cmp.Compare(a.ID, b.ID) })
	return g
}

// instanceID is the ID that the driver gives to a GPU instance, as nvidia-smi mig -lgi shows on real GPUs: 0 for the
// whole GPU, 1 and 2 for its halves, 3 to 6 for its quarters and so on.
func (c GPU) instanceID(at hwprofile.Span) int {
	whole := 0
	placements, _ := c.Calls.GetGpuInstancePossiblePlacements.Get()
	for _, possible := range placements {
		for _, p := range possible {
			whole = max(whole, p.Start+p.Size)
		}
	}
	return whole/at.Size - 1 + at.Start/at.Size
}

// fits returns nil if a GPU instance of the profile fits beside the others: the placement and enough engines are free.
// The GPU has as many engines as the profile with the most.
func (c GPU) fits(others []GPUInstance, id int, at hwprofile.Span) error {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	number, want, _ := profileByID(profiles, id)
	same := 0
	sum := enginesOf(want)
	for _, o := range others {
		if o.Span.Overlaps(at) {
			return refuse(hwprofile.InsufficientResources, "%s: %s at %d is in the way", c.Name,
				profiles[o.Profile].Name, o.Span.Start)
		}
		if o.Profile == number {
			same++
		}
		for i, n := range enginesOf(profiles[o.Profile]) {
			sum[i] += n
		}
	}
	if same >= want.InstanceCount {
		return refuse(hwprofile.InsufficientResources, "%s: it has as many %s as it can have", c.Name, want.Name)
	}
	var has [len(engineNames)]int
	for _, p := range profiles {
		for i, n := range enginesOf(p) {
			has[i] = max(has[i], n)
		}
	}
	for i, n := range sum {
		if n > has[i] {
			return refuse(hwprofile.InsufficientResources, "%s: %s takes more %s than are left", c.Name, want.Name,
				engineNames[i])
		}
	}
	return nil
}

var engineNames = [...]string{"slices", "multiprocessors", "copy engines", "decoders", "encoders", "JPEG engines",
	"OFA engines"}

func enginesOf(p hwprofile.GPUInstanceProfile) [len(engineNames)]int {
	return [...]int{p.SliceCount, p.MultiprocessorCount, p.CopyEngineCount, p.DecoderCount, p.EncoderCount, p.JPEGCount,
		p.OFACount}
}

// changeInstance changes a GPU instance, or returns ERROR_NOT_FOUND.
func (n *Node) changeInstance(which string, id int, f func(GPU, *MIG, int) error) error {
	return n.changeMIG(which, func(c GPU, m *MIG) error {
		at := slices.IndexFunc(m.Instances, func(g GPUInstance) bool { return g.ID == id })
		if at < 0 {
			return refuse(hwprofile.NotFound, "%s has no GPU instance %d", c.Name, id)
		}
		return f(c, m, at)
	})
}

// DestroyGPUInstance removes a GPU instance that has no compute instances.
func (n *Node) DestroyGPUInstance(which string, id int) error {
	return n.changeInstance(which, id, func(c GPU, m *MIG, at int) error {
		if len(m.Instances[at].Compute) > 0 {
			return refuse(hwprofile.InUse, "%s: GPU instance %d has compute instances", c.Name, id)
		}
		m.Instances = slices.Delete(m.Instances, at, at+1)
		return nil
	})
}

// CreateComputeInstance creates a compute instance of the profile with that ID in a GPU instance.
func (n *Node) CreateComputeInstance(which string, instance, id int) (ComputeInstance, error) {
	var out ComputeInstance
	err := n.changeInstance(which, instance, func(c GPU, m *MIG, at int) error {
		var err error
		out, err = c.addCompute(&m.Instances[at], id)
		return err
	})
	return out, err
}

func (c GPU) addCompute(g *GPUInstance, id int) (ComputeInstance, error) {
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	compute, _ := c.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	for _, number := range slices.Sorted(maps.Keys(compute[g.Profile])) {
		p := compute[g.Profile][number]
		if p.ID != id {
			continue
		}
		for start := 0; start+p.SliceCount <= profiles[g.Profile].SliceCount; start++ {
			at := hwprofile.Span{Start: start, Size: p.SliceCount}
			if !slices.ContainsFunc(g.Compute, func(o ComputeInstance) bool { return o.Span.Overlaps(at) }) {
				return g.insertCompute(number, at), nil
			}
		}
		return ComputeInstance{}, refuse(hwprofile.InsufficientResources, "%s: GPU instance %d has not %d slices free",
			c.Name, g.ID, p.SliceCount)
	}
	return ComputeInstance{}, refuse(hwprofile.InvalidArgument, "%s: GPU instance %d has no compute instance profile "+
		"with the ID %d", c.Name, g.ID, id)
}

func (g *GPUInstance) insertCompute(number int, at hwprofile.Span) ComputeInstance {
	id := 0
	for slices.ContainsFunc(g.Compute, func(o ComputeInstance) bool { return o.ID == id }) {
		id++
	}
	ci := ComputeInstance{ID: id, Profile: number, Span: at, UUID: randomUUID("MIG-")}
	g.Compute = append(g.Compute, ci)
	slices.SortFunc(g.Compute, func(a, b ComputeInstance) int { return cmp.Compare(a.ID, b.ID) })
	return ci
}

// DestroyComputeInstance removes a compute instance that has no processes.
func (n *Node) DestroyComputeInstance(which string, instance, id int) error {
	return n.changeInstance(which, instance, func(c GPU, m *MIG, at int) error {
		g := &m.Instances[at]
		i := slices.IndexFunc(g.Compute, func(ci ComputeInstance) bool { return ci.ID == id })
		if i < 0 {
			return refuse(hwprofile.NotFound, "%s: GPU instance %d has no compute instance %d", c.Name, instance, id)
		}
		if users := g.Compute[i].Processes; len(users) > 0 {
			return refuse(hwprofile.InUse, "%s: compute instance %d of GPU instance %d is used by process %d %s",
				c.Name, id, instance, users[0].PID, users[0].Name)
		}
		g.Compute = slices.Delete(g.Compute, i, i+1)
		return nil
	})
}

// randomUUID returns a random UUID (version 4).
func randomUUID(prefix string) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", prefix, b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
