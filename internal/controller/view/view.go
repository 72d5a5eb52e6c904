// SPDX-License-Identifier: Apache-2.0

// Package view is a model of the GPUs in the cluster and of the claims that hold them, built from API objects.
package view

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// View follows the slices of one driver, and the claims and device classes of the cluster. It makes no API calls.
type View struct {
	driver    string
	selectors *cel.Cache
	results   *lru.Cache // resultKey → result

	sorted atomic.Pointer[[]*Kind] // what Kinds returns; nil: it has changed

	mu     sync.RWMutex
	kinds  map[string]*Kind                // by id
	byMap  map[uintptr]*Kind               // by the address of its attributes, which slim devices share
	count  map[string]int                  // published devices of each kind
	slices map[string][]device             // by name of the slice
	gpus   map[id]*GPU                     // that are published as a whole
	rooms  map[*Kind]*room                 // of these GPUs
	claims map[types.NamespacedName]*Claim // that hold devices of the driver, and all pending ones
	held   map[id]map[*Claim]struct{}      // by physical GPU
	// waiting counts the devices that pending claims request, by class and by the second when the claim was created.
	waiting map[string]map[int64]int64

	rules map[string]*resourceapi.DeviceTaintRuleSpec // that taint devices of the driver, by name

	classes map[string]*resourceapi.DeviceClass
	ours    map[string]bool // classes whose selectors name the driver

	partitions map[partitionKind]*Kind // the last one published of each
	largest    map[string]int64        // memory of the largest partition of each model
}

// id identifies a physical GPU.
type id struct{ pool, gpu string }

// device is a published device.
type device struct {
	id      id
	name    string
	kind    *Kind
	own     bool // it has a taint of the plugin
	tainted bool // it has that, or one of a rule
	static  bool // an existing partition that the driver did not create
}

// New returns an empty view.
func New(driver string) *View {
	return &View{
		driver:    driver,
		selectors: cel.NewCache(cachedSelectors, cel.Features{EnableConsumableCapacity: true}),
		results:   lru.New(cachedResults),
		kinds:     map[string]*Kind{}, byMap: map[uintptr]*Kind{}, rooms: map[*Kind]*room{},
		waiting: map[string]map[int64]int64{}, count: map[string]int{}, slices: map[string][]device{},
		gpus: map[id]*GPU{}, claims: map[types.NamespacedName]*Claim{}, held: map[id]map[*Claim]struct{}{},
		rules: map[string]*resourceapi.DeviceTaintRuleSpec{}, classes: map[string]*resourceapi.DeviceClass{},
		ours: map[string]bool{}, partitions: map[partitionKind]*Kind{},
		largest: map[string]int64{},
	}
}

// Driver returns the name of the driver.
func (v *View) Driver() string { return v.driver }

// SetSlice adds or updates a slice.
func (v *View) SetSlice(s *resourceapi.ResourceSlice) {
	keys := v.kindsOf(s.Spec.Devices)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropSlice(s.Name)
	if s.Spec.Driver != v.driver {
		return
	}
	var all []device
	for i, d := range s.Spec.Devices {
		kind := v.intern(keys[i], d)
		at := id{s.Spec.Pool.Name, gpu.ParentName(d.Name)}
		one := device{id: at, name: d.Name, kind: kind, own: preventsScheduling(d.Taints),
			static: len(d.ConsumesCounters) == 0}
		one.tainted = one.own || v.ruled(&one)
		all = append(all, one)
		if v.count[kind.ID]++; v.count[kind.ID] == 1 {
			v.sorted.Store(nil)
		}
		if kind.Type() == gpu.TypeGPU {
			v.leave(at)
			v.gpus[at] = &GPU{Node: ptr.Deref(s.Spec.NodeName, ""), Name: d.Name, Kind: kind,
				Tainted: one.tainted, pool: at.pool, slice: s.Name}
			v.enter(at)
		}
	}
	v.slices[s.Name] = all
}

// DeleteSlice removes a slice.
func (v *View) DeleteSlice(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropSlice(name)
}

func (v *View) dropSlice(slice string) {
	for _, d := range v.slices[slice] {
		// The GPU may be in another slice by now: of a new node with the same name, or of the next pool generation.
		if g := v.gpus[d.id]; d.name == d.id.gpu && g != nil && g.slice == slice {
			v.leave(d.id)
			delete(v.gpus, d.id)
		}
		if v.count[d.kind.ID]--; v.count[d.kind.ID] == 0 {
			delete(v.count, d.kind.ID)
			delete(v.kinds, d.kind.ID)
			delete(v.byMap, address(d.kind.Device.Attributes))
			delete(v.rooms, d.kind)
			v.sorted.Store(nil)
		}
	}
	delete(v.slices, slice)
}

// intern returns the kind of the device. key is its kindOf.
func (v *View) intern(key string, d resourceapi.Device) *Kind {
	kind, ok := v.kinds[key]
	if !ok {
		kind = &Kind{ID: key, Device: resourceapi.Device{Attributes: d.Attributes, Capacity: d.Capacity,
			AllowMultipleAllocations: d.AllowMultipleAllocations}}
		v.kinds[key] = kind
		v.byMap[address(d.Attributes)] = kind
	}
	if kind.Type() == gpu.TypeMIG {
		v.partitions[partitionKind{kind.Product(), gpu.PartitionProfile(d.Name)}] = kind
		v.largest[kind.Product()] = max(v.largest[kind.Product()], kind.Capacity("memory"))
	}
	return kind
}

func preventsScheduling(taints []resourceapi.DeviceTaint) bool {
	return slices.ContainsFunc(taints,
		func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone })
}

// Kinds returns the kinds with at least one published device, sorted by name. The caller must not change the slice.
func (v *View) Kinds() []*Kind {
	if sorted := v.sorted.Load(); sorted != nil {
		return *sorted
	}
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
		return strings.Compare(a.ID, b.ID)
	})
	v.sorted.Store(&all) // changes wait for v.mu
	return all
}
