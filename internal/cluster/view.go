// SPDX-License-Identifier: Apache-2.0

package cluster

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

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/remote"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// View follows the slices of one driver, and the claims and device classes of the cluster. It makes no API calls.
type View struct {
	// Remote is the view of the GPUs over the network, without claims and classes. nil: there are none.
	Remote *View

	driver    string
	domain    resourceapi.QualifiedName // of attributes, if the devices are remote: that of local devices; else empty
	selectors *cel.Cache
	results   *lru.Cache // resultKey → result

	sorted    atomic.Pointer[[]*DeviceKind] // what Kinds returns; nil: it has changed
	different atomic.Pointer[[]string]      // what DifferentNodes returns; nil: slices have changed

	mu     sync.RWMutex
	kinds  map[string]*DeviceKind          // by ID
	byMap  map[uintptr]*DeviceKind         // by the address of its attributes, which slim devices share
	slices map[string][]Device             // by name of the slice
	nodes  map[string]*NodeDevices         // by name of the node
	gpus   map[gpuID]*GPU                  // with devices that are published or held
	claims map[types.NamespacedName]*Claim // of all drivers
	// waiting counts the devices that pending claims request, by class and by the second when the claim was created.
	waiting map[string]map[int64]int64

	rules map[string]*resourceapi.DeviceTaintRule // that keep new pods away from devices, by name

	classes map[string]*resourceapi.DeviceClass
	ours    map[string]bool // classes whose selectors name the driver

	partitions map[partitionKind]*DeviceKind // the last one published of each
	largest    map[string]int64              // memory of the largest partition of each model
	layouts    map[string]*Layout            // of the GPUs of each model that have possible partitions
}

// gpuID identifies a physical GPU.
type gpuID struct{ pool, name string }

// partitionKind finds the kind of an allocated partition, which may no longer be published.
type partitionKind struct{ product, profile string }

// Device is a published device.
type Device struct {
	*resourceapi.Device // as published
	Kind                *DeviceKind
	against             *[]resourceapi.DeviceTaint // that keep new pods away, by the plugin or by a rule; nil: none
	gpu                 *GPU
	node                string
}

// Exists reports whether the partition exists. Those that the driver would create consume counters.
func (d *Device) Exists() bool { return len(d.ConsumesCounters) == 0 }

// New returns an empty view. That of a driver of remote devices takes each for a whole GPU.
func New(driver string) *View {
	domain, isRemote := remote.Local(driver)
	if !isRemote {
		domain = ""
	}
	return &View{
		driver: driver, domain: resourceapi.QualifiedName(domain),
		selectors: allocator.NewCache(cachedSelectors),
		results:   lru.New(cachedResults),
		kinds:     map[string]*DeviceKind{}, byMap: map[uintptr]*DeviceKind{}, slices: map[string][]Device{},
		nodes: map[string]*NodeDevices{}, gpus: map[gpuID]*GPU{}, claims: map[types.NamespacedName]*Claim{},
		waiting: map[string]map[int64]int64{},
		rules:   map[string]*resourceapi.DeviceTaintRule{}, classes: map[string]*resourceapi.DeviceClass{},
		ours: map[string]bool{}, partitions: map[partitionKind]*DeviceKind{}, largest: map[string]int64{},
		layouts: map[string]*Layout{},
	}
}

// Driver returns the name of the driver.
func (v *View) Driver() string { return v.driver }

// SetSlice adds or updates a slice, which must not change any more. It ignores devices that are on no node, unless they
// are remote: a fabric may offer GPUs that it can attach to one (docs/options/fabric.md).
func (v *View) SetSlice(s *resourceapi.ResourceSlice) {
	keys := v.kindsOf(s.Spec.Devices)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropSlice(s.Name)
	if !v.onNode(s) {
		return
	}
	all := make([]Device, len(s.Spec.Devices))
	for i := range s.Spec.Devices {
		d, published := &all[i], &s.Spec.Devices[i]
		*d = Device{Device: published, Kind: v.intern(keys[i], published),
			gpu: v.gpu(s.Spec.Pool.Name, published.Name)}
		d.against = v.taints(d)
		if d.Kind.count++; d.Kind.count == 1 {
			v.sorted.Store(nil)
		}
		switch d.Kind.Type() {
		case gpu.TypeGPU:
			d.gpu.Whole, d.gpu.Node = d, ptr.Deref(s.Spec.NodeName, "")
			d.gpu.place = published.BindingConditions
			if d.Kind.OnDemand() { // its possible partitions may not be published yet
				d.gpu.layout = v.layoutOf(d.Kind.Product())
			}
			v.recount(d.gpu)
		case gpu.TypeMIG, gpu.TypeVGPU:
			d.gpu.Partitions = append(d.gpu.Partitions, d)
			if !d.Exists() {
				d.gpu.layout = v.layoutOf(d.Kind.Product())
			}
			v.measure(d.gpu)
		case gpu.TypeVFIO:
			d.gpu.VM, d.gpu.Node = d, ptr.Deref(s.Spec.NodeName, "")
			v.measure(d.gpu)
		}
	}
	v.slices[s.Name] = all
	v.addToNode(s, all)
}

// onNode reports whether the devices of the slice are the driver's, and on one node, or remote.
func (v *View) onNode(s *resourceapi.ResourceSlice) bool {
	return s.Spec.Driver == v.driver && (s.Spec.NodeSelector == nil || v.domain != "")
}

// DeleteSlice removes a slice.
func (v *View) DeleteSlice(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropSlice(name)
}

func (v *View) dropSlice(name string) {
	v.different.Store(nil) // also for SetSlice, whose slice is not known yet
	all := v.slices[name]
	delete(v.slices, name)
	v.dropFromNode(name, all)
	for i := range all {
		d, g := &all[i], all[i].gpu
		// The GPU may be in another slice by now: of a new node with the same name, or of the next pool generation.
		if g.Whole == d {
			g.Whole = nil
			v.recount(g)
		}
		if g.VM == d {
			g.VM = nil
		}
		if g.Whole == nil && g.VM == nil {
			g.Node = g.Pool
		}
		g.Partitions = slices.DeleteFunc(g.Partitions, func(p *Device) bool { return p == d })
		if !slices.ContainsFunc(g.Partitions, func(p *Device) bool { return !p.Exists() }) &&
			(g.Whole == nil || !g.Whole.Kind.OnDemand()) {
			g.layout = nil
		}
		v.measure(g)
		v.dropUnused(g)
		if d.Kind.count--; d.Kind.count == 0 {
			delete(v.kinds, d.Kind.ID)
			delete(v.byMap, address(d.Kind.Device.Attributes))
			v.sorted.Store(nil)
		}
	}
}

// gpu returns the physical GPU of the named device.
func (v *View) gpu(pool, device string) *GPU {
	id := gpuID{pool, gpu.ParentName(device)}
	g := v.gpus[id]
	if g == nil {
		g = &GPU{Node: pool, Pool: pool, Name: id.name}
		v.gpus[id] = g
	}
	return g
}

// dropUnused forgets a GPU of which nothing is published and nothing held.
func (v *View) dropUnused(g *GPU) {
	if g.unpublished() && len(g.Held) == 0 {
		delete(v.gpus, gpuID{g.Pool, g.Name})
	}
}

// intern returns the kind of the device. key is its kindOf.
func (v *View) intern(key string, d *resourceapi.Device) *DeviceKind {
	kind, ok := v.kinds[key]
	if !ok {
		kind = newKind(key, d, v.domain)
		v.kinds[key] = kind
		v.byMap[address(d.Attributes)] = kind
	}
	if kind.isPart() {
		v.partitions[partitionKind{kind.Product(), gpu.PartitionProfile(d.Name)}] = kind
		v.largest[kind.Product()] = max(v.largest[kind.Product()], kind.Capacity("memory"))
	}
	return kind
}

// Kinds returns the kinds with at least one published device, sorted by name, and those of partitions that may be
// published again. The caller must not change the slice.
func (v *View) Kinds() []*DeviceKind {
	if sorted := v.sorted.Load(); sorted != nil {
		return *sorted
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	var all []*DeviceKind
	onDemand := map[string]bool{} // models
	for _, k := range v.kinds {
		if k.count > 0 {
			all = append(all, k)
			onDemand[k.Product()] = onDemand[k.Product()] || k.OnDemand()
		}
	}
	for _, k := range v.partitions {
		if k.count == 0 && k.Type() == gpu.TypeMIG && onDemand[k.Product()] {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *DeviceKind) int {
		if by := strings.Compare(a.String(), b.String()); by != 0 {
			return by
		}
		return strings.Compare(a.ID, b.ID)
	})
	v.sorted.Store(&all) // changes wait for v.mu
	return all
}
