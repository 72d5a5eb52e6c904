// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"crypto/sha256"
	"encoding/hex"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Monitor is the name of the device that stands for all GPUs of a node, for those who look after them. No GPU has such a name:
// theirs come from PCI addresses.
const Monitor = "monitor"

// publishMonitor writes the monitor device. It is always free: it may be allocated any number of times, and an allocation consumes
// nothing of it. Admin access to the GPUs themselves would be refused where their capacity or counters are used up.
func publishMonitor(node string) resourceapi.Device {
	return publish(monitor(node), nil)
}

// monitor is the monitor device of a node as far as it is like a GPU.
func monitor(node string) gpu.Device {
	id := monitorID(node)
	return gpu.Device{
		Name:     Monitor,
		Type:     gpu.TypeMonitor,
		UUID:     gpu.UUID(id),
		NUMANode: gpu.NoNUMANode,
		Topology: gpu.Topology{NVLinkDomain: id, FabricDomain: id},
	}
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
