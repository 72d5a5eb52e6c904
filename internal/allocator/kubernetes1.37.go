// SPDX-License-Identifier: Apache-2.0

//go:build !kubernetes1.38

package allocator

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// sharedID is by what the allocator knows that a device has shares: by each of them.
type sharedID = structured.SharedDeviceID

func sharedIDOf(id DeviceID, share *types.UID) sharedID {
	return structured.MakeSharedDeviceID(id, share)
}

func capacityKey(_ DeviceID, name resourceapi.QualifiedName) resourceapi.QualifiedName { return name }

func converted(published []*resourceapi.ResourceSlice) ([]*resourceapi.ResourceSlice, error) {
	return published, nil
}

// Device returns the device of the driver as expressions see it.
func Device(driver string, d *resourceapi.Device) cel.Device {
	return cel.Device{Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
		Capacity: d.Capacity}
}
