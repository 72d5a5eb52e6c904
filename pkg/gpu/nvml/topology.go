// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/hex"
	"fmt"
	"slices"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// links is what a GPU's NVLinks lead to.
type links struct {
	toSwitch bool
	peers    []gpu.PCIAddress
}

// readLinks asks for every link of the GPU. A GPU without NVLink refuses the question, which means no links.
func readLinks(d nvmllib.Device) links {
	var l links
	for link := range nvmllib.NVLINK_MAX_LINKS {
		if state, ret := d.GetNvLinkState(link); ret != nvmllib.SUCCESS || state != nvmllib.FEATURE_ENABLED {
			continue
		}
		if kind, ret := d.GetNvLinkRemoteDeviceType(link); ret == nvmllib.SUCCESS && kind == nvmllib.NVLINK_DEVICE_TYPE_SWITCH {
			l.toSwitch = true
			continue
		}
		info, ret := d.GetNvLinkRemotePciInfo(link)
		if ret != nvmllib.SUCCESS {
			continue
		}
		if peer, err := pciAddress(info); err == nil && !slices.Contains(l.peers, peer) {
			l.peers = append(l.peers, peer)
		}
	}
	return l
}

// assignNVLinkDomains groups GPUs that are all directly connected: those on the node's NVSwitches are one group, and of those
// joined by bridges or a mesh each group is fully connected. A group is named after its first GPU, a GPU without peers after itself.
func assignNVLinkDomains(devices []gpu.Device, links []links) {
	connected := func(i, j int) bool {
		return links[i].toSwitch && links[j].toSwitch ||
			slices.Contains(links[i].peers, devices[j].PCI) && slices.Contains(links[j].peers, devices[i].PCI)
	}
	for i := range devices {
		if devices[i].Topology.NVLinkDomain != "" {
			continue
		}
		group := []int{i}
		for j := i + 1; j < len(devices); j++ {
			free := devices[j].Topology.NVLinkDomain == ""
			if free && !slices.ContainsFunc(group, func(k int) bool { return !connected(j, k) }) {
				group = append(group, j)
			}
		}
		for _, member := range group {
			devices[member].Topology.NVLinkDomain = string(devices[i].UUID)
		}
	}
}

// fabricDomain is "<cluster UUID>.<clique>" of the multi-node NVLink fabric that the GPU has joined, or its own UUID.
func fabricDomain(d nvmllib.Device, own gpu.UUID) string {
	info, ret := d.GetGpuFabricInfo()
	if ret != nvmllib.SUCCESS || info.State != nvmllib.GPU_FABRIC_STATE_COMPLETED || info.ClusterUuid == [16]uint8{} {
		return string(own)
	}
	u := hex.EncodeToString(info.ClusterUuid[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s.%d", u[:8], u[8:12], u[12:16], u[16:20], u[20:], info.CliqueId)
}
