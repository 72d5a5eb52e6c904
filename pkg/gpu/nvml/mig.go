// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// switchableSince is the first major compute capability whose MIG mode changes without a reset of the GPU: Hopper
// (NVIDIA's MIG User Guide, "Enable MIG Mode").
const switchableSince = 9

// mebi is NVML's unit for the memory of partitions.
const mebi = 1 << 20

// readMIG reads how the GPU can be and is partitioned. What cannot be read is as it was when it last could be; if it
// never could, the GPU has no such profile, and may have partitions that are not known. Error: the GPU is lost.
func (s *session) readMIG(handle nvmllib.Device, d gpu.Device) (gpu.MIG, error) {
	m, err := s.askMIG(handle, d)
	if errors.Is(err, nvmllib.ERROR_GPU_IS_LOST) {
		return gpu.MIG{}, err
	}
	if err != nil {
		s.known.note(d, "How the GPU is partitioned cannot be read", err)
		was, known := s.known.partitioning(d.UUID)
		if m = fillMIG(m, was); !known {
			return m, nil
		}
	}
	s.known.keepPartitioning(d.UUID, m)
	return m, nil
}

// fillMIG adds to what could be read what was known before.
func fillMIG(m, was gpu.MIG) gpu.MIG {
	if !m.Capable {
		was.Problems = m.Problems
		return was
	}
	for _, p := range was.Profiles {
		if !slices.ContainsFunc(m.Profiles, func(now gpu.Profile) bool { return now.Name == p.Name }) {
			m.Profiles = append(m.Profiles, p)
		}
	}
	if !m.Unlisted || !was.Enabled || was.Unlisted {
		return m
	}
	overlaps := func(all []gpu.Partition, p gpu.Partition) bool {
		return slices.ContainsFunc(all, func(other gpu.Partition) bool { return other.Overlaps(p.Placement) })
	}
	read := slices.DeleteFunc(slices.Clone(m.Instances), func(p gpu.Partition) bool { return p.UUID == "" })
	kept := slices.DeleteFunc(slices.Clone(was.Instances), func(p gpu.Partition) bool { return overlaps(read, p) })
	for _, p := range m.Instances {
		if p.UUID == "" && !overlaps(kept, p) {
			read = append(read, p)
		}
	}
	m.Instances, m.Unlisted = sorted(append(kept, read...)), false
	return m
}

// askMIG reads the partitioning from NVML. After an error it returns what could be read.
func (s *session) askMIG(handle nvmllib.Device, d gpu.Device) (gpu.MIG, error) {
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.ERROR_NOT_SUPPORTED {
		return gpu.MIG{}, nil
	}
	if ret != nvmllib.SUCCESS {
		err := fmt.Errorf("get MIG mode: %w", ret)
		return gpu.MIG{Problems: []string{err.Error()}}, err
	}
	// NVIDIA's driver does not change the MIG mode of a vGPU, whatever it answers here.
	virtual := isVGPU(handle)
	if virtual && current != nvmllib.DEVICE_MIG_ENABLE {
		return gpu.MIG{}, nil
	}
	m := gpu.MIG{Capable: true, Enabled: current == nvmllib.DEVICE_MIG_ENABLE,
		Switchable: d.Product.ComputeCapability.Major >= switchableSince}
	profiles, err := s.profiles(handle)
	for _, p := range profiles {
		if p.unusable != nil {
			m.Problems = append(m.Problems, p.unusable.Error())
			s.known.note(d, fmt.Sprintf("MIG profile %d is not offered", p.info.Id), p.unusable)
			continue
		}
		m.Profiles = append(m.Profiles, p.Profile)
	}
	if virtual { // it is a GPU instance of its host, which makes and removes those
		m.Switchable, m.Profiles = false, nil
	}
	var unlisted error
	m.Instances, unlisted = s.instances(handle, d.UUID, profiles)
	// The partitions of a profile that cannot be read are not listed either.
	if err = errors.Join(err, unlisted); err != nil {
		m.Problems = append(m.Problems, strings.Split(err.Error(), "\n")...)
		m.Unlisted = m.Enabled
	}
	return m, err
}

// profile is a MIG profile of a GPU with NVML's description.
type profile struct {
	gpu.Profile
	info nvmllib.GpuInstanceProfileInfo
	// unusable says why the driver does not offer the profile. Somebody else may have made partitions of it.
	unusable error
}

// profiles returns the GPU's profiles, independent of the MIG mode. They never change. After an error it returns those
// that could be read.
func (s *session) profiles(handle nvmllib.Device) ([]profile, error) {
	id, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("get UUID: %w", ret)
	}
	if known, ok := s.known.offered.Load(id); ok {
		return known.([]profile), nil
	}
	all, err := s.readProfiles(handle)
	if err == nil && len(all) > 0 { // some GPUs list them in MIG mode only
		s.known.offered.Store(id, all)
	}
	return all, err
}

func (s *session) readProfiles(handle nvmllib.Device) ([]profile, error) {
	var all []profile
	var errs []error
	for i := range nvmllib.GPU_INSTANCE_PROFILE_COUNT {
		p, err := s.readProfile(handle, i)
		switch {
		case errors.Is(err, nvmllib.ERROR_GPU_IS_LOST):
			return nil, err
		case err != nil:
			errs = append(errs, err)
		case len(p.Starts) > 0:
			all = append(all, p)
		}
	}
	if len(all) == 0 && len(errs) > 0 {
		return nil, errs[0] // NVML tells nothing about profiles
	}
	return all, errors.Join(errs...)
}

// readProfile reads the profile with NVML's number. It has no starts if the GPU does not have it.
func (s *session) readProfile(handle nvmllib.Device, number int) (profile, error) {
	info, ret := handle.GetGpuInstanceProfileInfo(number)
	if absent(ret) {
		return profile{}, nil
	}
	if ret != nvmllib.SUCCESS {
		return profile{}, fmt.Errorf("get MIG profile %d: %w", number, ret)
	}
	placements, ret := handle.GetGpuInstancePossiblePlacements(&info)
	if absent(ret) {
		return profile{}, nil
	}
	if ret != nvmllib.SUCCESS {
		return profile{}, fmt.Errorf("get placements of MIG profile %d: %w", number, ret)
	}
	p := profile{info: info, Profile: gpu.Profile{Slices: int(info.SliceCount),
		Memory: info.MemorySizeMB * mebi, Engines: gpu.Engines{
			Multiprocessors: int(info.MultiprocessorCount), Copy: int(info.CopyEngineCount),
			Decoders: int(info.DecoderCount),
			Encoders: int(info.EncoderCount), JPEG: int(info.JpegCount), OFA: int(info.OfaCount)}}}
	name, err := ProfileName(s.devices, handle, number, info)
	if errors.Is(err, errUnnamed) {
		p.unusable = fmt.Errorf("name MIG profile %d: %w", number, err)
	} else if err != nil {
		return profile{}, fmt.Errorf("name MIG profile %d: %w", number, err)
	}
	p.Name = name
	for _, at := range placements {
		p.Size = int(at.Size)
		p.Starts = append(p.Starts, int(at.Start))
	}
	slices.Sort(p.Starts)
	return p, nil
}

// absent reports whether the answer means that the GPU has no such profile.
func absent(ret nvmllib.Return) bool {
	return ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.ERROR_INVALID_ARGUMENT
}

// ProfileName returns the name of a GPU's MIG profile as NVIDIA writes it, "1g.10gb+me". It derives the name from
// NVML's number and description of the profile, as NVIDIA's own components do. It does not use NVML's newer call for
// the name, which may work in MIG mode only: a name must not depend on the mode. The library must be initialised.
// Error: errUnnamed.
func ProfileName(devices device.Interface, handle nvmllib.Device, number int, info nvmllib.GpuInstanceProfileInfo) (
	string, error) {
	whole, ok := computeProfiles[int(info.SliceCount)]
	if !ok {
		return "", fmt.Errorf("%d slices: want one of 1 to 4 and 6 to 8: %w", info.SliceCount, errUnnamed)
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("get memory: %w", ret)
	}
	name, err := devices.NewMigProfile(number, whole, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB,
		memory.Total)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errUnnamed, err)
	}
	return name.String(), nil
}

// errUnnamed means that this version of the driver cannot name a profile, and so cannot offer it.
var errUnnamed = errors.New("the profile is newer than this driver")

// computeProfiles maps slices to the profile of a compute instance that has all of such a GPU instance.
var computeProfiles = map[int]int{
	1: nvmllib.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvmllib.COMPUTE_INSTANCE_PROFILE_2_SLICE,
	3: nvmllib.COMPUTE_INSTANCE_PROFILE_3_SLICE,
	4: nvmllib.COMPUTE_INSTANCE_PROFILE_4_SLICE, 6: nvmllib.COMPUTE_INSTANCE_PROFILE_6_SLICE,
	7: nvmllib.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	8: nvmllib.COMPUTE_INSTANCE_PROFILE_8_SLICE,
}

// instances returns the existing partitions, by start. A GPU instance without a compute instance, or with one that
// cannot be read, has no UUID. After an error it returns those that could be read.
func (s *session) instances(handle nvmllib.Device, parent gpu.UUID, profiles []profile) ([]gpu.Partition, error) {
	var all []gpu.Partition
	var errs []error
	for _, p := range profiles {
		found, err := gpuInstances(handle, p)
		errs = append(errs, err)
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
				errs = append(errs, fmt.Errorf("partition %s: %w", base.Placement, err))
			}
			if len(computes) == 0 {
				all = append(all, base)
			}
			for _, c := range computes {
				all = append(all, c.of(base))
			}
		}
	}
	return sorted(all), errors.Join(errs...)
}

// sorted sorts partitions by their start.
func sorted(all []gpu.Partition) []gpu.Partition {
	slices.SortFunc(all, func(a, b gpu.Partition) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ComputeInstance, b.ComputeInstance))
	})
	return all
}

// gpuInstance is an existing GPU instance.
type gpuInstance struct {
	handle nvmllib.GpuInstance
	info   nvmllib.GpuInstanceInfo
}

// gpuInstances returns the GPU instances of a profile; none if the GPU is not in MIG mode. After an error it returns
// those that could be read.
func gpuInstances(handle nvmllib.Device, p profile) ([]gpuInstance, error) {
	list, ret := handle.GetGpuInstances(&p.info)
	if ret == nvmllib.ERROR_NOT_SUPPORTED {
		return nil, nil
	}
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("list GPU instances of %s: %w", p.Name, ret)
	}
	var all []gpuInstance
	var errs []error
	for _, i := range list {
		info, ret := i.GetInfo()
		switch {
		case ret == nvmllib.SUCCESS:
			all = append(all, gpuInstance{i, info})
		case !removed(ret):
			errs = append(errs, fmt.Errorf("read a GPU instance of %s: %w", p.Name, ret))
		}
	}
	return all, errors.Join(errs...)
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
	if slices := int(c.profile.SliceCount); slices != p.Slices && p.Profile != "" {
		p.Profile = fmt.Sprintf("%dc.%s", slices, p.Profile)
		p.Engines.Multiprocessors = int(c.profile.MultiprocessorCount)
	}
	p.UUID, p.ComputeInstance = c.uuid, c.id
	return p
}

// computeInstances returns the compute instances of a GPU instance. After an error it returns those that could be read.
func computeInstances(in nvmllib.GpuInstance) ([]computeInstance, error) {
	var all []computeInstance
	var errs []error
	for i := range nvmllib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := in.GetComputeInstanceProfileInfo(i, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if absent(ret) {
			continue
		}
		if ret != nvmllib.SUCCESS {
			errs = append(errs, fmt.Errorf("get profile %d of compute instances: %w", i, ret))
			continue
		}
		list, ret := in.GetComputeInstances(&info)
		if ret != nvmllib.SUCCESS {
			errs = append(errs, fmt.Errorf("list compute instances: %w", ret))
		}
		for _, handle := range list {
			c, err := readComputeInstance(handle, info)
			if errors.Is(err, nvmllib.ERROR_NOT_FOUND) || errors.Is(err, nvmllib.ERROR_INVALID_ARGUMENT) {
				continue // removed since it was listed
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, c)
		}
	}
	return all, errors.Join(errs...)
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
