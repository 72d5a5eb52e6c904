// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// code converts an error of the node to NVML's.
func code(err error) nvml.Return { return nvml.Return(node.CodeOf(err).Number()) }

// setMIGCalls sets the calls about the partitions of the GPU.
func (d *device) setMIGCalls() {
	d.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	mode := value(d, func(c node.GPU) hwprofile.Answer[hwprofile.MigMode] { return c.MigMode() },
		same[hwprofile.MigMode])
	d.GetMigModeFunc = func() (int, int, nvml.Return) {
		v, ret := mode()
		return v.Current, v.Pending, ret
	}
	d.SetMigModeFunc = d.setMigMode
	d.GetMaxMigDeviceCountFunc = value(d,
		func(c node.GPU) hwprofile.Answer[int] { return c.Calls.GetMaxMigDeviceCount }, same[int])
	d.GetMigDeviceHandleByIndexFunc = d.partitionAt
	d.GetGpuInstanceProfileInfoFunc = func(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
		p, ret := d.profile(profile)
		return profileInfo(p), ret
	}
	d.GetGpuInstancePossiblePlacementsFunc = d.placements
	d.GetGpuInstanceRemainingCapacityFunc = func(info *nvml.GpuInstanceProfileInfo) (int, nvml.Return) {
		return ofProfile(d, info, node.GPU.RemainingCapacity)
	}
	d.CreateGpuInstanceFunc = func(info *nvml.GpuInstanceProfileInfo) (nvml.GpuInstance, nvml.Return) {
		return d.createInstance(info, nil)
	}
	d.CreateGpuInstanceWithPlacementFunc = func(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (
		nvml.GpuInstance, nvml.Return) {
		if at == nil {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		return d.createInstance(info, &hwprofile.Span{Start: int(at.Start), Size: int(at.Size)})
	}
	d.GetGpuInstancesFunc = d.instances
	d.GetGpuInstanceByIdFunc = func(id int) (nvml.GpuInstance, nvml.Return) {
		g := &gpuInstance{gpu: d, id: id}
		if _, ret := g.current(); ret != nvml.SUCCESS {
			return nil, ret
		}
		return g.handle(), nvml.SUCCESS
	}
}

func (d *device) setMigMode(mode int) (activation, ret nvml.Return) {
	if mode != nvml.DEVICE_MIG_DISABLE && mode != nvml.DEVICE_MIG_ENABLE {
		return nvml.SUCCESS, nvml.ERROR_INVALID_ARGUMENT
	}
	e, err := d.library.node.SetMigMode(d.UUID, hwprofile.Switch(mode))
	return nvml.Return(e.Number()), code(err)
}

// profile returns the GPU instance profile by NVML's number.
func (d *device) profile(number int) (hwprofile.GPUInstanceProfile, nvml.Return) {
	if number < 0 || number >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return hwprofile.GPUInstanceProfile{}, nvml.ERROR_INVALID_ARGUMENT
	}
	all, ret := value(d, func(c node.GPU) hwprofile.Answer[hwprofile.GPUInstanceProfiles] {
		return c.Calls.GetGpuInstanceProfileInfo
	},
		same[hwprofile.GPUInstanceProfiles])()
	p, ok := all[number]
	if ret == nvml.SUCCESS && !ok {
		ret = nvml.ERROR_NOT_SUPPORTED
	}
	return p, ret
}

func profileInfo(p hwprofile.GPUInstanceProfile) nvml.GpuInstanceProfileInfo {
	return nvml.GpuInstanceProfileInfo{
		Id: uint32(p.ID), SliceCount: uint32(p.SliceCount), InstanceCount: uint32(p.InstanceCount),
		MultiprocessorCount: uint32(p.MultiprocessorCount), CopyEngineCount: uint32(p.CopyEngineCount),
		DecoderCount: uint32(p.DecoderCount),
		EncoderCount: uint32(p.EncoderCount), JpegCount: uint32(p.JPEGCount), OfaCount: uint32(p.OFACount),
		MemorySizeMB: p.MemorySizeMB,
	}
}

// GpuInstanceProfileInfo_v3 returns what GetGpuInstanceProfileInfoV(profile).V3() does on a real GPU, with the name of
// the profile ("MIG 1g.10gb+me"). go-nvml's handler cannot be simulated.
func (d *device) GpuInstanceProfileInfo_v3(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) { //nolint:revive // after NVML's name
	var info nvml.GpuInstanceProfileInfo_v3
	if ret := d.gate("GetGpuInstanceProfileInfoV"); ret != nvml.SUCCESS {
		return info, ret
	}
	p, ret := d.profile(profile)
	if ret != nvml.SUCCESS {
		return info, ret
	}
	v1 := profileInfo(p)
	info = nvml.GpuInstanceProfileInfo_v3{
		Id: v1.Id, SliceCount: v1.SliceCount, InstanceCount: v1.InstanceCount,
		MultiprocessorCount: v1.MultiprocessorCount,
		CopyEngineCount:     v1.CopyEngineCount, DecoderCount: v1.DecoderCount, EncoderCount: v1.EncoderCount,
		JpegCount: v1.JpegCount,
		OfaCount:  v1.OfaCount, MemorySizeMB: v1.MemorySizeMB,
	}
	info.Version = nvml.STRUCT_VERSION(info, 3)
	put(info.Name[:], "MIG "+p.Name)
	return info, nvml.SUCCESS
}

// ofProfile asks the GPU about a profile by its ID.
func ofProfile[T any](d *device, info *nvml.GpuInstanceProfileInfo, ask func(node.GPU, int) (T, error)) (T,
	nvml.Return) {
	var zero T
	if info == nil {
		return zero, nvml.ERROR_INVALID_ARGUMENT
	}
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return zero, ret
	}
	v, err := ask(c, int(info.Id))
	return v, code(err)
}

func (d *device) placements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	all, ret := ofProfile(d, info, node.GPU.Placements)
	var out []nvml.GpuInstancePlacement
	for _, at := range all {
		out = append(out, placement(at))
	}
	return out, ret
}

func placement(at hwprofile.Span) nvml.GpuInstancePlacement {
	return nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
}

func (d *device) createInstance(info *nvml.GpuInstanceProfileInfo, at *hwprofile.Span) (nvml.GpuInstance, nvml.Return) {
	if info == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	made, err := d.library.node.CreateGPUInstance(d.UUID, int(info.Id), at)
	if err != nil {
		return nil, code(err)
	}
	g := &gpuInstance{gpu: d, id: made.ID}
	return g.handle(), nvml.SUCCESS
}

// instances returns handles of the GPU instances of a profile.
func (d *device) instances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	if info == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	all, err := c.Instances()
	profiles, _ := c.Calls.GetGpuInstanceProfileInfo.Get()
	var out []nvml.GpuInstance
	for _, g := range all {
		if profiles[g.Profile].ID == int(info.Id) {
			out = append(out, (&gpuInstance{gpu: d, id: g.ID}).handle())
		}
	}
	return out, code(err)
}

// partitionAt returns a handle of the partition with that index on the GPU.
func (d *device) partitionAt(index int) (nvml.Device, nvml.Return) {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if most, _ := c.Calls.GetMaxMigDeviceCount.Get(); index < 0 || index >= max(most, 1) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	all := c.Partitions()
	if index >= len(all) {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newPartition(d, all[index].Compute.UUID), nvml.SUCCESS
}

// partition returns a handle of the partition with that UUID.
func (l *library) partition(uuid string) (nvml.Device, nvml.Return) {
	v, ret := l.view()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	c, _, ok := v.Partition(uuid)
	switch {
	case !ok:
		return nil, nvml.ERROR_NOT_FOUND
	case c.State.Unplugged:
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	return newPartition(newDevice(l, c), uuid), nvml.SUCCESS
}
