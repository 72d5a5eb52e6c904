// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// asked is what a pod asks for.
type asked struct {
	cpu      int64 // thousandths of a core
	requests []request
	claims   []types.NamespacedName // that are pending
	extended bool                   // the scheduler makes a claim for the pod
}

// request is a request for devices. The scheduler takes the first alternative that fits.
type request []alternative

// alternative is a request for devices of the driver, or of another one.
type alternative struct {
	foreign bool // devices of another driver, or of nobody
	all     bool // every device of the node that is accepted
	count   int64
	takes   map[*cluster.DeviceKind][]int64 // of each accepted kind; nil: all of the device
}

// ask returns what the pod asks for. Claims that have devices already, those of other drivers and requests with admin
// access take nothing.
func ask(ctx context.Context, v *cluster.View, pod *corev1.Pod) asked {
	resources := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	a := asked{cpu: resources.Cpu().MilliValue()}
	kinds := v.Kinds()
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // it is not created yet, or not needed
		}
		key := types.NamespacedName{Namespace: pod.Namespace, Name: *name}
		// The scheduler may have read a new claim earlier. Without it, the pod would be scored as if it wanted no GPU.
		claim, _, known := v.Pending(key)
		for ; !known && ctx.Err() == nil; claim, _, known = v.Pending(key) {
			time.Sleep(5 * time.Millisecond)
		}
		if claim == nil || slices.Contains(a.claims, key) {
			continue
		}
		before := len(a.requests)
		for _, r := range claim.Spec.Devices.Requests {
			if alternatives := ofRequest(ctx, v, kinds, r); len(alternatives) > 0 {
				a.requests = append(a.requests, alternatives)
			}
		}
		if len(a.requests) > before { // others are not followed when they have devices
			a.claims = append(a.claims, key)
		}
		if len(a.requests) > maxTries {
			return a // it fits nowhere; whoever asks decides how many there are
		}
	}
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		count := resources[name]
		if !strings.Contains(string(name), "/") || count.Value() < 1 {
			continue
		}
		if class, ok := v.ExtendedClass(string(name)); ok {
			a.extended = true
			a.requests = append(a.requests, request{accepted(ctx, v, kinds, resourceapi.ExactDeviceRequest{
				DeviceClassName: class, Count: min(count.Value(), resourceapi.AllocationResultsMaxSize)})})
		}
	}
	return a
}

// ofRequest returns the alternatives of the request; none if it asks for nothing of the driver.
func ofRequest(ctx context.Context, v *cluster.View, kinds []*cluster.DeviceKind, r resourceapi.DeviceRequest) request {
	if e := r.Exactly; e != nil {
		if ptr.Deref(e.AdminAccess, false) || !v.Ours(e.DeviceClassName) {
			return nil
		}
		return request{accepted(ctx, v, kinds, *e)}
	}
	var all request
	ours := false
	for _, sub := range r.FirstAvailable {
		a := alternative{foreign: true}
		if v.Ours(sub.DeviceClassName) {
			ours = true
			a = accepted(ctx, v, kinds, resourceapi.ExactDeviceRequest{DeviceClassName: sub.DeviceClassName,
				Selectors: sub.Selectors, AllocationMode: sub.AllocationMode, Count: sub.Count, Capacity: sub.Capacity})
		}
		all = append(all, a)
	}
	if !ours {
		return nil
	}
	return all
}

// accepted finds the kinds of devices that a request accepts.
func accepted(ctx context.Context, v *cluster.View, kinds []*cluster.DeviceKind,
	r resourceapi.ExactDeviceRequest) alternative {
	a := alternative{all: r.AllocationMode == resourceapi.DeviceAllocationModeAll, count: max(1, r.Count),
		takes: map[*cluster.DeviceKind][]int64{}}
	class, ok := v.Class(r.DeviceClassName)
	if !ok {
		return a
	}
	capacity := cmp.Or(r.Capacity, &resourceapi.CapacityRequirements{})
	for _, kind := range kinds {
		if kind.Has(capacity.Requests) && v.AcceptsAll(ctx, kind, class.Spec.Selectors) &&
			v.AcceptsAll(ctx, kind, r.Selectors) {
			a.takes[kind] = kind.Takes(capacity.Requests)
		}
	}
	return a
}

// take is what a pod gets of one GPU.
type take struct {
	gpu    *cluster.GPU
	device string  // a partition; "": the GPU
	shares []int64 // of its capacities; nil: all of it
	amount int64   // thousandths
}

// of returns the use of the GPU with the take added.
func (t take) of(u cluster.Use) cluster.Use {
	switch {
	case t.device != "":
		u.Parts = min(placement.Whole, u.Parts+max(1, t.amount))
	case t.shares == nil || len(t.shares) != len(u.Consumed):
		u.Whole = true
	default:
		u.Consumed = slices.Clone(u.Consumed)
		for i, n := range t.shares {
			u.Consumed[i] += n
		}
	}
	return u
}

// node is a node while devices are predicted on it. It is used for one node after the other.
type node struct {
	devices *cluster.NodeDevices
	uses    []cluster.Use // of each GPU
	saved   []cluster.Use // before each alternative that is tried
	taken   []string      // existing partitions that pods are about to get
	gpus    []placement.GPU
	takes   []take
	scores  []placement.Take // of the takes
	tries   int
}

// reset begins with another node, with what pods are about to get there.
func (n *node) reset(devices *cluster.NodeDevices, ahead []take) {
	*n = node{devices: devices, uses: n.uses[:0], saved: n.saved[:0], taken: n.taken[:0], gpus: n.gpus[:0],
		takes: n.takes[:0], scores: n.scores[:0]}
	if devices == nil {
		return
	}
	for _, g := range devices.GPUs {
		n.uses = append(n.uses, g.Use())
	}
	for _, t := range ahead {
		// A slice that was updated has other objects for the same GPUs.
		if i := slices.IndexFunc(devices.GPUs, func(g *cluster.GPU) bool {
			return g.Pool == t.gpu.Pool && g.Name == t.gpu.Name
		}); i >= 0 {
			n.add(i, t)
		}
	}
	for i, g := range devices.GPUs {
		n.gpus = append(n.gpus, placement.GPU{Model: g.Product(), Idle: g.Idle(n.uses[i])})
	}
}

func (n *node) add(i int, t take) {
	n.uses[i] = t.of(n.uses[i])
	if t.device != "" {
		n.taken = append(n.taken, t.device)
	}
}

// maxTries is how many alternatives are tried on a node: users choose how many there are.
const maxTries = 64

// predict finds the devices that the requests get on the node, into n.takes and n.scores. rank is the sum of the
// positions of the alternatives. ok is false if something does not fit.
func (n *node) predict(requests []request) (rank int, ok bool) {
	n.tries = 0
	return n.search(requests)
}

// search tries the alternatives of the first request, each with those of the other requests.
func (n *node) search(requests []request) (rank int, ok bool) {
	if len(requests) == 0 {
		return 0, true
	}
	for position, a := range requests[0] {
		if n.tries++; n.tries > maxTries {
			return 0, false
		}
		before := n.save()
		if n.serve(a) {
			if rank, ok := n.search(requests[1:]); ok {
				return rank + position, true
			}
		}
		n.undo(before)
	}
	return 0, false
}

// serve takes the devices for one alternative. What it has taken stays, also if not all fit.
func (n *node) serve(a alternative) bool {
	if a.foreign {
		return true
	}
	if n.devices == nil {
		return false
	}
	before, missing := len(n.takes), a.count
	for _, d := range n.devices.Devices {
		if missing == 0 && !a.all {
			return true
		}
		shares, accepted := a.takes[d.Kind]
		if of := n.devices.GPUs[d.GPU]; !accepted || d.Device != of.Whole && d.Device != of.VM {
			continue
		}
		fits := !d.Tainted && d.Kind.Room(n.uses[d.GPU], shares)
		switch {
		case fits:
			amount := int64(placement.Whole)
			if shares != nil {
				amount = d.Kind.Share(shares)
			}
			n.get(d.GPU, take{gpu: n.devices.GPUs[d.GPU], shares: shares, amount: amount})
			missing--
		case a.all:
			return false
		}
	}
	if a.all {
		return len(n.takes) > before
	}
	for i := range n.devices.GPUs {
		for missing > 0 && n.partition(i, a) {
			missing--
		}
	}
	return missing == 0
}

// partition takes a partition of the GPU: one that exists, or one that the driver would create. Whether there is room
// is judged by memory.
func (n *node) partition(i int, a alternative) bool {
	g, u := n.devices.GPUs[i], n.uses[i]
	possible := false
	if u.Whole || slices.ContainsFunc(u.Consumed, func(c int64) bool { return c > 0 }) {
		return false
	}
	memory := max(1, g.Memory())
	for _, d := range g.Partitions {
		possible = possible || !d.Exists()
		_, accepted := a.takes[d.Kind]
		held := func(h cluster.Held) bool { return h.Device == d.Name }
		if !accepted || !d.Exists() || d.Tainted || slices.ContainsFunc(g.Held, held) ||
			slices.Contains(n.taken, d.Name) {
			continue
		}
		n.get(i, take{gpu: g, device: d.Name, amount: d.Kind.Capacity("memory") * placement.Whole / memory})
		return true
	}
	if !possible || g.Tainted() {
		return false
	}
	for _, d := range n.devices.Devices { // one of each kind is known, perhaps of another GPU
		if _, accepted := a.takes[d.Kind]; !accepted || !gpu.IsPart(d.Name) || d.Exists() ||
			d.Kind.Product() != g.Product() {
			continue
		}
		amount := d.Kind.Capacity("memory") * placement.Whole / memory
		if u.Parts+amount <= placement.Whole {
			n.get(i, take{gpu: g, device: "possible", amount: amount})
			return true
		}
	}
	return false
}

// get adds a take of the pod.
func (n *node) get(i int, t take) {
	n.add(i, t)
	n.takes = append(n.takes, t)
	n.scores = append(n.scores, placement.Take{GPU: i, Amount: t.amount})
}

// state is what a node had before an alternative was tried: lengths of n.saved, n.taken and n.takes.
type state struct{ saved, taken, takes int }

// save remembers the state of the node.
func (n *node) save() state {
	before := state{len(n.saved), len(n.taken), len(n.takes)}
	n.saved = append(n.saved, n.uses...)
	return before
}

// undo gives back what an alternative has taken.
func (n *node) undo(before state) {
	copy(n.uses, n.saved[before.saved:])
	n.saved, n.taken = n.saved[:before.saved], n.taken[:before.taken]
	n.takes, n.scores = n.takes[:before.takes], n.scores[:before.takes]
}
