// SPDX-License-Identifier: Apache-2.0

//go:build kubernetes1.38

package allocator

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api"
	"k8s.io/dynamic-resource-allocation/cel"
)

// sharedID is by what the allocator knows that a device has shares: by the device.
type sharedID = DeviceID

func sharedIDOf(id DeviceID, _ *types.UID) sharedID { return id }

func capacityKey(id DeviceID, name resourceapi.QualifiedName) api.FullyQualifiedName {
	return api.MakeFullyQualifiedName(name, id.Driver, api.MakeUniqueString)
}

// converted converts the slices of one question. The scheduler keeps slices converted.
func converted(published []*resourceapi.ResourceSlice) ([]*api.ResourceSlice, error) {
	all := make([]*api.ResourceSlice, len(published))
	for i, s := range published {
		all[i] = &api.ResourceSlice{}
		if err := api.Convert_v1_ResourceSlice_To_api_ResourceSlice(s, all[i], nil); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Device returns the device of the driver as expressions see it. One that cannot be converted has no attributes.
func Device(driver string, d *resourceapi.Device) cel.Device {
	of := cel.Device{Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations}
	if all, err := converted([]*resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{Driver: driver,
		Devices: []resourceapi.Device{*d}}}}); err == nil {
		of.LookupUniqueString = all[0].LookupUniqueString
		of.Attributes, of.Capacity = all[0].Spec.Devices[0].Attributes, all[0].Spec.Devices[0].Capacity
	}
	return of
}
