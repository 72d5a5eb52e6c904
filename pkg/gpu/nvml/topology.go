// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/hex"
	"fmt"
	"slices"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// links says what a GPU's NVLinks are connected to.
type links struct {
	toSwitch bool
	clique   clique // the GPUs that it reaches through switches
	peers    []gpu.PCIAddress
}

// clique is a set of GPUs that reach each other through NVSwitches. The zero value is that of machines without cliques.
type clique struct {
	cluster [16]uint8
	id      uint32
}

// readLinks reads the links of the GPU, up to the first one to a switch, because then all lead to switches. A GPU
// without NVLink returns errors, which mean no links.
func (s *session) readLinks(d nvmllib.Device) links {
	var l links
	for link := range nvmllib.NVLINK_MAX_LINKS {
		if state, ret := d.GetNvLinkState(link); ret != nvmllib.SUCCESS || state != nvmllib.FEATURE_ENABLED {
			continue
		}
		peer, toSwitch, ok := otherEnd(d, link)
		if toSwitch {
			l.toSwitch = true
			break
		}
		if ok && !slices.Contains(l.peers, peer) {
			l.peers = append(l.peers, peer)
		}
	}
	if info, ok := s.fabricInfo(d); ok {
		l.onFabric(info)
	}
	return l
}

// otherEnd returns what an active link leads to: a switch, or the GPU with this address; not ok: it is not known.
func otherEnd(d nvmllib.Device, link int) (peer gpu.PCIAddress, toSwitch, ok bool) {
	kind, ret := d.GetNvLinkRemoteDeviceType(link)
	if ret == nvmllib.SUCCESS && kind == nvmllib.NVLINK_DEVICE_TYPE_SWITCH {
		return peer, true, true
	}
	info, ret := d.GetNvLinkRemotePciInfo(link)
	if ret != nvmllib.SUCCESS {
		return peer, false, false
	}
	peer, err := pciAddress(info)
	return peer, false, err == nil
}

// fabricInfo returns the state of the GPU on the NVLink fabric, and whether it is known. Drivers before R525 do not
// have the call.
func (s *session) fabricInfo(d nvmllib.Device) (nvmllib.GpuFabricInfo, bool) {
	if !s.has("nvmlDeviceGetGpuFabricInfo") {
		return nvmllib.GpuFabricInfo{}, false
	}
	info, ret := d.GetGpuFabricInfo()
	return info, ret == nvmllib.SUCCESS
}

// onFabric applies the GPU's fabric state. From Hopper on, a GPU reaches no other through a switch before it has joined
// a clique, independent of the state of its links.
func (l *links) onFabric(info nvmllib.GpuFabricInfo) {
	switch {
	case joined(info):
		l.clique = clique{info.ClusterUuid, info.CliqueId}
	case info.State != nvmllib.GPU_FABRIC_STATE_NOT_SUPPORTED:
		l.toSwitch = false
	}
}

// joined reports whether the GPU has successfully joined the fabric.
func joined(info nvmllib.GpuFabricInfo) bool {
	return info.State == nvmllib.GPU_FABRIC_STATE_COMPLETED && nvmllib.Return(info.Status) == nvmllib.SUCCESS
}

// connected reports whether the GPUs reach each other by NVLink: through switches, or by a direct link that both
// report.
func connected(a, b gpu.Device, toA, toB links) bool {
	return toA.toSwitch && toB.toSwitch && toA.clique == toB.clique ||
		slices.Contains(toA.peers, b.PCI) && slices.Contains(toB.peers, a.PCI)
}

// assignNVLinkDomains divides the GPUs into groups in which all are connected to each other: first the largest such
// group, then the largest of the remaining GPUs. GPUs on switches become one group, a bridge makes a pair, and a mesh
// is divided into fully connected parts, independent of the order of GPUs. A group has the UUID of its first GPU.
func assignNVLinkDomains(devices []gpu.Device, links []links) {
	var left []int
	for i := range devices {
		left = append(left, i)
	}
	for len(left) > 0 {
		group := largestGroup(left, func(i, j int) bool {
			return connected(devices[i], devices[j], links[i], links[j])
		})
		for _, member := range group {
			devices[member].Topology.NVLinkDomain = string(devices[group[0]].UUID)
		}
		left = slices.DeleteFunc(left, func(i int) bool { return slices.Contains(group, i) })
	}
}

// largestGroup returns the largest set of members that are all connected to each other, and of several the first. It
// searches exhaustively, but prunes branches that cannot become larger. That is fast: with switches the first branch is
// the result, and in a mesh each GPU has few neighbours.
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

// fabricDomain returns "<cluster UUID>.<clique>" of the multi-node NVLink fabric that the GPU has joined, or its own
// UUID.
func (s *session) fabricDomain(d nvmllib.Device, own gpu.UUID) string {
	info, ok := s.fabricInfo(d)
	if !ok || !joined(info) || info.ClusterUuid == [16]uint8{} {
		return string(own)
	}
	u := hex.EncodeToString(info.ClusterUuid[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s.%d", u[:8], u[8:12], u[12:16], u[16:20], u[20:], info.CliqueId)
}
