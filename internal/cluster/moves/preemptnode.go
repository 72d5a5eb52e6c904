// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
)

// unit is a pod, or are pods that are evicted together.
type unit struct {
	pods     []*corev1.Pod
	priority int32
	lost     loss
	budgets  []int    // of each pod that has one
	devices  int64    // that claims of its pods hold
	parts    []string // the counter sets of these devices, or their names
}

// candidateDevice is a device of a node.
type candidateDevice struct {
	*resourceapi.Device
	slice    *resourceapi.ResourceSlice
	part     string // its counter set, or its name; "": it has several counter sets
	held     []holding
	accepted *bool // by a request of the pod. nil: not compared yet
}

// holding is what a claim holds of a device.
type holding struct {
	claim  *resourceapi.ResourceClaim
	result resourceapi.DeviceRequestAllocationResult
}

// nodePlan finds the victims of one node.
type nodePlan struct {
	*preemptor
	own        *schedule.Question
	node       *corev1.Node
	group      *schedule.Group
	used       corev1.ResourceList // by all pods that are not ending
	units      []*unit
	candidates []*candidateDevice
	plugin     bool     // a device plugin of the node offers an extended resource of the pod
	shares     bool     // one of them can be shared
	need       int64    // devices that the node has too few of without victims, at least
	least      *victims // costs no more than any set
}

// addDevices fills in what the pods hold, and how many devices are missing. Where a device can be shared, none may be.
func (n *nodePlan) addDevices() {
	devices := map[allocator.DeviceID]*candidateDevice{}
	for _, slice := range cluster.Current(n.group.Slices) {
		for i := range slice.Spec.Devices {
			d := &candidateDevice{slice: slice, Device: &slice.Spec.Devices[i]}
			id := allocator.NameOf(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
			switch len(d.ConsumesCounters) {
			case 0:
				d.part = id.String()
			case 1:
				d.part = fmt.Sprint(cluster.PoolOf(slice), d.ConsumesCounters[0].CounterSet)
			}
			devices[id], n.candidates = d, append(n.candidates, d)
			n.shares = n.shares || ptr.Deref(d.AllowMultipleAllocations, false) && n.accepts(d)
		}
	}
	users := map[types.UID]*unit{}
	for _, u := range n.units {
		for _, pod := range u.pods {
			users[pod.UID] = u
		}
	}
	for _, claim := range n.group.Holders {
		for _, r := range cluster.Results(claim) {
			d := devices[allocator.NameOf(r.Driver, r.Pool, r.Device)]
			if d == nil {
				continue // it is not published any more
			}
			d.held = append(d.held, holding{claim, r})
			for _, of := range claim.Status.ReservedFor {
				if u := users[of.UID]; u != nil {
					u.devices++
					u.parts = append(u.parts, d.part)
				}
			}
		}
	}
	n.need = n.lacking(nil)
	if n.shares { // what holds one device may keep several requests from it
		n.need = min(n.need, 1)
	}
}

// lacking returns how many devices are missing at least once these pods are gone. It costs less than the allocator.
func (n *nodePlan) lacking(out map[types.UID]bool) int64 {
	if n.plugin {
		return 0
	}
	free := int64(0)
	for _, d := range n.candidates {
		switch several := ptr.Deref(d.AllowMultipleAllocations, false); {
		case several && n.hasRoom(d, out) && n.accepts(d):
			return 0
		case !several && !n.isHeld(d, out) && n.accepts(d):
			free++
		}
		if free >= n.wanted {
			return 0
		}
	}
	return n.wanted - free
}

// isHeld reports whether a claim still holds the device once these pods are gone.
func (n *nodePlan) isHeld(d *candidateDevice, out map[types.UID]bool) bool {
	return slices.ContainsFunc(d.held, func(h holding) bool { return !n.hasEnded(h.claim, out) })
}

// hasRoom reports whether the device may have enough of each capacity for one of the requests once these pods are gone.
func (n *nodePlan) hasRoom(d *candidateDevice, out map[types.UID]bool) bool {
	return slices.ContainsFunc(n.parts, func(part cluster.Subrequest) bool {
		for name, of := range d.Capacity {
			want := schedule.QuantityOf(part, name)
			if want == nil && of.RequestPolicy != nil {
				want = of.RequestPolicy.Default
			}
			if want == nil {
				continue
			}
			left := of.Value.DeepCopy()
			for _, h := range d.held {
				if used, ok := h.result.ConsumedCapacity[name]; ok && !n.hasEnded(h.claim, out) {
					left.Sub(used)
				}
			}
			if left.Cmp(*want) < 0 {
				return false
			}
		}
		return true
	})
}

// bound fills in the least cost of victims. It reports whether there may be any.
func (n *nodePlan) bound() bool {
	devices, priorities, lost := make([]int64, len(n.units)), make([]int32, len(n.units)), make([]loss, len(n.units))
	for i, u := range n.units {
		devices[i], priorities[i], lost[i] = u.devices, u.priority, u.lost
	}
	slices.Sort(priorities)
	slices.Sort(lost)
	slices.Sort(devices)
	slices.Reverse(devices)
	count, need := 0, n.need
	for count < len(devices) && (need > 0 || count == 0) {
		need -= devices[count]
		count++
	}
	if count == 0 || need > 0 {
		return false
	}
	n.least = &victims{priority: priorities[count-1]}
	for _, one := range lost[:count] {
		n.least.lost += one
	}
	return true
}

// ended returns the claims that nobody uses once these pods are gone.
func (n *nodePlan) ended(out map[types.UID]bool) map[types.UID]bool {
	ended := map[types.UID]bool{}
	for _, claim := range n.group.Holders {
		if n.hasEnded(claim, out) {
			ended[claim.UID] = true
		}
	}
	return ended
}

// hasEnded reports whether nobody uses the claim once these pods are gone. Kubernetes frees the claim of a pod that has
// ended, or that does not exist any more, a moment later.
func (n *nodePlan) hasEnded(claim *resourceapi.ResourceClaim, out map[types.UID]bool) bool {
	return !slices.ContainsFunc(claim.Status.ReservedFor, func(of resourceapi.ResourceClaimConsumerReference) bool {
		isGone := of.Resource == "pods" && of.APIGroup == "" && !n.exists[of.UID]
		if owner := metav1.GetControllerOfNoCopy(claim); n.replaced[of.UID] && (owner == nil || owner.UID != of.UID) {
			return !isGone
		}
		return !out[of.UID] && !n.gone[of.UID] && !isGone
	})
}

// fits returns where the pod fits on the node without these, or nil.
func (n *nodePlan) fits(without []*unit) (*schedule.Placement, error) {
	out, used := map[types.UID]bool{}, n.used
	for _, u := range without {
		for _, pod := range u.pods {
			out[pod.UID] = true
			if pod.Spec.NodeName == n.node.Name {
				used = subtract(used, schedule.RequestsOf(pod))
			}
		}
	}
	for _, r := range n.repelled {
		if !out[r.pod] && schedule.HasLabel(n.node, r.key, r.value) {
			return nil, nil
		}
	}
	for _, pod := range n.onNodes[n.node.Name] {
		if !out[pod.UID] && !n.gone[pod.UID] && samePorts(n.pod, pod) {
			return nil, nil
		}
	}
	if n.lacking(out) > 0 {
		return nil, nil
	}
	n.own.Used[n.node.Name] = used
	n.own.Asked, n.own.MaxAsked = n.Asked, n.MaxAsked
	w := *n.Workload
	w.Ended = n.ended(out)
	n.own.Starts = len(without) > 0 // nobody ends for a pod that would not start
	found, ok, err := n.own.FitsOn(&w, n.group)
	n.Asked = n.own.Asked
	if !ok || err != nil {
		return nil, err
	}
	return &found, nil
}

// cheapest returns the cheapest victims if they cost less than the best known ones, otherwise nil.
func (n *nodePlan) cheapest(best *victims) (*victims, error) {
	var found *victims
	for _, domain := range n.domains() {
		better, err := n.of(domain, cmp.Or(found, best))
		found = cmp.Or(better, found)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// domains returns the sets of pods that are searched one by one. All victims of a single device hold parts of the same
// one, if nothing but devices is missing.
func (n *nodePlan) domains() [][]*unit {
	if n.plugin || n.lacksMore() {
		return [][]*unit{n.units}
	}
	// Only devices are missing, so the end of pods without any helps nobody.
	units := slices.DeleteFunc(slices.Clone(n.units), func(u *unit) bool { return u.devices == 0 })
	whole := [][]*unit{units}
	switch {
	case len(units) == 0:
		return nil
	case n.wanted != 1 || len(n.parts) != 1:
		return whole
	}
	var names []string
	parts := map[string][]*unit{}
	for _, u := range units {
		slices.Sort(u.parts)
		for _, part := range slices.Compact(slices.Clone(u.parts)) {
			if part == "" {
				return whole // the device has several counter sets
			}
			if parts[part] == nil {
				names = append(names, part)
			}
			parts[part] = append(parts[part], u)
		}
	}
	var all [][]*unit
	for _, name := range names {
		all = append(all, parts[name])
	}
	return all
}

// lacksMore reports whether something else than devices is missing on the node.
func (n *nodePlan) lacksMore() bool {
	n.own.Used[n.node.Name] = n.used
	return len(n.own.Short(n.pod, n.node)) > 0 || len(n.repelled) > 0 ||
		slices.ContainsFunc(n.onNodes[n.node.Name], func(pod *corev1.Pod) bool {
			return !n.gone[pod.UID] && samePorts(n.pod, pod)
		})
}

// of returns the cheapest victims among the units if they cost less than the best known ones, otherwise nil.
func (n *nodePlan) of(units []*unit, best *victims) (*victims, error) {
	units = slices.Clone(units)
	slices.SortStableFunc(units, func(a, b *unit) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.lost, b.lost))
	})
	if best != nil && n.boundOf(units).compare(best) >= 0 {
		return nil, nil
	}
	if found, err := n.fits(units); found == nil || err != nil {
		return nil, err
	}
	for i, u := range units {
		if best != nil && u.priority > best.priority {
			break
		}
		if i+1 < len(units) && units[i+1].priority == u.priority {
			continue
		}
		found, err := n.cheapestOf(units[:i+1], best)
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// boundOf returns a cost that no victims among the units, the lowest priority first, are below. If no unit alone leaves
// enough devices, that is the cost of two.
func (n *nodePlan) boundOf(units []*unit) *victims {
	lost := make([]loss, len(units))
	alone := false
	for i, u := range units {
		out := map[types.UID]bool{}
		for _, pod := range u.pods {
			out[pod.UID] = true
		}
		lost[i], alone = u.lost, alone || n.lacking(out) <= 0
	}
	slices.Sort(lost)
	least := &victims{priority: units[0].priority, lost: lost[0]}
	if !alone && len(units) > 1 {
		least.priority, least.lost = units[1].priority, lost[0]+lost[1]
	}
	return least
}

// cheapestOf returns the cheapest victims among units of which the last one has the highest priority. It takes all of
// them and spares one after the other, then tries the sets that cost less.
func (n *nodePlan) cheapestOf(units []*unit, best *victims) (*victims, error) {
	if found, err := n.fits(units); found == nil || err != nil {
		return nil, err
	}
	order := slices.Clone(units)
	slices.SortStableFunc(order, func(a, b *unit) int {
		return cmp.Or(cmp.Compare(len(b.budgets), len(a.budgets)), cmp.Compare(b.priority, a.priority),
			cmp.Compare(b.lost, a.lost))
	})
	taken := units
	for _, u := range order {
		without := slices.DeleteFunc(slices.Clone(taken), func(of *unit) bool { return of == u })
		found, err := n.fits(without)
		if err != nil {
			return nil, err
		}
		if found != nil {
			taken = without
		}
	}
	var found *victims
	if len(taken) == 0 {
		return nil, nil // it fits, although the allocator was too slow to say so
	}
	if n.budgets.allow(taken) {
		if v := n.victimsOf(taken); best == nil || v.compare(best) < 0 {
			found, best = v, v
		}
	}
	limit := n.Asked + exactAsked
	for _, set := range n.cheaper(units, best) {
		if n.Asked >= limit {
			break
		}
		fits, err := n.fits(set)
		if err != nil {
			return found, err
		}
		if fits != nil {
			return n.victimsOf(set), nil
		}
	}
	return found, nil
}

// cheaper returns the sets of units that budgets allow and that cost less than the best, the cheapest first. There are
// at most maxSets, those with few units.
func (n *nodePlan) cheaper(units []*unit, best *victims) [][]*unit {
	var all [][]*unit
	highest := units[len(units)-1].priority
	last := [][]*unit{nil} // sets of the same size, of ascending units
	next := map[*unit]int{}
	for i, u := range units {
		next[u] = i + 1
	}
	for len(last) > 0 && len(all) < maxSets {
		var larger [][]*unit
		for _, set := range last {
			from := 0
			if len(set) > 0 {
				from = next[set[len(set)-1]]
			}
			for _, u := range units[from:] {
				with := append(slices.Clone(set), u)
				v := n.victimsOf(with)
				if best != nil && v.lost >= best.lost && best.priority <= highest || !n.budgets.allow(with) {
					continue
				}
				larger = append(larger, with)
				if v.priority == highest && (best == nil || v.compare(best) < 0) { // others were tried before
					all = append(all, with)
				}
			}
			if len(larger) > maxSets {
				break
			}
		}
		last = larger
	}
	slices.SortStableFunc(all, func(a, b []*unit) int { return n.victimsOf(a).compare(n.victimsOf(b)) })
	return all
}

// victims are units that are evicted, and what that costs.
type victims struct {
	on       *nodePlan
	units    []*unit
	priority int32 // the highest one
	lost     loss
}

func (n *nodePlan) victimsOf(units []*unit) *victims {
	v := &victims{on: n, units: units, priority: units[0].priority}
	for _, u := range units {
		v.priority, v.lost = max(v.priority, u.priority), v.lost+u.lost
	}
	return v
}

func (v *victims) compare(o *victims) int {
	return cmp.Or(cmp.Compare(v.priority, o.priority), cmp.Compare(v.lost, o.lost))
}

// preemption returns the victims as an answer.
func (v *victims) preemption() *Preemption {
	answer := &Preemption{Node: v.on.node.Name}
	for _, u := range v.units {
		answer.Victims = append(answer.Victims, u.pods...)
	}
	slices.SortStableFunc(answer.Victims, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(len(v.on.budgets.of(b)), len(v.on.budgets.of(a))),
			cmp.Compare(priorityOf(b), priorityOf(a)), waiting.StartOf(a).Compare(waiting.StartOf(b)))
	})
	v.on.MaxAsked, v.on.own.MaxAsked = 0, 0 // it fits
	found, err := v.on.fits(v.units)
	if err != nil || found == nil {
		return answer
	}
	token := PreemptionToken(v.on.pod.UID)
	needed := map[allocator.DeviceID]bool{} // by claims that would not get the device if it were kept
	for i := range found.Results {
		for _, r := range found.Results[i].Devices.Results {
			id := allocator.NameOf(r.Driver, r.Pool, r.Device)
			if len(cluster.Untolerated([]resourceapi.DeviceTaint{token}, r.Tolerations)) == 0 {
				answer.Hold = append(answer.Hold, v.on.beside(id)...)
			} else {
				needed[id] = true
			}
		}
	}
	answer.Hold = slices.DeleteFunc(answer.Hold, func(id allocator.DeviceID) bool { return needed[id] })
	slices.SortFunc(answer.Hold, func(a, b allocator.DeviceID) int { return cmp.Compare(a.String(), b.String()) })
	answer.Hold = slices.Compact(answer.Hold)
	return answer
}

// beside returns the device, and those that use the same counters.
func (n *nodePlan) beside(of allocator.DeviceID) []allocator.DeviceID {
	all, sets := []allocator.DeviceID{of}, map[string]bool{}
	for _, keep := range []bool{false, true} {
		for _, slice := range cluster.Current(n.group.Slices) {
			for _, d := range slice.Spec.Devices {
				id := allocator.NameOf(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
				for _, use := range d.ConsumesCounters {
					switch name := fmt.Sprint(cluster.PoolOf(slice), use.CounterSet); {
					case id == of:
						sets[name] = true
					case keep && sets[name]:
						all = append(all, id)
					}
				}
			}
		}
	}
	return all
}
