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

// switchableSince is the first major compute capability whose MIG mode changes without a reset of the GPU: Hopper
// (NVIDIA's MIG User Guide, "Enable MIG Mode").
const switchableSince = 9

// mebi is NVML's unit for the memory of partitions.
const mebi = 1 << 20

// readMIG reads how the GPU can be and is partitioned. If that fails, it returns the last known state; if there is
// none, the GPU has no partitions, and can be used as a whole if it is not in MIG mode. Error: the GPU is lost.
func (s *session) readMIG(handle nvmllib.Device, d gpu.Device) (gpu.MIG, error) {
	m, err := s.askMIG(handle, d)
	if errors.Is(err, nvmllib.ERROR_GPU_IS_LOST) {
		return gpu.MIG{}, err
	}
	if err != nil {
		s.note(d, "How the GPU is partitioned cannot be read", err)
		if was, known := s.looks.partitioning(d.UUID); known {
			return was, nil
		}
		return m, nil
	}
	s.looks.keepPartitioning(d.UUID, m)
	return m, nil
}

// partitioning returns the last known partitioning of the GPU.
func (l *looks) partitioning(id gpu.UUID) (was gpu.MIG, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, known = l.partitioned[id]
	return was, known
}

func (l *looks) keepPartitioning(id gpu.UUID, m gpu.MIG) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.partitioned == nil {
		l.partitioned = map[gpu.UUID]gpu.MIG{}
	}
	l.partitioned[id] = m
}

// askMIG reads the partitioning from NVML. After an error it returns what could be read.
func (s *session) askMIG(handle nvmllib.Device, d gpu.Device) (gpu.MIG, error) {
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.ERROR_NOT_SUPPORTED {
		return gpu.MIG{}, nil
	}
	if ret != nvmllib.SUCCESS {
		return gpu.MIG{}, fmt.Errorf("get MIG mode: %w", ret)
	}
	// NVIDIA's driver does not change the MIG mode of a virtual GPU, whatever it answers here.
	if mode, ret := handle.GetVirtualizationMode(); ret == nvmllib.SUCCESS &&
		mode == nvmllib.GPU_VIRTUALIZATION_MODE_VGPU {
		return gpu.MIG{}, nil
	}
	m := gpu.MIG{Capable: true, Enabled: current == nvmllib.DEVICE_MIG_ENABLE,
		Switchable: d.Product.ComputeCapability.Major >= switchableSince}
	profiles, err := s.profiles(handle)
	if err != nil {
		return m, err
	}
	instances, err := s.instances(handle, d.UUID, profiles)
	if err != nil {
		return m, err
	}
	for _, p := range profiles {
		m.Profiles = append(m.Profiles, p.Profile)
	}
	m.Instances = instances
	return m, nil
}

// profile is a MIG profile of a GPU with NVML's description.
type profile struct {
	gpu.Profile
	info nvmllib.GpuInstanceProfileInfo
}

// profiles returns the GPU's profiles, independent of the MIG mode. They never change.
func (s *session) profiles(handle nvmllib.Device) ([]profile, error) {
	id, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("get UUID: %w", ret)
	}
	if known, ok := s.offered.Load(id); ok {
		return known.([]profile), nil
	}
	all, err := s.readProfiles(handle)
	if err == nil && len(all) > 0 { // some GPUs list them in MIG mode only
		s.offered.Store(id, all)
	}
	return all, err
}

func (s *session) readProfiles(handle nvmllib.Device) ([]profile, error) {
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
		name, err := ProfileName(s.devices, handle, i, info)
		if err != nil {
			return nil, fmt.Errorf("name MIG profile %d: %w", i, err)
		}
		p := profile{info: info, Profile: gpu.Profile{Name: name, Slices: int(info.SliceCount),
			Memory: info.MemorySizeMB * mebi, Engines: gpu.Engines{
				Multiprocessors: int(info.MultiprocessorCount), Copy: int(info.CopyEngineCount),
				Decoders: int(info.DecoderCount),
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

// absent reports whether the answer means that the GPU has no such profile.
func absent(ret nvmllib.Return) bool {
	return ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.ERROR_INVALID_ARGUMENT
}

// ProfileName returns the name of a GPU's MIG profile as NVIDIA writes it, "1g.10gb+me". It derives the name from
// NVML's number and description of the profile, as NVIDIA's own components do. It does not use NVML's newer call for
// the name, which may work in MIG mode only: a name must not depend on the mode. The library must be initialised.
func ProfileName(devices device.Interface, handle nvmllib.Device, number int, info nvmllib.GpuInstanceProfileInfo) (
	string, error) {
	whole, ok := computeProfiles[int(info.SliceCount)]
	if !ok {
		return "", fmt.Errorf("%d slices: want one of 1 to 4 and 6 to 8", info.SliceCount)
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("get memory: %w", ret)
	}
	name, err := devices.NewMigProfile(number, whole, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB,
		memory.Total)
	if err != nil {
		return "", err
	}
	return name.String(), nil
}

// computeProfiles maps slices to the profile of a compute instance that has all of such a GPU instance.
var computeProfiles = map[int]int{
	1: nvmllib.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvmllib.COMPUTE_INSTANCE_PROFILE_2_SLICE,
	3: nvmllib.COMPUTE_INSTANCE_PROFILE_3_SLICE,
	4: nvmllib.COMPUTE_INSTANCE_PROFILE_4_SLICE, 6: nvmllib.COMPUTE_INSTANCE_PROFILE_6_SLICE,
	7: nvmllib.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	8: nvmllib.COMPUTE_INSTANCE_PROFILE_8_SLICE,
}

// instances returns the existing partitions, by start. A GPU instance without a compute instance has no UUID.
func (s *session) instances(handle nvmllib.Device, parent gpu.UUID, profiles []profile) ([]gpu.Partition, error) {
	var all []gpu.Partition
	for _, p := range profiles {
		found, err := gpuInstances(handle, p)
		if err != nil {
			return nil, err
		}
		for _, i := range found {
			base := gpu.Partition{GPUInstance: int(i.info.Id), Slices: p.Slices, Engines: p.Engines, Memory: p.Memory,
				Placement: gpu.Placement{
					Parent: parent, Profile: p.Name, Start: int(i.info.Placement.Start),
					Size: int(i.info.Placement.Size)}}
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

// gpuInstance is an existing GPU instance.
type gpuInstance struct {
	handle nvmllib.GpuInstance
	info   nvmllib.GpuInstanceInfo
}

// gpuInstances returns the GPU instances of a profile; none if the GPU is not in MIG mode.
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

// removed reports whether the answer means that a listed instance has been removed meanwhile, for another claim.
func removed(ret nvmllib.Return) bool {
	return ret == nvmllib.ERROR_NOT_FOUND || ret == nvmllib.ERROR_INVALID_ARGUMENT
}

// computeInstance is an existing compute instance.
type computeInstance struct {
	handle  nvmllib.ComputeInstance
	profile nvmllib.ComputeInstanceProfileInfo
	id      int
	uuid    gpu.UUID
}

// of returns the partition that consists of the GPU instance and the compute instance. If the compute instance has only
// some of the slices, the profile says so.
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

func readComputeInstance(handle nvmllib.ComputeInstance, profile nvmllib.ComputeInstanceProfileInfo) (computeInstance,
	error) {
	info, ret := handle.GetInfo()
	if ret != nvmllib.SUCCESS {
		return computeInstance{}, fmt.Errorf("read a compute instance: %w", ret)
	}
	uuid, ret := PartitionUUID(info)
	if ret != nvmllib.SUCCESS {
		return computeInstance{}, fmt.Errorf("get UUID of compute instance %d: %w", info.Id, ret)
	}
	return computeInstance{handle, profile, int(info.Id), gpu.UUID(uuid)}, nil
}

// sameMIG reports whether the partitioning of the GPU is unchanged.
func (s *session) sameMIG(handle nvmllib.Device, was gpu.Device) bool {
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
	profiles, err := s.profiles(handle)
	if err != nil {
		return false
	}
	now, err := s.instances(handle, was.UUID, profiles)
	return err == nil && slices.Equal(now, was.MIG.Instances)
}
