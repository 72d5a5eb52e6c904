// SPDX-License-Identifier: Apache-2.0

// Package view is what the cluster has of GPUs, and who holds them, as the API server tells it.
package view

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// View follows the slices of one driver, and the claims and device classes of the cluster. It answers without asking anybody.
type View struct {
	driver    string
	selectors *cel.Cache
	answers   *lru.Cache // question → answer

	mu     sync.RWMutex
	kinds  map[string]*Kind              // all that were ever seen, by id
	count  map[string]int                // published devices of each
	slices map[string][]device           // by the name of the slice
	gpus   map[id]*GPU                   // those that are published as whole GPUs
	claims map[types.UID]*Claim          // those that hold something of the driver, and all that wait
	held   map[id]map[types.UID]struct{} // by physical GPU

	classes map[string]*resourceapi.DeviceClass
	ours    map[string]bool // which of them are for devices of the driver

	partitions map[partitionKind]*Kind // the last that was seen of each
	largest    map[string]int64        // memory of the largest partition that was seen of each model
}

// id is a physical GPU.
type id struct{ pool, gpu string }

// device is one that is published.
type device struct {
	id      id
	name    string
	kind    *Kind
	tainted bool
	static  bool // a partition that somebody else has made, not one of those that are possible
}

// GPU is a whole GPU that is published, and what is held of it.
type GPU struct {
	Node, Name string
	Kind       *Kind
	Tainted    bool // new pods are kept away
	// Holders are the claims that have something of it, also a partition.
	Holders []*Claim

	pool, slice string
}

// Claim is one that holds devices of the driver, or waits for some.
type Claim struct {
	Namespace, Name string
	UID             types.UID
	Made            time.Time
	// Held are its devices. Empty: it waits.
	Held []Held
	// Wants are the requests of a claim that waits, with the classes that would do.
	Wants []Want
}

// Held is one device that a claim has.
type Held struct {
	Pool, Device string
	Consumed     map[resourceapi.QualifiedName]int64 // of a device that can be shared
}

// Want is a request of a claim that waits.
type Want struct {
	Classes []string
	Count   int64
}

// How many compiled selectors are kept, and how many of their answers.
const (
	cachedSelectors = 1000
	cachedAnswers   = 20000
)

// New is a view of a cluster of which nothing is known yet.
func New(driver string) *View {
	return &View{
		driver:    driver,
		selectors: cel.NewCache(cachedSelectors, cel.Features{EnableConsumableCapacity: true}),
		answers:   lru.New(cachedAnswers),
		kinds:     map[string]*Kind{}, count: map[string]int{}, slices: map[string][]device{},
		gpus: map[id]*GPU{}, claims: map[types.UID]*Claim{}, held: map[id]map[types.UID]struct{}{},
		classes: map[string]*resourceapi.DeviceClass{}, ours: map[string]bool{}, partitions: map[partitionKind]*Kind{}, largest: map[string]int64{},
	}
}

// Driver is the driver whose devices it knows.
func (v *View) Driver() string { return v.driver }

// SetSlice takes what a slice says now.
func (v *View) SetSlice(s *resourceapi.ResourceSlice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(s.Name)
	if s.Spec.Driver != v.driver {
		return
	}
	var all []device
	for _, d := range s.Spec.Devices {
		kind := v.intern(d)
		at := id{s.Spec.Pool.Name, gpu.ParentName(d.Name)}
		all = append(all, device{id: at, name: d.Name, kind: kind, tainted: keepsAway(d.Taints), static: len(d.ConsumesCounters) == 0})
		v.count[kind.id]++
		if kind.Type() == gpu.TypeGPU {
			v.gpus[at] = &GPU{Node: ptr.Deref(s.Spec.NodeName, ""), Name: d.Name, Kind: kind, Tainted: keepsAway(d.Taints), pool: at.pool, slice: s.Name}
		}
	}
	v.slices[s.Name] = all
}

// DeleteSlice forgets a slice.
func (v *View) DeleteSlice(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(name)
}

func (v *View) drop(slice string) {
	for _, d := range v.slices[slice] {
		if v.count[d.kind.id]--; v.count[d.kind.id] == 0 {
			delete(v.count, d.kind.id)
		}
		// A GPU may be in another slice by now: that of a node of the same name, or the next of the pool.
		if g := v.gpus[d.id]; d.name == d.id.gpu && g != nil && g.slice == slice {
			delete(v.gpus, d.id)
		}
	}
	delete(v.slices, slice)
}

// intern is the kind of the device, the same for all of it.
func (v *View) intern(d resourceapi.Device) *Kind {
	key := kindOf(d)
	kind, ok := v.kinds[key]
	if !ok {
		kind = &Kind{id: key, Device: resourceapi.Device{Attributes: d.Attributes, Capacity: d.Capacity, AllowMultipleAllocations: d.AllowMultipleAllocations}}
		v.kinds[key] = kind
	}
	if kind.Type() == gpu.TypeMIG {
		v.partitions[partitionKind{kind.Product(), gpu.PartitionProfile(d.Name)}] = kind
		v.largest[kind.Product()] = max(v.largest[kind.Product()], kind.Capacity("memory"))
	}
	return kind
}

func keepsAway(taints []resourceapi.DeviceTaint) bool {
	return slices.ContainsFunc(taints, func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone })
}

// SetClaim takes what a claim has or wants now.
func (v *View) SetClaim(c *resourceapi.ResourceClaim) {
	claim := &Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID, Made: c.CreationTimestamp.Time}
	if c.Status.Allocation == nil {
		claim.Wants = wants(c)
	} else {
		claim.Held = held(c, v.driver)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(c.UID)
	if len(claim.Held)+len(claim.Wants) == 0 {
		return
	}
	v.claims[c.UID] = claim
	for _, h := range claim.Held {
		at := id{h.Pool, gpu.ParentName(h.Device)}
		if v.held[at] == nil {
			v.held[at] = map[types.UID]struct{}{}
		}
		v.held[at][c.UID] = struct{}{}
	}
}

// DeleteClaim forgets a claim.
func (v *View) DeleteClaim(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(uid)
}

func (v *View) forget(claim types.UID) {
	before, ok := v.claims[claim]
	if !ok {
		return
	}
	for _, h := range before.Held {
		at := id{h.Pool, gpu.ParentName(h.Device)}
		if delete(v.held[at], claim); len(v.held[at]) == 0 {
			delete(v.held, at)
		}
	}
	delete(v.claims, claim)
}

// SetClass takes what a device class says now.
func (v *View) SetClass(c *resourceapi.DeviceClass) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.classes[c.Name] = c
	v.ours[c.Name] = selects(c, v.driver)
}

// DeleteClass forgets a device class.
func (v *View) DeleteClass(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.classes, name)
	delete(v.ours, name)
}

// Class finds a device class. It is not to be changed.
func (v *View) Class(name string) (*resourceapi.DeviceClass, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	class, ok := v.classes[name]
	return class, ok
}

// Ours says whether a class is for devices of the driver.
func (v *View) Ours(class string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.ours[class]
}

// selects says whether a selector of the class names the driver.
func selects(class *resourceapi.DeviceClass, driver string) bool {
	quoted := []string{"'" + driver + "'", `"` + driver + `"`}
	return slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && slices.ContainsFunc(quoted, func(q string) bool { return strings.Contains(s.CEL.Expression, q) })
	})
}

// held leaves out who only looks after a device.
func held(c *resourceapi.ResourceClaim, driver string) []Held {
	var all []Held
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != driver || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		h := Held{Pool: r.Pool, Device: r.Device}
		for name, q := range r.ConsumedCapacity {
			if h.Consumed == nil {
				h.Consumed = map[resourceapi.QualifiedName]int64{}
			}
			h.Consumed[name] = q.Value()
		}
		all = append(all, h)
	}
	return all
}

func wants(c *resourceapi.ResourceClaim) []Want {
	var all []Want
	for _, r := range c.Spec.Devices.Requests {
		w := Want{Count: 1}
		if r.Exactly != nil {
			w.Classes, w.Count = []string{r.Exactly.DeviceClassName}, max(1, r.Exactly.Count)
		}
		for _, sub := range r.FirstAvailable {
			w.Classes, w.Count = append(w.Classes, sub.DeviceClassName), max(1, sub.Count)
		}
		w.Classes = slices.Compact(slices.Sorted(slices.Values(w.Classes)))
		all = append(all, w)
	}
	return all
}

// Kinds are those of which at least one device is published, in the order of their names.
func (v *View) Kinds() []*Kind {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var all []*Kind
	for key := range v.count {
		all = append(all, v.kinds[key])
	}
	slices.SortFunc(all, func(a, b *Kind) int {
		if by := strings.Compare(a.String(), b.String()); by != 0 {
			return by
		}
		return strings.Compare(a.id, b.id)
	})
	return all
}

// GPUs are all whole GPUs that are published, in no order, until yield returns false.
func (v *View) GPUs(yield func(GPU) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for at, g := range v.gpus {
		found := *g
		for uid := range v.held[at] {
			found.Holders = append(found.Holders, v.claims[uid])
		}
		if !yield(found) {
			return
		}
	}
}

// Waiting is how many devices of that class are wanted by claims that were made since then and have none.
func (v *View) Waiting(class string, since time.Time) (devices int64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, c := range v.claims {
		if c.Made.Before(since) {
			continue
		}
		for _, w := range c.Wants {
			if slices.Contains(w.Classes, class) {
				devices += w.Count
			}
		}
	}
	return devices
}

// Parts are what the claim holds of the GPU.
func (g *GPU) Parts(c *Claim) []Held {
	return slices.DeleteFunc(slices.Clone(c.Held), func(h Held) bool { return h.Pool != g.pool || gpu.ParentName(h.Device) != g.Name })
}

// Fits says whether the GPU has room for one more that asks for so much of its capacities.
func (g *GPU) Fits(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	if g.Tainted {
		return false
	}
	taken := map[resourceapi.QualifiedName]int64{}
	for _, c := range g.Holders {
		for _, h := range g.Parts(c) {
			if h.Device != g.Name || h.Consumed == nil {
				return false // a partition, or all of it
			}
			for name, n := range h.Consumed {
				taken[name] += n
			}
		}
	}
	if !g.Kind.Has(asked) {
		return false
	}
	if !ptr.Deref(g.Kind.Device.AllowMultipleAllocations, false) {
		return len(g.Holders) == 0
	}
	for name, capacity := range g.Kind.Device.Capacity {
		policy := capacity.RequestPolicy
		if policy == nil || policy.Default == nil {
			continue
		}
		want := policy.Default.Value()
		if q, ok := asked[name]; ok {
			want = q.Value()
		}
		if taken[name]+want > g.Kind.Capacity(name) {
			return false
		}
	}
	return true
}

// Accepts says whether the selector accepts devices of the kind, or may accept some of them: those that differ in their place only.
// The error is what the scheduler would meet.
func (v *View) Accepts(ctx context.Context, k *Kind, s resourceapi.DeviceSelector) (bool, error) {
	if s.CEL == nil {
		return true, nil
	}
	key := question{k.id, s.CEL.Expression}
	if known, ok := v.answers.Get(key); ok {
		is := known.(answer)
		return is.accepts, is.err
	}
	compiled := v.selectors.GetOrCompile(s.CEL.Expression)
	if compiled.Error != nil {
		return false, compiled.Error
	}
	ok, _, err := compiled.DeviceMatches(ctx, k.Matchable(v.driver))
	is := answer{err == nil && (ok || aboutPlace(s.CEL.Expression)), err}
	if ctx.Err() == nil { // otherwise it was interrupted
		v.answers.Add(key, is)
	}
	return is.accepts, is.err
}

// question is what a selector is asked, and answer what it says: the same at any time, since a kind does not change.
type (
	question struct{ kind, selector string }
	answer   struct {
		accepts bool
		err     error
	}
)

// aboutPlace says whether a selector looks at what tells devices of one kind apart, so that the answer for one of them is none for
// the others.
func aboutPlace(expression string) bool {
	for name := range placeAttributes {
		_, short, found := strings.Cut(string(name), "/")
		if !found {
			short = string(name)
		}
		if strings.Contains(expression, short) {
			return true
		}
	}
	return false
}
