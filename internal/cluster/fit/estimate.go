// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Take is what a pod gets of one GPU.
type Take struct {
	GPU    *cluster.GPU
	Index  int     // of the GPU, among those of its node
	Device string  // a partition; "": the GPU
	Shares []int64 // of its capacities; nil: all of it
	Amount int64   // thousandths

	kind  *cluster.DeviceKind
	asked *asked
}

// of returns the use of the GPU with the take added.
func (t Take) of(u cluster.Use) cluster.Use {
	switch {
	case t.Device != "":
		u.Parts = min(cluster.Whole, u.Parts+max(1, t.Amount))
	case t.Shares == nil || len(t.Shares) != len(u.Consumed):
		u.Whole = true
	default:
		u.Consumed = slices.Clone(u.Consumed)
		for i, n := range t.Shares {
			u.Consumed[i] += n
		}
	}
	return u
}

// Node is a node while devices are given out on it. It is used for one node after the other, and while the view is
// locked: as the devices that cluster.View.Nodes yields.
type Node struct {
	// Takes are what Estimate has given out.
	Takes []Take
	// Unsure says that Estimate could not know.
	Unsure bool
	// Published keeps Estimate from giving out partitions of GPUs of which none are published.
	Published bool

	devices *cluster.NodeDevices
	uses    []cluster.Use // of each GPU
	saved   []cluster.Use // of the GPU of each take, before it
	taken   []string      // partitions and vGPUs that claims hold, or pods are about to get
	tries   int

	driver string
	values map[*resourceapi.DeviceConstraint][]string // of the devices that are given out
	under  [][]*resourceapi.DeviceConstraint          // of each take
}

// Reset begins with another node, where other pods are about to get something. nil: it has no devices.
func (n *Node) Reset(devices *cluster.NodeDevices, ahead []Take) {
	n.clear(devices)
	for _, g := range n.GPUs() {
		n.uses = append(n.uses, g.Use())
		if n.uses[len(n.uses)-1].Parts == 0 {
			continue
		}
		for _, h := range g.Held {
			n.taken = append(n.taken, h.Device)
		}
	}
	for _, t := range ahead {
		// A slice that was updated has other objects for the same GPUs.
		if i := slices.IndexFunc(n.GPUs(), func(g *cluster.GPU) bool {
			return g.Pool == t.GPU.Pool && g.Name == t.GPU.Name
		}); i >= 0 {
			t.Index = i
			n.add(t)
		}
	}
}

// Empty begins with another node, as if no claim held anything of it.
func (n *Node) Empty(devices *cluster.NodeDevices) {
	n.clear(devices)
	for _, g := range n.GPUs() {
		n.uses = append(n.uses, g.Unused())
	}
}

func (n *Node) clear(devices *cluster.NodeDevices) {
	n.devices, n.uses, n.saved, n.taken = devices, n.uses[:0], n.saved[:0], n.taken[:0]
	n.Takes, n.under = n.Takes[:0], n.under[:0]
	clear(n.values)
}

// GPUs returns the GPUs of the node.
func (n *Node) GPUs() []*cluster.GPU {
	if n.devices == nil {
		return nil
	}
	return n.devices.GPUs
}

// Idle returns how many thousandths of the GPU are left for pods with these tolerations.
func (n *Node) Idle(gpu int, tolerations []resourceapi.DeviceToleration) int64 {
	return n.devices.GPUs[gpu].Idle(n.uses[gpu], tolerations)
}

func (n *Node) add(t Take) {
	n.uses[t.Index] = t.of(n.uses[t.Index])
	if t.Device != "" {
		n.taken = append(n.taken, t.Device)
	}
}

// MaxTries is how many alternatives and devices are tried on a node in vain: users choose how many requests there are.
const MaxTries = 64

// Estimate gives out devices for all requests, into n.Takes, as the scheduler does. rank is the sum of the positions of
// the alternatives. ok is false if something does not fit, and also if that is not known after MaxTries.
func (n *Node) Estimate(d *Demand) (rank int, ok bool) {
	n.tries, n.Unsure, n.driver = 0, d.unsure, d.driver
	switch {
	case len(d.Requests) > MaxTries:
		n.Unsure = true
		return 0, false
	case d.tooMany:
		return 0, false
	}
	rank, ok = n.search(d.Requests)
	n.Unsure = n.Unsure || n.tries > MaxTries
	return rank, ok
}

// search tries the alternatives of the first request, each with those of the other requests.
func (n *Node) search(requests []Request) (rank int, ok bool) {
	if len(requests) == 0 {
		return 0, true
	}
	for position := range requests[0] {
		a := &requests[0][position]
		if rank, ok := n.give(a, 0, a.Count, requests[1:]); ok {
			return rank + position, true
		}
		if n.tries++; n.tries > MaxTries {
			return 0, false
		}
	}
	return 0, false
}

// give gives out as many devices as are missing for an alternative, from that place on, and those for the rest of the
// requests. The places of a node are its devices, and then each GPU for each kind of possible partition.
func (n *Node) give(a *Alternative, place int, missing int64, rest []Request) (rank int, ok bool) {
	if a.Foreign || missing == 0 {
		return n.search(rest)
	}
	if n.devices == nil {
		return 0, false
	}
	before := len(n.Takes)
	if a.All {
		if n.all(a) {
			rank, ok = n.search(rest)
		}
		if !ok {
			n.undo(before)
		}
		return rank, ok
	}
	for devices := n.devices.Devices; n.tries <= MaxTries; place++ {
		next := place
		if place < len(devices) {
			if _, fits := n.device(devices[place], a); !fits {
				continue
			}
			next++
		} else if like, i, ok := n.devices.Possible(place - len(devices)); !ok {
			break
		} else if !n.possible(like, i, a) {
			continue
		}
		if rank, ok := n.give(a, next, missing-1, rest); ok {
			return rank, true
		}
		n.undo(before)
		if len(rest) == 0 && len(a.Constraints) == 0 {
			return 0, false // another device would leave no more for this request
		}
		n.tries++
	}
	return 0, false
}

// all takes all devices that the alternative accepts.
func (n *Node) all(a *Alternative) bool {
	some := false
	for _, d := range n.devices.Devices {
		accepted, fits := n.device(d, a)
		if accepted && !fits {
			return false
		}
		some = some || accepted
	}
	return some
}

// device takes a device, other than a possible partition, if the alternative accepts it and it fits.
func (n *Node) device(d cluster.NodeDevice, a *Alternative) (accepted, fits bool) {
	shares, accepted := a.Takes[d.Kind]
	of := n.devices.GPUs[d.GPU]
	part := d.Device != of.Whole && d.Device != of.VM
	switch {
	case !accepted || part && !d.Exists():
		return false, false
	case !d.Admits(a.Tolerations) || part && !n.free(d.GPU, d.Name) || !part && !d.Kind.Room(n.uses[d.GPU], shares):
		return true, false
	}
	take := Take{GPU: of, Index: d.GPU, Shares: shares, Amount: cluster.Whole}
	switch {
	case part:
		take.Device, take.Amount = d.Name, amountOf(d.Device, of)
	case shares != nil:
		take.Amount = d.Kind.Share(shares)
	}
	return true, n.get(take, a, d.Device, d.Name)
}

// free reports whether nobody has the partition of the GPU, or all of that, or shares of it.
func (n *Node) free(i int, device string) bool {
	u := n.uses[i]
	return !u.Whole && !slices.ContainsFunc(u.Consumed, func(c int64) bool { return c > 0 }) &&
		!slices.Contains(n.taken, device)
}

// amountOf returns how much of a GPU a partition is, in thousandths.
func amountOf(d *cluster.Device, of *cluster.GPU) int64 {
	return d.Kind.Capacity("memory") * cluster.Whole / max(1, of.Memory())
}

// possible takes a possible partition, or vGPU, of the GPU. like is one of the kind.
func (n *Node) possible(like *cluster.Device, i int, a *Alternative) bool {
	g := n.devices.GPUs[i]
	if _, accepted := a.Takes[like.Kind]; !accepted || like.Kind.Product() != g.Product() ||
		n.Published && !PublishesPossible(g) {
		return false
	}
	var left cluster.Counters
	for _, slot := range g.Slots(gpu.PartitionProfile(like.Name)) {
		name := g.Name + slot.Suffix
		if !n.free(i, name) || !g.AdmitsPart(name, a.Tolerations) {
			continue
		}
		if left == nil {
			left = g.Left(n.taken)
		}
		if left.Suffice(slot.Consumes) &&
			n.get(Take{GPU: g, Index: i, Device: name, Amount: amountOf(like, g)}, a, like, name) {
			return true
		}
	}
	return false
}

// PublishesPossible reports whether the node publishes possible partitions of the GPU.
func PublishesPossible(g *cluster.GPU) bool {
	return slices.ContainsFunc(g.Partitions, func(d *cluster.Device) bool { return !d.Exists() })
}

// get adds a take of the pod, unless a constraint of the alternative forbids the device, which is of the kind of like.
func (n *Node) get(t Take, a *Alternative, like *cluster.Device, device string) bool {
	for i, c := range a.Constraints {
		if !n.meets(c, t.GPU, like, device) {
			n.forget(a.Constraints[:i])
			return false
		}
	}
	n.saved, n.under = append(n.saved, n.uses[t.Index]), append(n.under, a.Constraints)
	t.kind, t.asked = like.Kind, a.asked
	n.add(t)
	n.Takes = append(n.Takes, t)
	return true
}

// meets reports whether the constraint allows the device, and notes its value then. What is not known is allowed.
func (n *Node) meets(c *resourceapi.DeviceConstraint, g *cluster.GPU, like *cluster.Device, device string) bool {
	value, known := "", false
	if of := cmp.Or(c.MatchAttribute, c.DistinctAttribute); of != nil { // SlimClaim may have dropped it
		value, known = g.Attribute(like, device, *of, n.driver)
	}
	others := n.values[c]
	switch {
	case !known:
		n.Unsure = true
	case value == "" || c.MatchAttribute != nil && slices.ContainsFunc(others, func(other string) bool {
		return other != "" && other != value
	}) ||
		c.DistinctAttribute != nil && slices.Contains(others, value):
		return false
	}
	if n.values == nil {
		n.values = map[*resourceapi.DeviceConstraint][]string{}
	}
	n.values[c] = append(others, value)
	return true
}

// forget forgets the last value of each of the constraints.
func (n *Node) forget(all []*resourceapi.DeviceConstraint) {
	for _, c := range all {
		n.values[c] = n.values[c][:len(n.values[c])-1]
	}
}

// undo gives back all but the first takes.
func (n *Node) undo(first int) {
	for i := len(n.Takes) - 1; i >= first; i-- {
		t := n.Takes[i]
		n.uses[t.Index] = n.saved[i]
		if t.Device != "" {
			n.taken = n.taken[:len(n.taken)-1]
		}
		n.forget(n.under[i])
	}
	n.Takes, n.saved, n.under = n.Takes[:first], n.saved[:first], n.under[:first]
}
