// SPDX-License-Identifier: Apache-2.0

// Package allocator asks the allocator of kube-scheduler which devices claims get: it runs the same code, with the
// features that Kubernetes has by default. What differs between versions of that code is in kubernetes1.37.go and
// kubernetes1.38.go, so that the driver also builds with the newer one: see docs/start/compatibility.md.
package allocator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// features are those of Kubernetes 1.37 and 1.38 by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
	DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true,
}

// DeviceID names a device.
type DeviceID = structured.DeviceID

// NameOf returns the name of a device.
func NameOf(driver, pool, device string) DeviceID {
	return structured.MakeDeviceID(driver, pool, device)
}

// NewCache returns a cache of so many expressions, compiled as for the allocator.
func NewCache(size int) *cel.Cache {
	return cel.NewCache(size, cel.Features{EnableConsumableCapacity: true})
}

// Held is what claims hold.
type Held struct{ state structured.AllocatedState }

// HeldBy returns what the claims hold that have not ended.
func HeldBy(claims []*resourceapi.ResourceClaim, ended map[types.UID]bool) Held {
	held := Held{structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[sharedID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}}
	for _, claim := range claims {
		if ended[claim.UID] {
			continue
		}
		for _, r := range Results(claim) {
			held.Add(r)
		}
	}
	return held
}

// Results returns the devices that the claim keeps from other claims: not those with admin access.
func Results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	all := claim.Status.Allocation.Devices.Results
	admin := func(r resourceapi.DeviceRequestAllocationResult) bool { return ptr.Deref(r.AdminAccess, false) }
	if !slices.ContainsFunc(all, admin) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), admin)
}

// Add adds one of the results of a claim.
func (h Held) Add(r resourceapi.DeviceRequestAllocationResult) {
	id := NameOf(r.Driver, r.Pool, r.Device)
	if r.ShareID == nil {
		h.state.AllocatedDevices.Insert(id)
		return
	}
	h.state.AllocatedSharedDeviceIDs.Insert(sharedIDOf(id, r.ShareID))
	h.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
}

// Any reports whether a claim holds something of the device, and all whether one holds all of it.
func (h Held) Any(id DeviceID) (some, all bool) {
	return structured.IsDeviceAllocated(id, &h.state), h.state.AllocatedDevices.Has(id)
}

// Capacity returns what shares hold of a capacity of the device; nil: nothing.
func (h Held) Capacity(id DeviceID, name resourceapi.QualifiedName) *resource.Quantity {
	return h.state.AggregatedCapacity[id][capacityKey(id, name)]
}

// Classes are device classes by name.
type Classes map[string]*resourceapi.DeviceClass

// ClassesOf returns the classes by name.
func ClassesOf(all []*resourceapi.DeviceClass) Classes {
	c := Classes{}
	for _, class := range all {
		c[class.Name] = class
	}
	return c
}

// List returns all classes, by name.
func (c Classes) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, name := range slices.Sorted(maps.Keys(c)) {
		all = append(all, c[name])
	}
	return all, nil
}

// Get returns the class.
func (c Classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("no DeviceClass %s", name)
}

// Place asks Kubernetes' allocator which devices the claims get together on the node, of these slices, which must be
// all of their pools. No results and no error: they do not fit.
func (c Classes) Place(ctx context.Context, compiled *cel.Cache, node *corev1.Node,
	published []*resourceapi.ResourceSlice, held Held,
	claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	allocator, err := New(ctx, held, c, published, compiled)
	if err != nil {
		return nil, err
	}
	results, err := allocator.Allocate(ctx, node, claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, nil
	}
	return results, err
}

// New returns the allocator for these slices, which must be all of their pools.
func New(ctx context.Context, held Held, classes structured.DeviceClassLister, published []*resourceapi.ResourceSlice,
	compiled *cel.Cache) (structured.Allocator, error) {
	all, err := converted(published)
	if err != nil {
		return nil, err
	}
	return structured.NewAllocator(ctx, features, held.state, classes, all, compiled)
}

// Near reports whether the node can have the device of the slice; nil: all devices of it. It cannot if the selector has
// an error.
func Near(node *corev1.Node, s *resourceapi.ResourceSlice, d *resourceapi.Device) bool {
	name, all, selector := s.Spec.NodeName, s.Spec.AllNodes, s.Spec.NodeSelector
	if d != nil && ptr.Deref(s.Spec.PerDeviceNodeSelection, false) {
		name, all, selector = d.NodeName, d.AllNodes, d.NodeSelector
	}
	ok, err := structured.NodeMatches(features, node, ptr.Deref(name, ""), ptr.Deref(all, false), selector)
	return err == nil && ok
}
