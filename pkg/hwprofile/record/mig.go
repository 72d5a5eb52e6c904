// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// readMIG records the GPU's MIG profiles and instances.
func (g *gpuReader) readMIG() {
	d, c := g.handle, &g.out.Calls
	c.GetMigMode = ask(g, "GetMigMode", func() (hwprofile.MigMode, nvmllib.Return) {
		current, pending, ret := d.GetMigMode()
		return hwprofile.MigMode{Current: current, Pending: pending}, ret
	}, same)
	c.GetMaxMigDeviceCount = ask(g, "GetMaxMigDeviceCount", d.GetMaxMigDeviceCount, same)
	infos := g.profiles()
	if len(infos) == 0 {
		return
	}
	c.GetGpuInstancePossiblePlacements = g.placements(infos)
	if placements, e := c.GetGpuInstancePossiblePlacements.Get(); e == "" {
		// A profile without a placement cannot be replayed.
		profiles, _ := c.GetGpuInstanceProfileInfo.Get()
		maps.DeleteFunc(profiles, func(number int, _ hwprofile.GPUInstanceProfile) bool {
			return len(placements[number]) == 0
		})
		maps.DeleteFunc(infos, func(number int, _ nvmllib.GpuInstanceProfileInfo) bool {
			return len(placements[number]) == 0
		})
	}
	g.instances(infos)
}

// placements records the possible placements of each profile. If NVML tells them for none, the answer is its error.
func (g *gpuReader) placements(
	infos map[int]nvmllib.GpuInstanceProfileInfo) hwprofile.Answer[hwprofile.GPUInstancePlacements] {
	answers := askEach(g, "GetGpuInstancePossiblePlacements", slices.Sorted(maps.Keys(infos)),
		func(number int) ([]nvmllib.GpuInstancePlacement, nvmllib.Return) {
			info := infos[number]
			return g.handle.GetGpuInstancePossiblePlacements(&info)
		})
	possible, e := answers.Get()
	if e != "" {
		return hwprofile.Failure[hwprofile.GPUInstancePlacements](e)
	}
	placements := hwprofile.GPUInstancePlacements{}
	for number, all := range possible {
		for _, at := range all {
			placements[number] = append(placements[number], hwprofile.Span{Start: int(at.Start), Size: int(at.Size)})
		}
	}
	return hwprofile.Value(placements)
}

// profiles records the GPU instance profiles, and returns NVML's answers by number.
func (g *gpuReader) profiles() map[int]nvmllib.GpuInstanceProfileInfo {
	var numbers []int
	for number := range nvmllib.GPU_INSTANCE_PROFILE_COUNT {
		numbers = append(numbers, number)
	}
	answers := askEach(g, "GetGpuInstanceProfileInfo", numbers, func(number int) (nvmllib.GpuInstanceProfileInfo,
		nvmllib.Return) {
		return g.handle.GetGpuInstanceProfileInfo(number)
	})
	infos, e := answers.Get()
	if e != "" {
		g.out.Calls.GetGpuInstanceProfileInfo = hwprofile.Failure[hwprofile.GPUInstanceProfiles](e)
		return nil
	}
	profiles := hwprofile.GPUInstanceProfiles{}
	for number, info := range infos {
		name, err := nvml.ProfileName(device.New(g.Library), g.handle, number, info)
		if err != nil {
			g.note("GPU %d: name MIG profile %d: %v", g.index, number, err)
		}
		profiles[number] = hwprofile.GPUInstanceProfile{
			ID: int(info.Id), Name: name, SliceCount: int(info.SliceCount), InstanceCount: int(info.InstanceCount),
			MultiprocessorCount: int(info.MultiprocessorCount), CopyEngineCount: int(info.CopyEngineCount),
			DecoderCount: int(info.DecoderCount),
			EncoderCount: int(info.EncoderCount), JPEGCount: int(info.JpegCount), OFACount: int(info.OfaCount),
			MemorySizeMB: info.MemorySizeMB,
		}
	}
	g.out.Calls.GetGpuInstanceProfileInfo = hwprofile.Value(profiles)
	return infos
}

// instances records the existing instances. Only they return the possible compute instance profiles.
func (g *gpuReader) instances(infos map[int]nvmllib.GpuInstanceProfileInfo) {
	profiles, _ := g.out.Calls.GetGpuInstanceProfileInfo.Get()
	compute := hwprofile.ComputeInstanceProfiles{}
	for number, known := range hwprofile.ComputeProfilesOf(profiles) {
		compute[number] = known
	}
	for number := range nvmllib.GPU_INSTANCE_PROFILE_COUNT {
		info, ok := infos[number]
		if !ok {
			continue
		}
		list, ret := g.handle.GetGpuInstances(&info)
		if ret != nvmllib.SUCCESS && ret != nvmllib.ERROR_NOT_SUPPORTED { // not supported: it is not in MIG mode
			g.out.Calls.SetError("GetGpuInstances", code(ret))
		}
		for _, instance := range list {
			asked := g.computeProfiles(instance)
			if len(asked) > 0 {
				compute[number] = asked
			}
			g.instance(number, instance)
		}
	}
	slices.SortFunc(g.out.Instances, func(a, b hwprofile.GPUInstance) int { return cmp.Compare(a.ID, b.ID) })
	if len(g.out.Instances) == 0 {
		g.note("GPU %d: compute instance profiles are derived: there is no GPU instance to ask", g.index)
	}
	g.out.Calls.GpuInstanceGetComputeInstanceProfileInfo = hwprofile.Value(compute)
}

func (g *gpuReader) computeProfiles(instance nvmllib.GpuInstance) map[int]hwprofile.ComputeInstanceProfile {
	out := map[int]hwprofile.ComputeInstanceProfile{}
	for number := range nvmllib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := instance.GetComputeInstanceProfileInfo(number, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvmllib.SUCCESS {
			out[number] = hwprofile.ComputeInstanceProfile{ID: int(info.Id), SliceCount: int(info.SliceCount),
				InstanceCount:       int(info.InstanceCount),
				MultiprocessorCount: int(info.MultiprocessorCount)}
		}
	}
	return out
}

// instance records a GPU instance with its compute instances.
func (g *gpuReader) instance(profile int, instance nvmllib.GpuInstance) {
	info, ret := instance.GetInfo()
	if ret != nvmllib.SUCCESS {
		g.out.Calls.SetError("GpuInstanceGetInfo", code(ret))
		return
	}
	out := hwprofile.GPUInstance{ID: int(info.Id), Profile: profile,
		Span: hwprofile.Span{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}}
	for number := range nvmllib.COMPUTE_INSTANCE_PROFILE_COUNT {
		kind, ret := instance.GetComputeInstanceProfileInfo(number, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvmllib.SUCCESS {
			continue
		}
		list, ret := instance.GetComputeInstances(&kind)
		if ret != nvmllib.SUCCESS {
			g.out.Calls.SetError("GpuInstanceGetComputeInstances", code(ret))
		}
		for _, ci := range list {
			if is, ok := g.computeInstance(number, ci); ok {
				out.Compute = append(out.Compute, is)
			}
		}
	}
	slices.SortFunc(out.Compute, func(a, b hwprofile.ComputeInstance) int { return cmp.Compare(a.ID, b.ID) })
	g.out.Instances = append(g.out.Instances, out)
}

func (g *gpuReader) computeInstance(profile int, ci nvmllib.ComputeInstance) (hwprofile.ComputeInstance, bool) {
	info, ret := ci.GetInfo()
	if ret != nvmllib.SUCCESS {
		g.out.Calls.SetError("ComputeInstanceGetInfo", code(ret))
		return hwprofile.ComputeInstance{}, false
	}
	uuid, ret := nvml.PartitionUUID(info)
	if ret != nvmllib.SUCCESS {
		g.note("GPU %d: compute instance %d does not say its UUID: %s", g.index, info.Id, code(ret))
		return hwprofile.ComputeInstance{}, false
	}
	return hwprofile.ComputeInstance{ID: int(info.Id), Profile: profile, UUID: uuid,
		Span: hwprofile.Span{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}}, true
}
