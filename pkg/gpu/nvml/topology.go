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
	clique   clique // of the GPUs on the switches, those that it reaches
	peers    []gpu.PCIAddress
}

// clique is a set of GPUs that reach each other through NVSwitches, the zero value where nobody divides them into several.
type clique struct {
	cluster [16]uint8
	id      uint32
}

// readLinks asks for the links of the GPU, up to the first one that leads to a switch: then all of them do. A GPU without NVLink
// refuses the question, which means no links.
func readLinks(d nvmllib.Device) links {
	var l links
	for link := range nvmllib.NVLINK_MAX_LINKS {
		if state, ret := d.GetNvLinkState(link); ret != nvmllib.SUCCESS || state != nvmllib.FEATURE_ENABLED {
			continue
		}
		if kind, ret := d.GetNvLinkRemoteDeviceType(link); ret == nvmllib.SUCCESS && kind == nvmllib.NVLINK_DEVICE_TYPE_SWITCH {
			l.toSwitch = true
			break
		}
		info, ret := d.GetNvLinkRemotePciInfo(link)
		if ret != nvmllib.SUCCESS {
			continue
		}
		if peer, err := pciAddress(info); err == nil && !slices.Contains(l.peers, peer) {
			l.peers = append(l.peers, peer)
		}
	}
	if info, ret := d.GetGpuFabricInfo(); ret == nvmllib.SUCCESS {
		l.onFabric(info)
	}
	return l
}

// onFabric takes into account what the GPU says of the fabric of switches. From Hopper on, a GPU reaches nobody through a switch
// before it has joined a clique, whatever the state of its links.
func (l *links) onFabric(info nvmllib.GpuFabricInfo) {
	switch {
	case joined(info):
		l.clique = clique{info.ClusterUuid, info.CliqueId}
	case info.State != nvmllib.GPU_FABRIC_STATE_NOT_SUPPORTED:
		l.toSwitch = false
	}
}

// joined says whether the GPU has joined the fabric of switches, and successfully.
func joined(info nvmllib.GpuFabricInfo) bool {
	return info.State == nvmllib.GPU_FABRIC_STATE_COMPLETED && nvmllib.Return(info.Status) == nvmllib.SUCCESS
}

// connected says whether the GPUs reach each other by NVLink alone: through switches, or by a link that both know of. A link whose
// other end is dead is none.
func connected(a, b gpu.Device, toA, toB links) bool {
	return toA.toSwitch && toB.toSwitch && toA.clique == toB.clique ||
		slices.Contains(toA.peers, b.PCI) && slices.Contains(toB.peers, a.PCI)
}

// assignNVLinkDomains puts each GPU into one group of GPUs that are all connected to each other: first the largest such group there
// is, then the largest of those that are left. So those on switches are one group, a bridge makes a pair, and a mesh falls into its
// fully connected parts, in whatever order the GPUs come. A group is named after its first GPU, a GPU without peers after itself.
func assignNVLinkDomains(devices []gpu.Device, links []links) {
	var left []int
	for i := range devices {
		left = append(left, i)
	}
	for len(left) > 0 {
		group := largestGroup(left, func(i, j int) bool { return connected(devices[i], devices[j], links[i], links[j]) })
		for _, member := range group {
			devices[member].Topology.NVLinkDomain = string(devices[group[0]].UUID)
		}
		left = slices.DeleteFunc(left, func(i int) bool { return slices.Contains(group, i) })
	}
}

// largestGroup is the largest set of members that are all connected to each other, of several the one that comes first. It tries
// them all, but goes no way that cannot lead to a larger one: among GPUs on switches the first way is the only one, and on a mesh
// no GPU has more than a few neighbours.
func largestGroup(members []int, connected func(i, j int) bool) []int {
	var best []int
	var grow func(group, candidates []int)
	grow = func(group, candidates []int) {
		if len(group) > len(best) {
			best = slices.Clone(group)
		}
		for i, next := range candidates {
			if len(group)+len(candidates)-i <= len(best) {
				return
			}
			var common []int
			for _, c := range candidates[i+1:] {
				if connected(next, c) {
					common = append(common, c)
				}
			}
			grow(append(group, next), common)
		}
	}
	grow(nil, members)
	return best
}

// fabricDomain is "<cluster UUID>.<clique>" of the multi-node NVLink fabric that the GPU has joined, or its own UUID.
func fabricDomain(d nvmllib.Device, own gpu.UUID) string {
	info, ret := d.GetGpuFabricInfo()
	if ret != nvmllib.SUCCESS || !joined(info) || info.ClusterUuid == [16]uint8{} {
		return string(own)
	}
	u := hex.EncodeToString(info.ClusterUuid[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s.%d", u[:8], u[8:12], u[12:16], u[16:20], u[20:], info.CliqueId)
}
