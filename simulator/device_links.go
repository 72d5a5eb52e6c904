// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/hex"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// setTopologyCalls sets the calls about the GPU's connections.
func (d *device) setTopologyCalls() {
	link := same[int]
	links := func(c node.GPU) hwprofile.Answer[map[int]hwprofile.Switch] { return asMap(c.NvLinkState()) }
	state := lookup(d, links, link,
		func(v hwprofile.Switch) nvml.EnableState { return nvml.EnableState(v) })
	d.GetNvLinkStateFunc = state
	d.GetNvLinkVersionFunc = lookup(d,
		byLink(func(c hwprofile.Calls) hwprofile.Answer[hwprofile.Links[hwprofile.LinkVersion]] {
			return c.GetNvLinkVersion
		}), link,
		func(v hwprofile.LinkVersion) uint32 { return uint32(v) })
	d.GetNvLinkRemoteDeviceTypeFunc = lookup(d,
		byLink(func(c hwprofile.Calls) hwprofile.Answer[hwprofile.Links[hwprofile.LinkEnd]] {
			return c.GetNvLinkRemoteDeviceType
		}), link,
		func(v hwprofile.LinkEnd) nvml.IntNvLinkDeviceType { return nvml.IntNvLinkDeviceType(v) })
	d.GetNvLinkRemotePciInfoFunc = lookup(d,
		byLink(func(c hwprofile.Calls) hwprofile.Answer[hwprofile.Links[hwprofile.Address]] {
			return c.GetNvLinkRemotePciInfo
		}), link,
		func(at hwprofile.Address) nvml.PciInfo { return pciInfo(hwprofile.PCI{Address: at}) })
	// An existing link has all NVLink capabilities.
	d.GetNvLinkCapabilityFunc = func(link int, _ nvml.NvLinkCapability) (uint32, nvml.Return) {
		if _, ret := state(link); ret != nvml.SUCCESS {
			return 0, ret
		}
		return 1, nvml.SUCCESS
	}
	d.GetTopologyCommonAncestorFunc = d.commonAncestor
	d.GetP2PStatusFunc = d.p2p
	d.GetMemoryAffinityFunc = d.memoryAffinity
	d.GetGpuFabricInfoFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Fabric] { return c.Fabric() },
		func(f hwprofile.Fabric) nvml.GpuFabricInfo {
			return nvml.GpuFabricInfo{ClusterUuid: uuidBytes(f.ClusterUUID), Status: uint32(f.Status),
				CliqueId: f.CliqueID, State: uint8(f.State)}
		})
	d.GetGpuFabricInfo_v4Func = d.fabricInfo
}

// byLink converts an answer by link to the type that lookup takes.
func byLink[T any](pick func(hwprofile.Calls) hwprofile.Answer[hwprofile.Links[T]]) func(
	node.GPU) hwprofile.Answer[map[int]T] {
	return func(c node.GPU) hwprofile.Answer[map[int]T] {
		return asMap(pick(c.Calls))
	}
}

// asMap converts an answer by link to a map.
func asMap[T any](a hwprofile.Answer[hwprofile.Links[T]]) hwprofile.Answer[map[int]T] {
	links, e := a.Get()
	if e != "" {
		return hwprofile.Failure[map[int]T](e)
	}
	return hwprofile.Value[map[int]T](links)
}

// both returns this GPU and the other one in their current state.
func (d *device) both(other nvml.Device) (a, b node.GPU, ret nvml.Return) {
	if other == nil {
		return a, b, nvml.ERROR_INVALID_ARGUMENT
	}
	uuid, ret := other.GetUUID()
	if ret != nvml.SUCCESS {
		return a, b, ret
	}
	if a, ret = d.current(); ret != nvml.SUCCESS {
		return a, b, ret
	}
	v, ret := d.library.view()
	if ret != nvml.SUCCESS {
		return a, b, ret
	}
	b, err := v.GPU(uuid)
	if err != nil {
		return a, b, nvml.ERROR_INVALID_ARGUMENT
	}
	return a, b, nvml.SUCCESS
}

func (d *device) commonAncestor(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	a, b, ret := d.both(other)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	if a.UUID == b.UUID {
		return nvml.TOPOLOGY_INTERNAL, nvml.SUCCESS
	}
	level, e := a.Proximity(b)
	return nvml.GpuTopologyLevel(level), nvml.Return(e.Number())
}

// p2p reports that GPUs of one model reach each other over PCIe, and over NVLink if they are linked.
func (d *device) p2p(other nvml.Device, by nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
	a, b, ret := d.both(other)
	switch {
	case ret != nvml.SUCCESS:
		return nvml.P2P_STATUS_UNKNOWN, ret
	case a.UUID == b.UUID:
		return nvml.P2P_STATUS_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	case by == nvml.P2P_CAPS_INDEX_NVLINK && a.Linked(b), by != nvml.P2P_CAPS_INDEX_NVLINK &&
		a.PCI.DeviceID == b.PCI.DeviceID:
		return nvml.P2P_STATUS_OK, nvml.SUCCESS
	}
	return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
}

// memoryAffinity returns the NUMA nodes nearest to the GPU: the one it is attached to.
func (d *device) memoryAffinity(nodes int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
	const bits = 64
	c, ret := d.current()
	switch {
	case ret != nvml.SUCCESS:
		return nil, ret
	case nodes < 1:
		return nil, nvml.ERROR_INVALID_ARGUMENT
	case c.PCI.NUMANode < 0:
		return nil, nvml.ERROR_NOT_SUPPORTED
	case c.PCI.NUMANode >= nodes:
		return nil, nvml.ERROR_INSUFFICIENT_SIZE
	}
	set := make([]uint, (nodes-1)/bits+1)
	set[c.PCI.NUMANode/bits] |= 1 << (c.PCI.NUMANode % bits)
	return set, nvml.SUCCESS
}

// uuidBytes returns the bytes of a UUID that the decoder of profiles has validated.
func uuidBytes(s string) (out [16]uint8) {
	b, _ := hex.DecodeString(strings.ReplaceAll(s, "-", "")) //nolint:errcheck // see above
	copy(out[:], b)
	return out
}
