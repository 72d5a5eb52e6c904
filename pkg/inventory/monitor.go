// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"crypto/sha256"
	"encoding/hex"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Monitor is the name of the monitor device, which stands for all GPUs of a node. It differs from all GPU names, which
// come from PCI addresses.
const Monitor = "monitor"

// publishMonitor returns the monitor device as an API object. It is always free: it may be allocated any number of
// times and consumes nothing. Admin access to the GPUs themselves would fail when their capacity or counters are used
// up.
func publishMonitor(node string) resourceapi.Device {
	return publish(monitor(node), nil)
}

// monitor returns the monitor device of a node.
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

// monitorID identifies the monitor device of a node in attributes that people match on. A name that is too long is
// hashed and not cut, because others may have the same prefix.
func monitorID(node string) string {
	id := Monitor + "-" + node
	if len(id) <= maxString {
		return id
	}
	hash := sha256.Sum256([]byte(node))
	return Monitor + "-" + hex.EncodeToString(hash[:16])
}
