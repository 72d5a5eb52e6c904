// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	// defragTimeout ends the search for moves, unless the options say otherwise.
	defragTimeout = 30 * time.Second
	// defragAsked is how many questions to the allocator are asked about the pods of one GPU or node.
	defragAsked = 5_000
)

// DefragOptions say what is to be freed. The zero value is one GPU, of any node.
type DefragOptions struct {
	Drivers []string      // of the GPUs
	Node    string        // all GPUs of this node
	Nodes   bool          // all GPUs of one node, whichever needs the fewest moves
	Only    []PhysicalGPU // exactly these; those of an earlier answer
	Jobs    bool          // pods of jobs move, too
	Timeout time.Duration // of the search. 0: defragTimeout
}

// ofNodes reports whether all GPUs of a node are freed together.
func (o DefragOptions) ofNodes() bool { return o.Nodes || o.Node != "" }

// PhysicalGPU names a GPU.
type PhysicalGPU struct {
	Driver string `json:"driver"`
	Node   string `json:"node"`
	Pool   string `json:"pool"`
	Name   string `json:"name"` // of the whole GPU, also if only partitions are published
}

// Ref returns the name for command lines: NODE/DEVICE.
func (g PhysicalGPU) Ref() string { return g.Node + "/" + g.Name }

// Defragmentation is an answer: the fewest pods that move so that GPUs are free.
type Defragmentation struct {
	Frees []PhysicalGPU `json:"frees"` // none: nothing can be gained
	Moves []PodMove     `json:"moves"` // in the order in which they fit
	// Candidates is how many GPUs, or nodes, are held in part, so that moves could free them.
	Candidates int      `json:"candidates"`
	Stays      []Stays  `json:"stays,omitempty"`    // pods on candidates that cannot move
	NotTried   string   `json:"notTried,omitempty"` // what the search did not get to; empty: nothing
	Notes      []string `json:"notes,omitempty"`    // what may send a replacement elsewhere
	// Keep selects the devices that replacements must not get: those of Frees first, then idle ones.
	Keep []resourceapi.DeviceTaintSelector `json:"keep,omitempty"`
}

// PodMove is a pod that is evicted, with its devices.
type PodMove struct {
	Namespace string        `json:"namespace"`
	Pod       string        `json:"pod"`
	UID       types.UID     `json:"uid"`
	Owner     types.UID     `json:"owner"` // the controller that creates the replacement
	Claims    []string      `json:"claims"`
	Devices   []MovedDevice `json:"devices"`
}

// MovedDevice is a GPU, a share or a partition that a pod has, and what its replacement probably gets.
type MovedDevice struct {
	Device   string `json:"device"`
	Node     string `json:"node"`
	ToDevice string `json:"toDevice"`
	ToNode   string `json:"toNode"`
	Memory   int64  `json:"memory"` // bytes
	Cores    int64  `json:"cores"`  // percent of the multiprocessors
}

// Stays are pods that cannot move for one reason.
type Stays struct {
	Reason   string   `json:"reason"`
	Pods     int      `json:"pods"`
	Examples []string `json:"examples"` // NAMESPACE/POD, or NAMESPACE/CLAIM of a claim whose pod is not known
}

// physicalGPU is a GPU with its holders.
type physicalGPU struct {
	PhysicalGPU
	memory, held int64 // bytes
	holders      []cluster.Holding
	whole        bool // a claim can get all of it
	excluded     bool // new pods get nothing of it: a taint, or the state of its node
}

// idle reports whether a claim can get all of the GPU, as far as holders matter.
func (g *physicalGPU) idle() bool { return g.whole && len(g.holders) == 0 }

// freeable is what moves could free: a GPU, or all GPUs of a node.
type freeable struct {
	gpus     []*physicalGPU
	movers   []*mover // largest first
	memory   int64    // bytes that they have
	excluded bool     // new pods get nothing of a GPU
}

// defragmenter plans moves on a snapshot.
type defragmenter struct {
	*schedule.Cluster
	DefragOptions
	ctx       context.Context
	deadline  time.Time
	gpus      []*physicalGPU // by node and name
	targets   []*physicalGPU // those that replacements may get, the fullest first
	ofDevice  map[string]*physicalGPU
	nodeNamed map[string]*corev1.Node
	movers    map[types.UID]*mover // by UID of the pod, or of the claim if its pod is not known
	kept      map[*physicalGPU]bool
	unfit     map[string]bool // key of a mover and node: it does not fit there while nothing else has moved
}

// Defrag returns the fewest moves of pods that free what the options say. Idle GPUs are no targets, or with nodes those
// of idle nodes: nothing is gained by that. Pods of other GPUs do not move to make room. The snapshot needs all slices,
// claims, classes and nodes; an error says that they are not known.
func Defrag(ctx context.Context, s *cluster.Snapshot, o DefragOptions) (*Defragmentation, error) {
	for _, resource := range []string{cluster.Slices, cluster.Claims, cluster.Classes, cluster.Nodes} {
		if s.Unread[resource] != nil {
			return nil, s.Err()
		}
	}
	without := *s
	// A replacement needs no more than the pod.
	without.Quotas, without.GPUQuotas, without.Unread = nil, nil, maps.Clone(s.Unread)
	delete(without.Unread, cluster.Quotas)
	delete(without.Unread, cluster.GPUQuotas)
	d := &defragmenter{Cluster: schedule.New(&without), DefragOptions: o, ctx: ctx, ofDevice: map[string]*physicalGPU{},
		deadline: time.Now().Add(cmp.Or(o.Timeout, defragTimeout)), nodeNamed: map[string]*corev1.Node{},
		movers: map[types.UID]*mover{}, kept: map[*physicalGPU]bool{}, unfit: map[string]bool{}}
	d.addGPUs()
	d.addMovers()
	return d.cheapest(d.freeable()), ctx.Err()
}

// addGPUs fills in the GPUs, and which of them are kept idle.
func (d *defragmenter) addGPUs() {
	for _, n := range d.AllNodes {
		d.nodeNamed[n.Name] = n
	}
	nodes := map[cluster.PoolID]string{}
	for _, s := range d.Slices {
		if s.Spec.NodeName != nil {
			nodes[cluster.PoolOf(s)] = *s.Spec.NodeName
		}
	}
	for _, driver := range d.Drivers {
		v := cluster.New(driver)
		for _, s := range cluster.Current(d.Slices) {
			v.SetSlice(s)
		}
		for _, c := range d.Claims {
			v.SetClaim(c)
		}
		for of, held := range v.GPUs {
			node := nodes[cluster.PoolID{Driver: driver, Pool: of.Pool}]
			g := &physicalGPU{PhysicalGPU: PhysicalGPU{driver, node, of.Pool, of.Name}, memory: of.Memory(),
				holders: slices.Clone(held), whole: of.Whole != nil && !of.Whole.Kind.SharedOnly(),
				excluded: !of.Admits(nil) || !takesPods(d.nodeNamed[node])}
			for _, h := range held {
				g.held += h.Memory
			}
			d.gpus = append(d.gpus, g)
			d.ofDevice[driver+"/"+of.Pool+"/"+of.Name] = g
		}
	}
	slices.SortFunc(d.gpus, func(a, b *physicalGPU) int {
		return cmp.Or(cmp.Compare(a.Ref(), b.Ref()), cmp.Compare(a.Driver+" "+a.Pool, b.Driver+" "+b.Pool))
	})
	used := map[string]bool{}
	for _, g := range d.gpus {
		used[g.Node] = used[g.Node] || len(g.holders) > 0
	}
	for _, g := range d.gpus {
		d.kept[g] = g.Node == "" || g.idle() && !d.ofNodes() || d.ofNodes() && !used[g.Node]
	}
	d.targets = slices.DeleteFunc(slices.Clone(d.gpus), func(g *physicalGPU) bool {
		return d.kept[g] || d.nodeNamed[g.Node] == nil
	})
	slices.SortStableFunc(d.targets, func(a, b *physicalGPU) int { return cmp.Compare(a.left(0), b.left(0)) })
}

// left returns which part of the GPU's memory nobody holds, if that many bytes more are held.
func (g *physicalGPU) left(more int64) float64 {
	return 1 - float64(g.held+more)/float64(max(1, g.memory))
}

// takesPods reports whether the node exists and takes new pods, as far as its own state matters.
func takesPods(node *corev1.Node) bool {
	return node != nil && !slices.ContainsFunc(schedule.TaintsOf(node), func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
}

// gpu returns the GPU that a device belongs to, or nil.
func (d *defragmenter) gpu(driver, pool, device string) *physicalGPU {
	return d.ofDevice[driver+"/"+pool+"/"+gpu.ParentName(device)]
}

// key returns which GPUs are freed together with this one; empty: it is not to be freed.
func (d *defragmenter) key(g *physicalGPU) string {
	switch {
	case len(d.Only) > 0:
		if slices.Contains(d.Only, g.PhysicalGPU) {
			return "only"
		}
	case d.Node != "":
		if g.Node == d.Node {
			return g.Node
		}
	case d.Nodes:
		return g.Node
	case g.whole && !g.excluded && len(g.holders) > 0 && (len(g.holders) > 1 || g.held < g.memory):
		return g.Driver + "/" + g.Ref()
	}
	return ""
}

// freeable returns what is to be freed, the fewest pods first, then the least memory.
func (d *defragmenter) freeable() []*freeable {
	var all []*freeable
	known := map[string]*freeable{}
	for _, g := range d.gpus {
		key := d.key(g)
		if key == "" {
			continue
		}
		if known[key] == nil {
			known[key] = &freeable{}
			all = append(all, known[key])
		}
		f := known[key]
		f.gpus, f.excluded = append(f.gpus, g), f.excluded || g.excluded
		for _, h := range g.holders {
			for _, uid := range consumers(h.Claim.Object) {
				if m := d.movers[uid]; !slices.Contains(f.movers, m) {
					f.movers, f.memory = append(f.movers, m), f.memory+m.memory
				}
			}
		}
	}
	if d.Nodes && len(d.Only) == 0 { // a node that is idle, or takes no pods, is no gain
		all = slices.DeleteFunc(all, func(f *freeable) bool { return len(f.movers) == 0 || f.excluded })
	}
	for _, f := range all {
		slices.SortFunc(f.movers, func(a, b *mover) int {
			return cmp.Or(cmp.Compare(b.memory, a.memory), cmp.Compare(a.name, b.name))
		})
	}
	slices.SortStableFunc(all, func(a, b *freeable) int {
		return cmp.Or(cmp.Compare(len(a.movers), len(b.movers)), cmp.Compare(a.memory, b.memory))
	})
	return all
}

// cheapest returns the first of the candidates that can be freed.
func (d *defragmenter) cheapest(all []*freeable) *Defragmentation {
	answer := &Defragmentation{Frees: []PhysicalGPU{}, Moves: []PodMove{}, Candidates: len(all), Stays: stays(all)}
	late := 0 // candidates that were not tried, or not to the end
	for _, c := range all {
		if slices.ContainsFunc(c.movers, func(m *mover) bool { return m.stays != "" }) {
			continue
		}
		if d.ctx.Err() != nil || time.Now().After(d.deadline) {
			late++
			continue
		}
		t := d.newTrial(c)
		ok, err := t.place(c.movers)
		if t.Slow > 0 || err != nil {
			late++
		}
		if !ok {
			continue
		}
		for _, g := range c.gpus {
			answer.Frees = append(answer.Frees, g.PhysicalGPU)
		}
		answer.Moves, answer.Keep, answer.Notes = t.moves, t.keep(), t.notes()
		break
	}
	if late > 0 {
		answer.NotTried = fmt.Sprintf("%d of %d candidates, for want of time", late, len(all))
	}
	return answer
}

// stays counts the pods that cannot move, by reason.
func stays(all []*freeable) []Stays {
	found, seen := map[string]*Stays{}, map[*mover]bool{}
	for _, c := range all {
		for _, m := range c.movers {
			if m.stays == "" || seen[m] {
				continue
			}
			seen[m] = true
			s := found[m.stays]
			if s == nil {
				s = &Stays{Reason: m.stays}
				found[m.stays] = s
			}
			s.Pods++
			s.Examples = append(s.Examples, m.name)
		}
	}
	var sorted []Stays
	for _, reason := range slices.Sorted(maps.Keys(found)) {
		s := found[reason]
		slices.Sort(s.Examples)
		s.Examples = s.Examples[:min(len(s.Examples), selectors.ShownTexts)]
		sorted = append(sorted, *s)
	}
	return sorted
}

// trial places the pods of a candidate elsewhere.
type trial struct {
	*schedule.Question // its Cluster counts what the pods on the nodes request
	d                  *defragmenter
	freed              []*physicalGPU
	ended              map[types.UID]bool     // claims of the pods
	left               map[string]bool        // nodes that pods have left
	more               map[*physicalGPU]int64 // bytes that are held besides; negative: less
	placed             []*resourceapi.ResourceClaim
	moves              []PodMove // of the pods that have been placed
	movers             []*mover  // these pods
}

// newTrial takes the pods of the candidate and their claims away.
func (d *defragmenter) newTrial(c *freeable) *trial {
	own := *d.Cluster
	own.Used = maps.Clone(d.Used)
	t := &trial{d: d, freed: c.gpus, ended: map[types.UID]bool{}, left: map[string]bool{},
		more: map[*physicalGPU]int64{}, Question: &schedule.Question{Cluster: &own, Context: d.ctx,
			MaxAsked: defragAsked, Deadline: d.deadline, Starts: true}}
	for _, m := range c.movers {
		own.Used[m.pod.Spec.NodeName] = subtract(own.Used[m.pod.Spec.NodeName], schedule.RequestsOf(m.pod))
		t.left[m.pod.Spec.NodeName] = true
		for _, claim := range m.claims {
			t.ended[claim.UID] = true
		}
		for i, g := range m.on {
			if !slices.Contains(c.gpus, g) {
				t.more[g] -= m.devices[i].Memory
			}
		}
	}
	return t
}

func subtract(a, b corev1.ResourceList) corev1.ResourceList {
	rest := maps.Clone(a)
	for name, q := range b {
		total := rest[name].DeepCopy()
		total.Sub(q)
		rest[name] = total
	}
	return rest
}

// place places the pods, each on the fullest GPU where the others still fit. An error means that not all was tried.
func (t *trial) place(rest []*mover) (bool, error) {
	if len(rest) == 0 {
		return true, nil
	}
	m, fits := rest[0], map[string]*schedule.Placement{} // by node, on several of its GPUs
	for _, g := range t.open() {
		several, asked := fits[g.Node]
		if !asked {
			var err error
			if several, err = t.on(m, g.Node, nil); err != nil {
				return false, err
			}
			fits[g.Node] = several
		}
		if several == nil {
			continue
		}
		found, err := t.on(m, g.Node, g)
		switch {
		case err != nil:
			return false, err
		case found == nil && (asked || len(m.devices) == 1):
			continue
		case found == nil:
			found = several
		}
		if ok, err := t.with(m, found, rest[1:]); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// with places the other pods after this one, and takes it back if they do not fit.
func (t *trial) with(m *mover, on *schedule.Placement, others []*mover) (bool, error) {
	node := on.Group.Node.Name
	used, placed, more := t.Used[node], len(t.placed), maps.Clone(t.more)
	t.Used[node] = schedule.Sum(used, schedule.RequestsOf(m.pod))
	move := PodMove{Namespace: m.pod.Namespace, Pod: m.pod.Name, UID: m.pod.UID, Owner: m.owner,
		Devices: slices.Clone(m.devices)}
	for _, claim := range m.claims {
		move.Claims = append(move.Claims, claim.Name)
	}
	i := 0
	for c := range on.Results {
		claim := &resourceapi.ResourceClaim{}
		claim.Status.Allocation = &on.Results[c]
		t.placed = append(t.placed, claim)
		for _, r := range cluster.Results(claim) {
			if g := t.d.gpu(r.Driver, r.Pool, r.Device); g != nil && i < len(move.Devices) {
				move.Devices[i].ToNode, move.Devices[i].ToDevice = g.Node, r.Device
				t.more[g] += move.Devices[i].Memory
				i++
			}
		}
	}
	t.moves, t.movers = append(t.moves, move), append(t.movers, m)
	ok, err := t.place(others)
	if !ok {
		t.Used[node], t.placed, t.more = used, t.placed[:placed], more
		t.moves, t.movers = t.moves[:len(t.moves)-1], t.movers[:len(t.movers)-1]
	}
	return ok, err
}

// open returns the GPUs that replacements may get, the fullest first.
func (t *trial) open() []*physicalGPU {
	open := slices.DeleteFunc(slices.Clone(t.d.targets), t.closed)
	if len(t.more) > 0 {
		slices.SortStableFunc(open, func(a, b *physicalGPU) int {
			return cmp.Compare(a.left(t.more[a]), b.left(t.more[b]))
		})
	}
	return open
}

// closed reports whether replacements must not get the GPU.
func (t *trial) closed(g *physicalGPU) bool { return t.d.kept[g] || slices.Contains(t.freed, g) }

// on returns where the pod fits on the node, or nil: on one GPU, or if that is nil on all that are allowed. The error
// is schedule.ErrLimit.
func (t *trial) on(m *mover, node string, only *physicalGPU) (*schedule.Placement, error) {
	key := m.key + "\n" + node
	known := only == nil && len(t.placed) == 0 && !t.left[node]
	if known && t.d.unfit[key] {
		return nil, nil
	}
	s := t.GroupOf(t.d.nodeNamed[node])
	s.Holders = append(s.Holders, t.placed...)
	s.Held = allocator.HeldBy(s.Holders, t.ended)
	for i, slice := range s.Slices {
		s.Slices[i] = t.masked(slice, s.Held, only)
	}
	found, ok, err := t.FitsOn(m.w, s)
	switch {
	case errors.Is(err, schedule.ErrLimit):
		return nil, err
	case ok && err == nil:
		return &found, nil
	}
	if known {
		t.d.unfit[key] = true
	}
	return nil, nil
}

// masked returns the slice without the devices that replacements must not get. Those that claims hold have a taint
// instead, because they use counters.
func (t *trial) masked(s *resourceapi.ResourceSlice, held allocator.Held,
	only *physicalGPU) *resourceapi.ResourceSlice {
	masked := *s
	masked.Spec.Devices = nil
	for _, device := range s.Spec.Devices {
		g := t.d.gpu(s.Spec.Driver, s.Spec.Pool.Name, device.Name)
		if g != nil && (t.closed(g) || only != nil && g != only) {
			if some, _ := held.Any(allocator.NameOf(s.Spec.Driver, s.Spec.Pool.Name, device.Name)); !some {
				continue
			}
			device.Taints = []resourceapi.DeviceTaint{DefragTaint}
		}
		masked.Spec.Devices = append(masked.Spec.Devices, device)
	}
	return &masked
}

// keep selects the devices that replacements accept and must not get. A pool is selected as a whole if all its GPUs are
// such.
func (t *trial) keep() []resourceapi.DeviceTaintSelector {
	open := map[cluster.PoolID]bool{}
	for _, g := range t.d.gpus {
		if !t.closed(g) {
			open[cluster.PoolID{Driver: g.Driver, Pool: g.Pool}] = true
		}
	}
	parts := map[string]cluster.Subrequest{} // different ones
	for _, m := range t.movers {
		for i, claim := range m.w.Claims {
			for j, part := range cluster.Subrequests(&claim.Spec) {
				parts[fmt.Sprint(m.key, i, " ", j)] = part
			}
		}
	}
	accepted := func(s *resourceapi.ResourceSlice, device *resourceapi.Device) bool {
		for _, part := range parts {
			if ok, err := t.Matches(part, s, device); ok && err == nil {
				return true
			}
		}
		return false
	}
	freeing := map[cluster.PoolID]bool{}
	for _, g := range t.freed {
		freeing[cluster.PoolID{Driver: g.Driver, Pool: g.Pool}] = true
	}
	var freed, idle []resourceapi.DeviceTaintSelector
	pools := map[cluster.PoolID]bool{}
	for _, s := range cluster.Current(t.Slices) {
		id := cluster.PoolOf(s)
		for i := range s.Spec.Devices {
			device := &s.Spec.Devices[i]
			g := t.d.gpu(id.Driver, id.Pool, device.Name)
			if g == nil || g.Node == "" || !t.closed(g) || pools[id] || !accepted(s, device) {
				continue
			}
			selector := resourceapi.DeviceTaintSelector{Driver: &id.Driver, Pool: &id.Pool}
			if open[id] {
				selector.Device = &device.Name
			} else {
				pools[id] = true
			}
			if slices.Contains(t.freed, g) || !open[id] && freeing[id] {
				freed = append(freed, selector)
			} else {
				idle = append(idle, selector)
			}
		}
	}
	return append(freed, idle...)
}
