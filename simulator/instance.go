// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// gpuInstance implements a handle of a GPU instance.
type gpuInstance struct {
	mock.GpuInstance
	gpu *device
	id  int
}

// handle sets the calls of the instance and returns its handle.
func (g *gpuInstance) handle() nvml.GpuInstance {
	g.GetInfoFunc = g.info
	g.GetComputeInstanceProfileInfoFunc = g.profileInfo
	g.CreateComputeInstanceFunc = g.createCompute
	g.GetComputeInstancesFunc = g.computes
	g.GetComputeInstanceByIdFunc = func(id int) (nvml.ComputeInstance, nvml.Return) {
		ci := &computeInstance{instance: g, id: id}
		if _, ret := ci.current(); ret != nvml.SUCCESS {
			return nil, ret
		}
		return ci.handle(), nvml.SUCCESS
	}
	g.DestroyFunc = func() nvml.Return {
		return code(g.gpu.library.node.DestroyGPUInstance(g.gpu.UUID, g.id))
	}
	guard(&g.GpuInstance, g.gpu.gateOf("GpuInstance"), unsupported)
	return g
}

// gateOf returns the gate for calls with that prefix.
func (d *device) gateOf(prefix string) func(call string) nvml.Return {
	return func(call string) nvml.Return { return d.gate(prefix + call) }
}

func unsupported(string) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }

// current returns the instance in its current state, or ERROR_NOT_FOUND.
func (g *gpuInstance) current() (node.GPUInstance, nvml.Return) {
	c, ret := g.gpu.current()
	if ret != nvml.SUCCESS {
		return node.GPUInstance{}, ret
	}
	is, err := c.Instance(g.id)
	return is, code(err)
}

func (g *gpuInstance) info() (nvml.GpuInstanceInfo, nvml.Return) {
	is, ret := g.current()
	if ret != nvml.SUCCESS {
		return nvml.GpuInstanceInfo{}, ret
	}
	p, ret := g.gpu.profile(is.Profile)
	return nvml.GpuInstanceInfo{Device: g.gpu, Id: uint32(is.ID), ProfileId: uint32(p.ID),
		Placement: placement(is.Span)}, ret
}

// profiles returns the compute instance profiles of the instance by NVML's numbers.
func (g *gpuInstance) profiles() (node.GPUInstance, map[int]hwprofile.ComputeInstanceProfile, nvml.Return) {
	is, ret := g.current()
	if ret != nvml.SUCCESS {
		return is, nil, ret
	}
	all, ret := value(g.gpu, func(c node.GPU) hwprofile.Answer[hwprofile.ComputeInstanceProfiles] {
		return c.Calls.GpuInstanceGetComputeInstanceProfileInfo
	}, same[hwprofile.ComputeInstanceProfiles])()
	return is, all[is.Profile], ret
}

func (g *gpuInstance) profileInfo(profile, engines int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	if profile < 0 || profile >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT ||
		engines != nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	is, all, ret := g.profiles()
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceProfileInfo{}, ret
	}
	p, ok := all[profile]
	if !ok {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	of, ret := g.gpu.profile(is.Profile)
	return nvml.ComputeInstanceProfileInfo{
		Id: uint32(p.ID), SliceCount: uint32(p.SliceCount), InstanceCount: uint32(p.InstanceCount),
		MultiprocessorCount: uint32(p.MultiprocessorCount), SharedCopyEngineCount: uint32(of.CopyEngineCount),
		SharedDecoderCount: uint32(of.DecoderCount), SharedEncoderCount: uint32(of.EncoderCount),
		SharedJpegCount: uint32(of.JPEGCount),
		SharedOfaCount:  uint32(of.OFACount),
	}, ret
}

func (g *gpuInstance) createCompute(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	if info == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	made, err := g.gpu.library.node.CreateComputeInstance(g.gpu.UUID, g.id, int(info.Id))
	if err != nil {
		return nil, code(err)
	}
	return (&computeInstance{instance: g, id: made.ID}).handle(), nvml.SUCCESS
}

func (g *gpuInstance) computes(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	if info == nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	is, profiles, ret := g.profiles()
	var out []nvml.ComputeInstance
	for _, ci := range is.Compute {
		if profiles[ci.Profile].ID == int(info.Id) {
			out = append(out, (&computeInstance{instance: g, id: ci.ID}).handle())
		}
	}
	return out, ret
}

// computeInstance implements a handle of a compute instance.
type computeInstance struct {
	mock.ComputeInstance
	instance *gpuInstance
	id       int
}

// handle sets the calls of the instance and returns its handle.
func (ci *computeInstance) handle() nvml.ComputeInstance {
	ci.GetInfoFunc = ci.info
	ci.DestroyFunc = func() nvml.Return {
		g := ci.instance
		return code(g.gpu.library.node.DestroyComputeInstance(g.gpu.UUID, g.id, ci.id))
	}
	guard(&ci.ComputeInstance, ci.instance.gpu.gateOf("ComputeInstance"), unsupported)
	return ci
}

// current returns the instance in its current state, or ERROR_NOT_FOUND.
func (ci *computeInstance) current() (node.ComputeInstance, nvml.Return) {
	g, ret := ci.instance.current()
	if ret != nvml.SUCCESS {
		return node.ComputeInstance{}, ret
	}
	at := slices.IndexFunc(g.Compute, func(is node.ComputeInstance) bool { return is.ID == ci.id })
	if at < 0 {
		return node.ComputeInstance{}, nvml.ERROR_NOT_FOUND
	}
	return g.Compute[at], nvml.SUCCESS
}

func (ci *computeInstance) info() (nvml.ComputeInstanceInfo, nvml.Return) {
	is, ret := ci.current()
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceInfo{}, ret
	}
	_, profiles, ret := ci.instance.profiles()
	return nvml.ComputeInstanceInfo{
		Device: ci.instance.gpu, GpuInstance: ci.instance, Id: uint32(is.ID), // the parent, as nvml.h says
		ProfileId: uint32(profiles[is.Profile].ID),
		Placement: nvml.ComputeInstancePlacement{Start: uint32(is.Span.Start), Size: uint32(is.Span.Size)},
	}, ret
}
