// SPDX-License-Identifier: Apache-2.0

//go:build kubernetes1.38

package allocator

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/api"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

func nothing() structured.AllocatedState {
	return structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.DeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
}

func (h Held) addShare(of DeviceID, _ *types.UID) { h.state.AllocatedSharedDeviceIDs.Insert(of) }

// Capacity returns what shares hold of a capacity of the device; nil: nothing.
func (h Held) Capacity(id DeviceID, name resourceapi.QualifiedName) *resource.Quantity {
	return h.state.AggregatedCapacity[id][api.MakeFullyQualifiedName(name, id.Driver, api.MakeUniqueString)]
}

// New returns the allocator for these slices, which must be all of their pools. The scheduler keeps slices converted;
// here each allocator converts its own.
func New(ctx context.Context, held Held, classes structured.DeviceClassLister, published []*resourceapi.ResourceSlice,
	compiled *cel.Cache) (structured.Allocator, error) {
	all := make([]*api.ResourceSlice, len(published))
	for i, s := range published {
		all[i] = &api.ResourceSlice{}
		if err := api.Convert_v1_ResourceSlice_To_api_ResourceSlice(s, all[i], nil); err != nil {
			return nil, err
		}
	}
	return structured.NewAllocator(ctx, features, held.state, classes, all, compiled)
}

// Device returns the device of the driver as expressions see it. One that cannot be converted has no attributes.
func Device(driver string, d *resourceapi.Device) cel.Device {
	of := cel.Device{Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations}
	var slice api.ResourceSlice
	if api.Convert_v1_ResourceSlice_To_api_ResourceSlice(&resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, Devices: []resourceapi.Device{*d}}}, &slice, nil) == nil {
		of.LookupUniqueString = slice.LookupUniqueString
		of.Attributes, of.Capacity = slice.Spec.Devices[0].Attributes, slice.Spec.Devices[0].Capacity
	}
	return of
}
