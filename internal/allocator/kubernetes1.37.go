// SPDX-License-Identifier: Apache-2.0

//go:build !kubernetes1.38

package allocator

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

func nothing() structured.AllocatedState {
	return structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
}

func (h Held) addShare(of DeviceID, share *types.UID) {
	h.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(of, share))
}

// Capacity returns what shares hold of a capacity of the device; nil: nothing.
func (h Held) Capacity(id DeviceID, name resourceapi.QualifiedName) *resource.Quantity {
	return h.state.AggregatedCapacity[id][name]
}

// New returns the allocator for these slices, which must be all of their pools.
func New(ctx context.Context, held Held, classes structured.DeviceClassLister, published []*resourceapi.ResourceSlice,
	compiled *cel.Cache) (structured.Allocator, error) {
	return structured.NewAllocator(ctx, features, held.state, classes, published, compiled)
}

// Device returns the device of the driver as expressions see it.
func Device(driver string, d *resourceapi.Device) cel.Device {
	return cel.Device{Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
		Capacity: d.Capacity}
}
