// SPDX-License-Identifier: Apache-2.0

package libnvml

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// partition creates a partition of each of the profiles.
func partition(t *testing.T, d nvml.Device, profiles ...int) {
	t.Helper()
	for _, profile := range profiles {
		info, ret := d.GetGpuInstanceProfileInfo(profile)
		succeed(t, "profile", ret)
		g, ret := d.CreateGpuInstance(&info)
		succeed(t, "create a GPU instance", ret)
		compute, ret := largest(g)
		succeed(t, "profile of compute instances", ret)
		_, ret = g.CreateComputeInstance(&compute)
		succeed(t, "create a compute instance", ret)
	}
}

// largest returns the profile of the compute instance that has the whole GPU instance.
func largest(g nvml.GpuInstance) (best nvml.ComputeInstanceProfileInfo, ret nvml.Return) {
	ret = nvml.ERROR_NOT_FOUND
	for profile := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, one := g.GetComputeInstanceProfileInfo(profile, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if one == nvml.SUCCESS && info.SliceCount >= best.SliceCount {
			best, ret = info, one
		}
	}
	return best, ret
}

func succeed(t *testing.T, step string, ret nvml.Return) {
	t.Helper()
	if ret != nvml.SUCCESS {
		t.Fatalf("%s: %s", step, ret)
	}
}

// TestNVIDIAPartitions creates partitions through the library and compares what it answers about them.
func TestNVIDIAPartitions(t *testing.T) {
	n := simulate(t, builtIn(t, "dgx-h100", ""))
	lib := load(t)
	got, ret := lib.DeviceGetHandleByIndex(0)
	succeed(t, "handle", ret)
	want, _ := initialized(t, n.NVML()).DeviceGetHandleByIndex(0)
	_, ret = got.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	succeed(t, "enable MIG mode", ret)
	partition(t, got, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.GPU_INSTANCE_PROFILE_2_SLICE)
	compare(t, "GPU", reflect.TypeFor[nvml.Device](), got, want, "Get", "Is")
	for i := range 2 {
		g, ret := got.GetMigDeviceHandleByIndex(i)
		succeed(t, "partition", ret)
		w, _ := want.GetMigDeviceHandleByIndex(i)
		if answered := compare(t, "partition", reflect.TypeFor[nvml.Device](), g, w, "Get", "Is"); answered < 10 {
			t.Errorf("got %d answers, want at least 10", answered)
		}
		uuid, _ := w.GetUUID()
		same, ret := lib.DeviceGetHandleByUUID(uuid)
		succeed(t, "handle by UUID", ret)
		if same != g {
			t.Errorf("partition %d has two handles: %v and %v", i, same, g)
		}
	}
	if g, w := instances(got), instances(want); g != w || strings.Count(w, "\n") != 2 {
		t.Errorf("got\n%swant\n%s", g, w)
	}
	before := instances(want)
	destroyAll(t, got)
	if after := instances(want); after != "" {
		t.Errorf("after destroying all of\n%sgot\n%s", before, after)
	}
}

// instances describes the GPU instances and their compute instances, one a line.
func instances(d nvml.Device) string {
	var b strings.Builder
	for profile := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(profile)
		if ret != nvml.SUCCESS {
			continue
		}
		all, _ := d.GetGpuInstances(&info)
		placements, ret := d.GetGpuInstancePossiblePlacements(&info)
		for _, g := range all {
			is, _ := g.GetInfo()
			parent, _ := is.Device.GetUUID()
			fmt.Fprint(&b, parent, is.Id, is.ProfileId, is.Placement, placements, ret)
			for compute := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
				info, ret := g.GetComputeInstanceProfileInfo(compute, 0)
				if ret != nvml.SUCCESS {
					continue
				}
				all, _ := g.GetComputeInstances(&info)
				for _, c := range all {
					is, _ := c.GetInfo()
					uuid, _ := is.Device.GetUUID()
					fmt.Fprint(&b, " ", uuid, is.Id, is.ProfileId, is.Placement)
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func destroyAll(t *testing.T, d nvml.Device) {
	t.Helper()
	for {
		p, ret := d.GetMigDeviceHandleByIndex(0)
		if ret == nvml.ERROR_NOT_FOUND {
			return
		}
		succeed(t, "partition", ret)
		id, _ := p.GetGpuInstanceId()
		g, ret := d.GetGpuInstanceById(id)
		succeed(t, "GPU instance", ret)
		c, ret := g.GetComputeInstanceById(0)
		succeed(t, "compute instance", ret)
		succeed(t, "destroy the compute instance", c.Destroy())
		succeed(t, "destroy the GPU instance", g.Destroy())
	}
}
