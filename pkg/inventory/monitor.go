// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"crypto/sha256"
	"encoding/hex"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Monitor is the name of the device that stands for all GPUs of a node, for those who look after them. No GPU has such a name:
// theirs come from PCI addresses.
const Monitor = "monitor"

// publishMonitor writes the monitor device. It is always free: it may be allocated any number of times, and an allocation consumes
// nothing of it. Admin access to the GPUs themselves would be refused where their capacity or counters are used up.
func publishMonitor(node string) resourceapi.Device {
	id := monitorID(node)
	published := attributes(gpu.Device{
		Type:     gpu.TypeMonitor,
		UUID:     gpu.UUID(id),
		NUMANode: gpu.NoNUMANode,
		Topology: gpu.Topology{NVLinkDomain: id, FabricDomain: id},
	})
	published["sharing"], published["isolation"] = text(""), text("")
	delete(published, deviceattribute.StandardDeviceAttributePCIBusID) // it is in no place
	return resourceapi.Device{
		Name:                     Monitor,
		AllowMultipleAllocations: ptr.To(true),
		Attributes:               published,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: *resource.NewQuantity(0, resource.BinarySI), RequestPolicy: nothing(resource.BinarySI)},
			"cores":  {Value: *resource.NewQuantity(0, resource.DecimalSI), RequestPolicy: nothing(resource.DecimalSI)},
		},
	}
}

// nothing is the policy of a capacity that tells how much there is and cannot be asked for.
func nothing(format resource.Format) *resourceapi.CapacityRequestPolicy {
	zero := resource.NewQuantity(0, format)
	return &resourceapi.CapacityRequestPolicy{Default: zero, ValidValues: []resource.Quantity{*zero}}
}

// monitorID identifies the monitor device of a node among all devices: people match and distinguish on such attributes. A name too
// long for an attribute is not cut, because others may begin like it.
func monitorID(node string) string {
	id := Monitor + "-" + node
	if len(id) <= maxString {
		return id
	}
	hash := sha256.Sum256([]byte(node))
	return Monitor + "-" + hex.EncodeToString(hash[:16])
}
