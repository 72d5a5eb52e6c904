// SPDX-License-Identifier: Apache-2.0

// Package view is what the cluster has of GPUs, and who holds them, as the API server tells it.
package view

import (
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
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
	kinds  map[string]*Kind                // by id
	count  map[string]int                  // published devices of each
	slices map[string][]device             // by the name of the slice
	gpus   map[id]*GPU                     // those that are published as whole GPUs
	claims map[types.NamespacedName]*Claim // those that hold something of the driver, and all that wait
	held   map[id]map[*Claim]struct{}      // by physical GPU

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

// New is a view of a cluster of which nothing is known yet.
func New(driver string) *View {
	return &View{
		driver:    driver,
		selectors: cel.NewCache(cachedSelectors, cel.Features{EnableConsumableCapacity: true}),
		answers:   lru.New(cachedAnswers),
		kinds:     map[string]*Kind{}, count: map[string]int{}, slices: map[string][]device{},
		gpus: map[id]*GPU{}, claims: map[types.NamespacedName]*Claim{}, held: map[id]map[*Claim]struct{}{},
		classes: map[string]*resourceapi.DeviceClass{}, ours: map[string]bool{}, partitions: map[partitionKind]*Kind{}, largest: map[string]int64{},
	}
}

// Driver is the driver whose devices it knows.
func (v *View) Driver() string { return v.driver }

// SetSlice takes what a slice says now.
func (v *View) SetSlice(s *resourceapi.ResourceSlice) {
	keys := kindsOf(s.Spec.Devices)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(s.Name)
	if s.Spec.Driver != v.driver {
		return
	}
	var all []device
	for i, d := range s.Spec.Devices {
		kind := v.intern(keys[i], d)
		at := id{s.Spec.Pool.Name, gpu.ParentName(d.Name)}
		all = append(all, device{id: at, name: d.Name, kind: kind, tainted: keepsAway(d.Taints), static: len(d.ConsumesCounters) == 0})
		v.count[kind.ID]++
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
		if v.count[d.kind.ID]--; v.count[d.kind.ID] == 0 {
			delete(v.count, d.kind.ID)
			delete(v.kinds, d.kind.ID)
		}
		// A GPU may be in another slice by now: that of a node of the same name, or the next of the pool.
		if g := v.gpus[d.id]; d.name == d.id.gpu && g != nil && g.slice == slice {
			delete(v.gpus, d.id)
		}
	}
	delete(v.slices, slice)
}

// intern is the kind of the device, whose key that is, the same for all of it.
func (v *View) intern(key string, d resourceapi.Device) *Kind {
	kind, ok := v.kinds[key]
	if !ok {
		kind = &Kind{ID: key, Device: resourceapi.Device{Attributes: d.Attributes, Capacity: d.Capacity, AllowMultipleAllocations: d.AllowMultipleAllocations}}
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
		return strings.Compare(a.ID, b.ID)
	})
	return all
}
