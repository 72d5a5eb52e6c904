// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// switchableSince is the compute capability from which on the MIG mode changes without a reset of the GPU: that of Hopper
// (NVIDIA's MIG User Guide, "Enable MIG Mode").
const switchableSince = 9

// mebi is the unit in which NVML tells the memory of partitions.
const mebi = 1 << 20

// readMIG asks how the GPU can be partitioned, and how it is. A GPU without MIG answers that it does not support the mode. One that
// cannot tell is as it was when it could; one that never could has no partitions, and can be used as a whole if it is not in MIG mode.
// Error: the GPU is lost.
func (n *Node) readMIG(handle nvmllib.Device, d gpu.Device) (gpu.MIG, error) {
	m, err := n.askMIG(handle, d)
	if errors.Is(err, nvmllib.ERROR_GPU_IS_LOST) {
		return gpu.MIG{}, err
	}
	if err != nil {
		n.note(d, "How the GPU is partitioned cannot be read", err)
		if was, known := n.partitioned[d.UUID]; known {
			return was, nil
		}
		return m, nil
	}
	if n.partitioned == nil {
		n.partitioned = map[gpu.UUID]gpu.MIG{}
	}
	n.partitioned[d.UUID] = m
	return m, nil
}

// askMIG is what NVML says. After an error it is what is known without the answer.
func (n *Node) askMIG(handle nvmllib.Device, d gpu.Device) (gpu.MIG, error) {
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.ERROR_NOT_SUPPORTED {
		return gpu.MIG{}, nil
	}
	if ret != nvmllib.SUCCESS {
		return gpu.MIG{}, fmt.Errorf("get MIG mode: %w", ret)
	}
	m := gpu.MIG{Capable: true, Enabled: current == nvmllib.DEVICE_MIG_ENABLE, Switchable: d.Product.ComputeCapability.Major >= switchableSince}
	profiles, err := n.profiles(handle)
	if err != nil {
		return m, err
	}
	instances, err := n.instances(handle, d.UUID, profiles)
	if err != nil {
		return m, err
	}
	for _, p := range profiles {
		m.Profiles = append(m.Profiles, p.Profile)
	}
	m.Instances = instances
	return m, nil
}

// profile is one that a GPU offers, and what NVML knows it by.
type profile struct {
	gpu.Profile
	info nvmllib.GpuInstanceProfileInfo
}

// profiles are those that the GPU offers, whether or not it is in MIG mode. They never change.
func (n *Node) profiles(handle nvmllib.Device) ([]profile, error) {
	id, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("get UUID: %w", ret)
	}
	if known, ok := n.offered.Load(id); ok {
		return known.([]profile), nil
	}
	all, err := n.readProfiles(handle)
	if err == nil && len(all) > 0 { // some may tell in MIG mode only
		n.offered.Store(id, all)
	}
	return all, err
}

func (n *Node) readProfiles(handle nvmllib.Device) ([]profile, error) {
	var all []profile
	for i := range nvmllib.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := handle.GetGpuInstanceProfileInfo(i)
		if absent(ret) {
			continue
		}
		if ret != nvmllib.SUCCESS {
			return nil, fmt.Errorf("get MIG profile %d: %w", i, ret)
		}
		placements, ret := handle.GetGpuInstancePossiblePlacements(&info)
		if absent(ret) {
			continue
		}
		if ret != nvmllib.SUCCESS {
			return nil, fmt.Errorf("get placements of MIG profile %d: %w", i, ret)
		}
		name, err := ProfileName(n.devices, handle, i, info)
		if err != nil {
			return nil, fmt.Errorf("name MIG profile %d: %w", i, err)
		}
		p := profile{info: info, Profile: gpu.Profile{Name: name, Slices: int(info.SliceCount), Memory: info.MemorySizeMB * mebi, Engines: gpu.Engines{
			Multiprocessors: int(info.MultiprocessorCount), Copy: int(info.CopyEngineCount), Decoders: int(info.DecoderCount),
			Encoders: int(info.EncoderCount), JPEG: int(info.JpegCount), OFA: int(info.OfaCount)}}}
		for _, at := range placements {
			p.Size = int(at.Size)
			p.Starts = append(p.Starts, int(at.Start))
		}
		if len(p.Starts) == 0 {
			continue
		}
		slices.Sort(p.Starts)
		all = append(all, p)
	}
	return all, nil
}

// absent says whether the answer means that the GPU has no such profile.
func absent(ret nvmllib.Return) bool {
	return ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.ERROR_INVALID_ARGUMENT
}

// ProfileName is the name of a GPU's MIG profile as NVIDIA writes it, "1g.10gb+me", put together from NVML's number of the profile and
// what NVML says of it, as NVIDIA's own components do. The newer call that says it is not asked: it may answer in MIG mode only, and a
// name must not change with the mode. The library must be initialised.
func ProfileName(devices device.Interface, handle nvmllib.Device, number int, info nvmllib.GpuInstanceProfileInfo) (string, error) {
	whole, ok := computeProfiles[int(info.SliceCount)]
	if !ok {
		return "", fmt.Errorf("%d slices: want one of 1 to 4 and 6 to 8", info.SliceCount)
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("get memory: %w", ret)
	}
	name, err := devices.NewMigProfile(number, whole, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB, memory.Total)
	if err != nil {
		return "", err
	}
	return name.String(), nil
}

// computeProfiles are the profiles of compute instances that have all of a GPU instance with so many slices.
var computeProfiles = map[int]int{
	1: nvmllib.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvmllib.COMPUTE_INSTANCE_PROFILE_2_SLICE, 3: nvmllib.COMPUTE_INSTANCE_PROFILE_3_SLICE,
	4: nvmllib.COMPUTE_INSTANCE_PROFILE_4_SLICE, 6: nvmllib.COMPUTE_INSTANCE_PROFILE_6_SLICE, 7: nvmllib.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	8: nvmllib.COMPUTE_INSTANCE_PROFILE_8_SLICE,
}

// instances are the partitions that exist, by where they start. A GPU instance in which nothing can run yet has no UUID.
func (n *Node) instances(handle nvmllib.Device, parent gpu.UUID, profiles []profile) ([]gpu.Partition, error) {
	var all []gpu.Partition
	for _, p := range profiles {
		found, err := gpuInstances(handle, p)
		if err != nil {
			return nil, err
		}
		for _, i := range found {
			base := gpu.Partition{GPUInstance: int(i.info.Id), Slices: p.Slices, Engines: p.Engines, Memory: p.Memory, Placement: gpu.Placement{
				Parent: parent, Profile: p.Name, Start: int(i.info.Placement.Start), Size: int(i.info.Placement.Size)}}
			computes, err := computeInstances(i.handle)
			if errors.Is(err, nvmllib.ERROR_NOT_FOUND) {
				continue // removed since it was listed
			}
			if err != nil {
				return nil, fmt.Errorf("partition %s: %w", base.Placement, err)
			}
			if len(computes) == 0 {
				all = append(all, base)
			}
			for _, c := range computes {
				all = append(all, c.of(base))
			}
		}
	}
	slices.SortFunc(all, func(a, b gpu.Partition) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ComputeInstance, b.ComputeInstance))
	})
	return all, nil
}

// gpuInstance is one that exists.
type gpuInstance struct {
	handle nvmllib.GpuInstance
	info   nvmllib.GpuInstanceInfo
}

// gpuInstances are those of a profile; a GPU that is not in MIG mode has none.
func gpuInstances(handle nvmllib.Device, p profile) ([]gpuInstance, error) {
	list, ret := handle.GetGpuInstances(&p.info)
	if ret == nvmllib.ERROR_NOT_SUPPORTED {
		return nil, nil
	}
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("list GPU instances of %s: %w", p.Name, ret)
	}
	var all []gpuInstance
	for _, i := range list {
		info, ret := i.GetInfo()
		if removed(ret) {
			continue
		}
		if ret != nvmllib.SUCCESS {
			return nil, fmt.Errorf("read a GPU instance of %s: %w", p.Name, ret)
		}
		all = append(all, gpuInstance{i, info})
	}
	return all, nil
}

// removed says whether the answer means that what was listed a moment ago is gone: claims of others come and go meanwhile.
func removed(ret nvmllib.Return) bool {
	return ret == nvmllib.ERROR_NOT_FOUND || ret == nvmllib.ERROR_INVALID_ARGUMENT
}

// computeInstance is one that exists in a GPU instance.
type computeInstance struct {
	handle  nvmllib.ComputeInstance
	profile nvmllib.ComputeInstanceProfileInfo
	id      int
	uuid    gpu.UUID
}

// of is the partition that the compute instance makes of its GPU instance. One that has a part of the slices has that in its name.
func (c computeInstance) of(p gpu.Partition) gpu.Partition {
	if slices := int(c.profile.SliceCount); slices != p.Slices {
		p.Profile = fmt.Sprintf("%dc.%s", slices, p.Profile)
		p.Engines.Multiprocessors = int(c.profile.MultiprocessorCount)
	}
	p.UUID, p.ComputeInstance = c.uuid, c.id
	return p
}

func computeInstances(in nvmllib.GpuInstance) ([]computeInstance, error) {
	var all []computeInstance
	for i := range nvmllib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := in.GetComputeInstanceProfileInfo(i, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvmllib.SUCCESS {
			return nil, fmt.Errorf("get profile %d of compute instances: %w", i, ret)
		}
		list, ret := in.GetComputeInstances(&info)
		if ret != nvmllib.SUCCESS {
			return nil, fmt.Errorf("list compute instances: %w", ret)
		}
		for _, handle := range list {
			c, err := readComputeInstance(handle, info)
			if errors.Is(err, nvmllib.ERROR_NOT_FOUND) || errors.Is(err, nvmllib.ERROR_INVALID_ARGUMENT) {
				continue // removed since it was listed
			}
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
	}
	return all, nil
}

func readComputeInstance(handle nvmllib.ComputeInstance, profile nvmllib.ComputeInstanceProfileInfo) (computeInstance, error) {
	info, ret := handle.GetInfo()
	if ret != nvmllib.SUCCESS {
		return computeInstance{}, fmt.Errorf("read a compute instance: %w", ret)
	}
	uuid, ret := info.Device.GetUUID()
	if ret != nvmllib.SUCCESS {
		return computeInstance{}, fmt.Errorf("get UUID of compute instance %d: %w", info.Id, ret)
	}
	return computeInstance{handle, profile, int(info.Id), gpu.UUID(uuid)}, nil
}

// sameMIG says whether the GPU is partitioned as it was.
func (n *Node) sameMIG(handle nvmllib.Device, was gpu.Device) bool {
	if !was.MIG.Capable {
		return true
	}
	current, _, ret := handle.GetMigMode()
	if ret != nvmllib.SUCCESS || (current == nvmllib.DEVICE_MIG_ENABLE) != was.MIG.Enabled {
		return false
	}
	if !was.MIG.Enabled {
		return true
	}
	profiles, err := n.profiles(handle)
	if err != nil {
		return false
	}
	now, err := n.instances(handle, was.UUID, profiles)
	return err == nil && slices.Equal(now, was.MIG.Instances)
}
