// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// GPU is a physical GPU and what claims hold of it.
type GPU struct {
	Node              string `json:"node"`
	Name              string `json:"name"` // of the whole GPU, also if only partitions are published
	Driver            string `json:"driver"`
	Pool              string `json:"pool"`
	Index             *int64 `json:"index,omitempty"` // that of nvidia-smi at first, which the GPU keeps
	UUID              string `json:"uuid,omitempty"`
	Model             string `json:"model,omitempty"`
	ComputeCapability string `json:"computeCapability,omitempty"`
	// FabricDomain is the clique of an NVLink fabric of several nodes; empty: it is in none.
	FabricDomain string `json:"fabricDomain,omitempty"`
	Sharing      string `json:"sharing,omitempty"` // how claims share it; empty: only partitions are published
	// Server is the node of a GPU over the network; empty: it is none.
	Server string `json:"server,omitempty"`
	// VMOnly means that only virtual machines can have it. Its model and memory may be unknown then.
	VMOnly   bool   `json:"vmOnly,omitempty"`
	Replicas int64  `json:"replicas,omitempty"` // how many claims a replicated GPU is for
	Memory   Amount `json:"memory"`             // bytes
	Cores    Amount `json:"cores"`              // percent of the multiprocessors
	// Partitions exist, or are allocated and therefore about to exist.
	Partitions []Partition `json:"partitions,omitempty"`
	Taints     []Taint     `json:"taints,omitempty"`
	// NodeProblem says why the node takes no pods; empty: it does, or the user may not read nodes.
	NodeProblem string   `json:"nodeProblem,omitempty"`
	Holders     []Holder `json:"holders,omitempty"`
	// Stranded says how much of the GPU is idle and fits no pod like those that have GPUs, and why. Only ls --stranded
	// has it.
	Stranded string `json:"stranded,omitempty"`

	// Device is the published device, for the command describe.
	Device *resourceapi.Device `json:"device,omitempty"`

	parts          []*resourceapi.Device     // partitions, also such as the driver would create
	device         *resourceapi.Device       // nil if only partitions are published
	modelAttribute resourceapi.QualifiedName // names the model
}

// Amount is how much of something is allocated.
type Amount struct {
	Total int64 `json:"total"`
	// Used is nil if the user may not read all claims.
	Used *int64 `json:"used,omitempty"`
}

// Tally counts GPUs.
type Tally struct {
	GPUs int `json:"gpus"`
	// Free is how many GPUs nobody holds and new pods can get; nil if the user may not read all claims.
	Free *int64 `json:"free,omitempty"`
}

func (t *Tally) count(g *GPU) {
	t.GPUs++
	if t.Free == nil && g.Memory.Used != nil {
		t.Free = new(int64)
	}
	if g.Free() {
		*t.Free++
	}
}

// Partition is a part of a GPU with a device of its own.
type Partition struct {
	Name    string `json:"name"`
	Profile string `json:"profile"`
	Memory  int64  `json:"memory"` // bytes
	Free    bool   `json:"free"`
}

// Taint keeps claims away from a GPU, or only informs about it.
type Taint struct {
	Key    string                        `json:"key"`
	Value  string                        `json:"value,omitempty"`
	Effect resourceapi.DeviceTaintEffect `json:"effect"`
	Since  *metav1.Time                  `json:"since,omitempty"`
	// Remedy says what is wrong and what a person can do; empty: the taint is not about health.
	Remedy string `json:"remedy,omitempty"`
}

func (t Taint) device() resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: t.Effect}
}

// String returns the taint as kubectl writes taints of nodes.
func (t Taint) String() string { return cluster.TaintText(t.device()) }

// Holder is a claim that holds the GPU, a share or a partition of it.
type Holder struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	Device    string `json:"device"`
	Profile   string `json:"profile,omitempty"` // of a partition
	Memory    int64  `json:"memory"`            // bytes
	Cores     int64  `json:"cores"`             // percent of the multiprocessors; 0: not limited
	Whole     bool   `json:"whole"`             // nothing is left for others
	VM        bool   `json:"vm,omitempty"`      // a virtual machine has the GPU
	// Asked is what the claim asks for, if it has a whole GPU instead, because that has no shares.
	Asked string `json:"asked,omitempty"`
	// Pods are the pods that may use the claim; podgroups/NAME if it is reserved for such a group.
	Pods []string `json:"pods,omitempty"`
	// Since is the time of the allocation, or the creation of the claim if Kubernetes has not stored that time.
	Since *metav1.Time `json:"since,omitempty"`
	// IdleSince is when a pod last used the device; nil: not long ago, or nobody knows.
	IdleSince *metav1.Time `json:"idleSince,omitempty"`
	// Problem says why the device is not ready for the claim, in the words of the driver.
	Problem string `json:"problem,omitempty"`
}

// Ref returns the name for command lines: NODE/DEVICE.
func (g *GPU) Ref() string { return g.place() + "/" + g.Name }

// place returns the node, or the pool if the GPU is of no single node.
func (g *GPU) place() string { return cmp.Or(g.Node, g.Pool) }

// poolID returns the pool of the GPU.
func (g *GPU) poolID() cluster.PoolID { return cluster.PoolID{Driver: g.Driver, Pool: g.Pool} }

// Free reports whether no claim holds anything of the GPU and new pods can get it.
func (g *GPU) Free() bool {
	tainted := slices.ContainsFunc(g.Taints, Taint.prevents)
	return len(g.Holders) == 0 && g.Memory.Used != nil && !tainted && g.NodeProblem == ""
}

// prevents reports whether the taint keeps new claims away.
func (t Taint) prevents() bool { return cluster.Prevents(t.device()) }

// keptFor returns who the taint keeps the GPU for; empty: it does not do that.
func (t Taint) keptFor() string { return cluster.KeptFor(t.device()) }

// sick reports whether the taint keeps new claims away, and not because the GPU is kept for somebody.
func (t Taint) sick() bool { return t.prevents() && !cluster.Keeps(t.device()) }

// gpusOf returns the GPUs of the drivers, sorted by node and name.
func gpusOf(s *cluster.Snapshot, drivers []string) []*GPU {
	problems := nodeProblems(s.Nodes)
	var all []*GPU
	for _, driver := range drivers {
		v := cluster.New(driver)
		of, modelAttribute := asGPUs(current(s.Slices, driver))
		if local, isRemote := remote.Local(driver); isRemote {
			of, modelAttribute = asLocal(of, local), productName
		}
		for _, slice := range of {
			v.SetSlice(slice)
		}
		for _, c := range s.Claims {
			v.SetClaim(c)
		}
		for known, held := range v.GPUs {
			g := &GPU{Node: known.Node, Name: known.Name, Driver: driver, Pool: known.Pool, Model: known.Product(),
				Memory: Amount{Total: known.Memory()}, Cores: Amount{Total: 100}, NodeProblem: problems[known.Node],
				modelAttribute: modelAttribute}
			g.describe(known)
			g.hold(held)
			if s.Unread[cluster.Claims] == nil {
				memory, cores := known.Used(held)
				g.Memory.Used, g.Cores.Used = &memory, &cores
			}
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b *GPU) int {
		return cmp.Or(cmp.Compare(a.place(), b.place()), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// describe adds what the published devices say. A GPU of which only partitions are published has their taints.
func (g *GPU) describe(known *cluster.GPU) {
	tainted, uuid := known.Partitions, resourceapi.QualifiedName("parentUUID")
	whole := known.Whole
	if whole == nil && len(known.Partitions) == 0 {
		whole, g.VMOnly = known.VM, true
	}
	if whole != nil {
		tainted, uuid = []*cluster.Device{whole}, "uuid"
		g.device = whole.Device
		g.Server = text(g.device, "remoteNode")
		replicas := g.device.Capacity["shares"].Value
		g.Sharing, g.Replicas = text(g.device, "sharing"), replicas.Value()
	}
	first := tainted[0].Device
	g.UUID, g.Index = text(first, uuid), first.Attributes["index"].IntValue
	if domain := text(first, "fabricDomain"); domain != text(first, "uuid") {
		g.FabricDomain = domain
	}
	g.ComputeCapability = strings.TrimSuffix(text(first, "cudaComputeCapability"), ".0")
	for _, d := range tainted {
		for _, t := range d.Taints {
			taint := Taint{t.Key, t.Value, t.Effect, t.TimeAdded, g.remedy(t)}
			same := func(other Taint) bool { return other.String() == taint.String() }
			if !slices.ContainsFunc(g.Taints, same) {
				g.Taints = append(g.Taints, taint)
			}
		}
	}
	for _, d := range known.Partitions {
		if gpu.Type(text(d.Device, "type")) == gpu.TypeMIG {
			g.parts = append(g.parts, d.Device)
		}
		if d.Exists() {
			g.Partitions = append(g.Partitions, Partition{Name: d.Name, Profile: text(d.Device, "profile"),
				Memory: d.Kind.Capacity("memory"), Free: true})
		}
	}
}

// hold adds the holders and the partitions that they hold.
func (g *GPU) hold(held []cluster.Holding) {
	for _, h := range held {
		c := h.Claim.Object
		holder := Holder{Namespace: c.Namespace, Claim: c.Name, Device: h.Device, Profile: h.Profile, Memory: h.Memory,
			Cores: h.Cores, Whole: h.Memory >= g.Memory.Total && h.Cores >= 100, VM: gpu.IsVFIO(h.Device),
			Since:     cluster.Since(c),
			IdleSince: cluster.DeviceIdleSince(c, h.DeviceRequestAllocationResult),
			Problem:   why.Problem(c, g.Driver, g.Pool, h.Device)}
		for _, user := range c.Status.ReservedFor {
			name := user.Name
			if user.Resource != "pods" { // podgroups, of KEP-5729
				name = user.Resource + "/" + name
			}
			holder.Pods = append(holder.Pods, name)
		}
		switch {
		case gpu.IsPart(h.Device):
			g.take(h.Device, h.Profile, h.Memory)
		case holder.VM:
		case holder.Whole && g.device != nil && !ptr.Deref(g.device.AllowMultipleAllocations, false):
			holder.Asked = why.Share(&c.Spec, h.Request, g.device)
		}
		g.Holders = append(g.Holders, holder)
	}
	slices.SortFunc(g.Holders, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim),
			cmp.Compare(a.Device, b.Device))
	})
	slices.SortFunc(g.Partitions, func(a, b Partition) int { return cmp.Compare(a.Name, b.Name) })
}

// take marks a partition as held, and adds one that the driver creates for the holder.
func (g *GPU) take(name, profile string, memory int64) {
	if i := slices.IndexFunc(g.Partitions, func(p Partition) bool { return p.Name == name }); i >= 0 {
		g.Partitions[i].Free = false
		return
	}
	g.Partitions = append(g.Partitions, Partition{Name: name, Profile: profile, Memory: memory})
}

// nodeProblems returns the nodes that take no pods, and why.
func nodeProblems(nodes []*corev1.Node) map[string]string {
	all := map[string]string{}
	for _, n := range nodes {
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		switch {
		case !ready:
			all[n.Name] = "NotReady"
		case n.Spec.Unschedulable:
			all[n.Name] = "SchedulingDisabled"
		}
	}
	return all
}

// driversOf returns the drivers of GPUs: those with "gpu" in their name, and those whose devices say that they are
// GPUs or partitions of GPUs.
func driversOf(all []*resourceapi.ResourceSlice) []string {
	found := sets.New[string]()
	for _, s := range all {
		if strings.Contains(s.Spec.Driver, "gpu") || typed(s) {
			found.Insert(s.Spec.Driver)
		}
	}
	return sets.List(found)
}

// typed reports whether devices of the slice say that they are GPUs, or partitions of GPUs.
func typed(s *resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		return slices.Contains([]gpu.Type{gpu.TypeGPU, gpu.TypeMIG, gpu.TypeVFIO, gpu.TypeVGPU, gpu.TypeMonitor},
			gpu.Type(text(&d, "type")))
	})
}

// current returns the slices of the driver in the newest generation of each pool: the others are obsolete.
func current(all []*resourceapi.ResourceSlice, driver string) []*resourceapi.ResourceSlice {
	return slices.DeleteFunc(cluster.Current(all), func(s *resourceapi.ResourceSlice) bool {
		return s.Spec.Driver != driver
	})
}

// productName is the attribute that names the model, of this driver and of NVIDIA's.
const productName = "productName"

// incomplete names the pools of which not all slices are published. The scheduler allocates nothing of them.
func incomplete(all []*resourceapi.ResourceSlice) (warnings []string) {
	for _, driver := range driversOf(all) {
		count, want := map[string]int64{}, map[string]int64{}
		for _, s := range current(all, driver) {
			count[s.Spec.Pool.Name]++
			want[s.Spec.Pool.Name] = s.Spec.Pool.ResourceSliceCount
		}
		for _, pool := range slices.Sorted(maps.Keys(count)) {
			if count[pool] < want[pool] {
				warnings = append(warnings, fmt.Sprintf("the driver %s has published %d of %d slices of the pool %s: "+
					"no claim gets anything of it", driver, count[pool], want[pool], pool))
			}
		}
	}
	return warnings
}

// asGPUs returns the slices of one driver, and the attribute that names the model. If the devices do not say what they
// are, each is taken for a whole GPU.
func asGPUs(of []*resourceapi.ResourceSlice) (all []*resourceapi.ResourceSlice, model resourceapi.QualifiedName) {
	if slices.ContainsFunc(of, typed) {
		return of, productName
	}
	model = productName
	for _, s := range of {
		s = s.DeepCopy()
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if d.Attributes == nil {
				d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
			}
			d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To(string(gpu.TypeGPU))}
			if text(d, productName) == "" && text(d, "model") != "" {
				model = "model"
				d.Attributes[productName] = d.Attributes[model]
			}
		}
		all = append(all, s)
	}
	return all, model
}

// asLocal adds the names that attributes of remote devices have on local ones.
func asLocal(of []*resourceapi.ResourceSlice, local string) (all []*resourceapi.ResourceSlice) {
	for _, s := range of {
		s = s.DeepCopy()
		for _, d := range s.Spec.Devices {
			for name, value := range maps.Clone(d.Attributes) {
				if short, ok := strings.CutPrefix(string(name), local+"/"); ok {
					d.Attributes[resourceapi.QualifiedName(short)] = value
				}
			}
		}
		all = append(all, s)
	}
	return all
}

// text returns a string or version attribute.
func text(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	a := d.Attributes[name]
	return cmp.Or(ptr.Deref(a.StringValue, ""), ptr.Deref(a.VersionValue, ""))
}
