// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// profiled returns NVML's numbers of the GPU's profiles by name.
func profiled(t *testing.T, d nvml.Device) map[string]int {
	t.Helper()
	named, ok := d.(interface {
		GpuInstanceProfileInfo_v3(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
	})
	if !ok {
		t.Fatalf("a %T does not name its profiles", d)
	}
	out := map[string]int{}
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		if info, ret := named.GpuInstanceProfileInfo_v3(number); ret == nvml.SUCCESS {
			out[strings.TrimPrefix(text(info.Name[:]), "MIG ")] = number
		}
	}
	return out
}

// partitions runs commands on the first GPU of a node through NVML, and returns the errors. "mig 1", "create PROFILE
// START SIZE", "create PROFILE" (any placement), "compute GI [SLICES]" (default: all), "destroy GI", "destroy GI CI".
func partitions(t *testing.T, n *simulator.Node, commands string) string {
	t.Helper()
	d := gpu(t, n, 0)
	var said []string
	for _, command := range strings.Split(commands, "; ") {
		words := strings.Fields(command)
		if len(words) == 0 {
			continue
		}
		if ret := partition(t, d, words); ret != "SUCCESS" {
			said = append(said, ret)
		}
	}
	return strings.Join(said, "; ")
}

func partition(t *testing.T, d nvml.Device, words []string) string {
	t.Helper()
	number := func(i int) int {
		n, err := strconv.Atoi(words[i])
		must(t, err)
		return n
	}
	switch words[0] {
	case "mig":
		activation, ret := d.SetMigMode(number(1))
		if ret == nvml.SUCCESS && activation != nvml.SUCCESS {
			return fmt.Sprint("activation ", activation)
		}
		return ret.Error()
	case "create":
		profile, ok := profiled(t, d)[words[1]]
		if !ok {
			t.Fatalf("no profile %s", words[1])
		}
		info, ret := d.GetGpuInstanceProfileInfo(profile)
		if ret == nvml.SUCCESS && len(words) == 2 {
			_, ret = d.CreateGpuInstance(&info)
		} else if ret == nvml.SUCCESS {
			_, ret = d.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: uint32(number(2)),
				Size: uint32(number(3))})
		}
		return ret.Error()
	}
	g, ret := d.GetGpuInstanceById(number(1))
	switch {
	case ret != nvml.SUCCESS:
		return ret.Error()
	case words[0] == "compute":
		return compute(t, g, words[2:])
	case len(words) == 2:
		return g.Destroy().Error()
	}
	ci, ret := g.GetComputeInstanceById(number(2))
	if ret != nvml.SUCCESS {
		return ret.Error()
	}
	return ci.Destroy().Error()
}

// compute creates a compute instance with that many slices, or all of the GPU instance.
func compute(t *testing.T, g nvml.GpuInstance, slices []string) string {
	t.Helper()
	var info nvml.ComputeInstanceProfileInfo
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		p, ret := g.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.SUCCESS && (len(slices) == 0 && p.SliceCount > info.SliceCount || len(slices) > 0 &&
			slices[0] == fmt.Sprint(p.SliceCount)) {
			info = p
		}
	}
	_, ret := g.CreateComputeInstance(&info)
	return ret.Error()
}

func TestPartitions(t *testing.T) {
	for _, tt := range []struct{ name, profile, commands, said, want string }{
		{"MIG mode at once", "dgx-h100", "mig 1", "", " mig=on\n"},
		{"MIG mode on and off", "dgx-h100", "mig 1; mig 0", "", "\n"},
		{"MIG mode that is no mode", "dgx-h100", "mig 2", "ERROR_INVALID_ARGUMENT", "\n"},
		{"MIG mode after a reset", "dgx-a100", "mig 1", "activation ERROR_RESET_REQUIRED", " mig=off,pending=on\n"},
		{"MIG mode after a reset, and not after all", "dgx-a100", "mig 1; mig 0", "activation ERROR_RESET_REQUIRED",
			"\n"},
		{"MIG mode of a GPU without", "l40s-x4", "mig 1", "ERROR_NOT_SUPPORTED", "\n"},
		{"an instance without MIG mode", "dgx-h100", "create 1g.10gb 0 1", "ERROR_NOT_SUPPORTED", "\n"},
		{"a partition", "dgx-h100", "mig 1; create 1g.10gb 4 1; compute 11", "", " mig=on\n/1g.10gb@4 gi=11 ci=0\n"},
		{"a GPU instance alone", "dgx-h100", "mig 1; create 1g.10gb 4 1", "", " mig=on\n/1g.10gb@4 gi=11\n"},
		{"seven of the smallest", "dgx-h100", "mig 1; create 1g.10gb; create 1g.10gb; create 1g.10gb; create " +
			"1g.10gb; create 1g.10gb; create 1g.10gb; create 1g.10gb+me; create 1g.10gb",
			"ERROR_INSUFFICIENT_RESOURCES", " mig=on\n/1g.10gb@0 gi=7\n/1g.10gb@1 gi=8\n/1g.10gb@2 gi=9\n/1g.10gb@3 " +
				"gi=10\n/1g.10gb@4 gi=11\n/1g.10gb@5 gi=12\n/1g.10gb+me@6 gi=13\n"},
		{"a half and a half of more slices", "dgx-h100", "mig 1; create 4g.40gb 0 4; create 3g.40gb 4 4", "",
			" mig=on\n/4g.40gb@0 gi=1\n/3g.40gb@4 gi=2\n"},
		{"all of it", "dgx-h100", "mig 1; create 7g.80gb 0 8; compute 0; create 1g.10gb",
			"ERROR_INSUFFICIENT_RESOURCES", " mig=on\n/7g.80gb@0 gi=0 ci=0\n"},
		{"twice the memory", "dgx-h100", "mig 1; create 1g.20gb 6 2; create 1g.10gb 6 1",
			"ERROR_INSUFFICIENT_RESOURCES", " mig=on\n/1g.20gb@6 gi=6\n"},
		{"a place that is none", "dgx-h100", "mig 1; create 3g.40gb 2 4", "ERROR_INVALID_ARGUMENT", " mig=on\n"},
		{"a size that is none", "dgx-h100", "mig 1; create 3g.40gb 4 3", "ERROR_INVALID_ARGUMENT", " mig=on\n"},
		{"media extensions twice", "dgx-h100",
			"mig 1; create 1g.10gb+me 0 1; create 1g.10gb+me 1 1; create 1g.10gb 1 1", "ERROR_INSUFFICIENT_RESOURCES",
			" mig=on\n/1g.10gb+me@0 gi=7\n/1g.10gb@1 gi=8\n"},
		{"a part with compute instances", "dgx-h100", "mig 1; create 3g.40gb 4 4; compute 2 1; compute 2 2; compute " +
			"2 1; destroy 2; destroy 2 0; compute 2 1",
			"ERROR_INSUFFICIENT_RESOURCES; ERROR_IN_USE",
			" mig=on\n/1c.3g.40gb@4 gi=2 ci=0\n/2c.3g.40gb@4 gi=2 ci=1\n"},
		{"gone again", "dgx-h100", "mig 1; create 2g.20gb 2 2; compute 4; destroy 4 0; destroy 4; mig 0", "", "\n"},
		{"MIG mode off under an instance", "dgx-h100", "mig 1; create 2g.20gb 2 2; mig 0", "activation ERROR_IN_USE",
			" mig=on\n/2g.20gb@2 gi=4\n"},
		{"what is not there", "dgx-h100", "mig 1; destroy 3; create 1g.10gb 0 1; destroy 7 0",
			"ERROR_NOT_FOUND; ERROR_NOT_FOUND", " mig=on\n/1g.10gb@0 gi=7\n"},
		{"all the media engines", "rtxpro6000-x2", "mig 1; create 1g.24gb+me.all 0 3; create 1g.24gb 3 3; create " +
			"1g.24gb-me 3 3; create 2g.48gb-me 6 6; create 1g.24gb+gfx 9 3",
			"ERROR_INSUFFICIENT_RESOURCES; ERROR_INSUFFICIENT_RESOURCES",
			" mig=on\n/2g.48gb-me@6 gi=2\n/1g.24gb+me.all@0 gi=3\n/1g.24gb-me@3 gi=4\n"},
		{"graphics", "rtxpro6000-x2", "mig 1; create 1g.24gb+gfx; create 1g.24gb+gfx; create 2g.48gb+gfx; create " +
			"1g.24gb+gfx", "ERROR_INSUFFICIENT_RESOURCES",
			" mig=on\n/2g.48gb+gfx@6 gi=2\n/1g.24gb+gfx@0 gi=3\n/1g.24gb+gfx@3 gi=4\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, tt.profile)
			if got := partitions(t, n, tt.commands); got != tt.said {
				t.Errorf("said %q, want %q", got, tt.said)
			}
			if got := firstGPU(n); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// firstGPU is what the node prints of its first GPU behind the compute mode, without the name.
func firstGPU(n *simulator.Node) string {
	lines := strings.SplitAfter(n.String(), "\n")
	name, _, _ := strings.Cut(lines[1], " ")
	_, out, _ := strings.Cut(lines[1], "mode=Default")
	for _, line := range lines[2:] {
		if rest, ok := strings.CutPrefix(line, name); ok {
			out += rest
		}
	}
	return out
}

func TestMIGModeOfA100NeedsReset(t *testing.T) {
	n := open(t, "dgx-a100")
	partitions(t, n, "mig 1")
	must(t, n.Unplug("0"))
	must(t, n.Plug("0"))
	if got := partitions(t, n, "create 1g.5gb+me 3 1; compute 10; create 2g.10gb 0 2"); got != "" {
		t.Error(got)
	}
	if got, want := firstGPU(n), " mig=on\n/2g.10gb@0 gi=3\n/1g.5gb+me@3 gi=10 ci=0\n"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	must(t, n.Unplug("0"))
	must(t, n.Plug("0")) // the mode stays on an Ampere, the instances do not
	if got, want := firstGPU(n), " mig=on\n"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestRebootRemovesPartitionsOfHopper(t *testing.T) {
	n := open(t, "dgx-h100")
	partitions(t, n, "mig 1; create 1g.10gb; compute 7")
	must(t, n.Unplug("0"))
	must(t, n.Plug("0"))
	if got, want := firstGPU(n), "\n"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// partitionOf makes a partition on the first GPU and returns its handle.
func partitionOf(t *testing.T, n *simulator.Node, commands string) nvml.Device {
	t.Helper()
	if said := partitions(t, n, commands); said != "" {
		t.Fatal(said)
	}
	d, ret := gpu(t, n, 0).GetMigDeviceHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return d
}

func TestPartitionCalls(t *testing.T) {
	n := open(t, "dgx-h100")
	p := partitionOf(t, n, "mig 1; create 1g.10gb+me 4 1; compute 11; create 2g.20gb 0 2; compute 3; destroy 3 0; "+
		"destroy 3")
	whole := gpu(t, n, 0)
	uuid, _ := p.GetUUID()
	again, ret := n.NVML().DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	parent, _ := p.GetDeviceHandleFromMigDeviceHandle()
	g, _ := whole.GetGpuInstanceById(11)
	instance, _ := g.GetInfo()
	ci, _ := g.GetComputeInstanceById(0)
	about, ret := ci.GetInfo()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	info, _ := whole.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	full, _ := g.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
		nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	computes, _ := g.GetComputeInstances(&full)
	for _, c := range []struct{ name, got, want string }{
		{"is it one", says(p.IsMigDeviceHandle()), "true SUCCESS"},
		{"the GPU", says(whole.IsMigDeviceHandle()), "false SUCCESS"},
		{"UUID", fmt.Sprint(strings.HasPrefix(uuid, "MIG-"), len(uuid)), "true 40"},
		{"by its UUID", says(again.GetUUID()), uuid + " SUCCESS"},
		{"the compute instance's parent", says(about.Device.IsMigDeviceHandle()), "false SUCCESS"},
		{"index", says(p.GetIndex()), "0 SUCCESS"},
		{"name", says(p.GetName()), "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me SUCCESS"},
		{"GPU instance", says(p.GetGpuInstanceId()), "11 SUCCESS"},
		{"compute instance", says(p.GetComputeInstanceId()), "0 SUCCESS"},
		{"parent", says(parent.GetMinorNumber()), "0 SUCCESS"},
		{"attributes", says(p.GetAttributes()), "{16 1 1 0 1 1 1 1 9984} SUCCESS"},
		{"memory", says(p.GetMemoryInfo()), "{10468982784 10468982784 0} SUCCESS"},
		{"processes", says(p.GetComputeRunningProcesses()), "[] SUCCESS"},
		{"compute capability", says(p.GetCudaComputeCapability()), "9 0 SUCCESS"},
		{"a call it has not", says(p.GetMinorNumber()), "0 ERROR_NOT_SUPPORTED"},
		{"the next one", says(whole.GetMigDeviceHandleByIndex(1)), "<nil> ERROR_NOT_FOUND"},
		{"one that cannot be", says(whole.GetMigDeviceHandleByIndex(7)), "<nil> ERROR_INVALID_ARGUMENT"},
		{"no UUID", says(n.NVML().DeviceGetHandleByUUID("MIG-0")), "<nil> ERROR_NOT_FOUND"},
		{"the GPU instance", fmt.Sprint(instance.Id, instance.ProfileId, instance.Placement), "11 20 {4 1}"},
		{"the compute instance", fmt.Sprint(about.Id, about.ProfileId, about.Placement), "0 0 {0 1}"},
		{"compute instances of the profile", fmt.Sprint(len(computes)), "1"},
		{"GPU instances of another profile", says(whole.GetGpuInstances(&info)), "[] SUCCESS"},
		{"how many more", says(whole.GetGpuInstanceRemainingCapacity(&info)), "6 SUCCESS"},
		{"the profile", fmt.Sprintf("%+v", info), "{Id:19 IsP2pSupported:0 SliceCount:1 InstanceCount:7 " +
			"MultiprocessorCount:16 CopyEngineCount:1 DecoderCount:1 EncoderCount:0 JpegCount:1 OfaCount:0 " +
			"MemorySizeMB:9984}"},
		{"its compute instances'", fmt.Sprintf("%+v", full), "{Id:0 SliceCount:1 InstanceCount:1 " +
			"MultiprocessorCount:16 SharedCopyEngineCount:1 SharedDecoderCount:1 SharedEncoderCount:0 " +
			"SharedJpegCount:1 SharedOfaCount:1}"},
		{"a profile it has not", says(whole.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_6_SLICE)),
			says(nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED)},
		{"a profile that is none", says(whole.GetGpuInstanceProfileInfo(99)), says(nvml.GpuInstanceProfileInfo{},
			nvml.ERROR_INVALID_ARGUMENT)},
		{"places of another GPU, without MIG mode", says(gpu(t, n, 1).GetGpuInstancePossiblePlacements(&info)),
			"[{0 1} {1 1} {2 1} {3 1} {4 1} {5 1} {6 1}] SUCCESS"},
		{"instances of another GPU", says(gpu(t, n, 1).GetGpuInstanceById(1)), "<nil> ERROR_NOT_SUPPORTED"},
		{"nothing", says(whole.CreateGpuInstance(nil)), "<nil> ERROR_INVALID_ARGUMENT"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, c.got, c.want)
		}
	}
	partitions(t, n, "destroy 11 0; create 1g.10gb 0 1; compute 7")
	if got, want := says(p.GetUUID()), " ERROR_INVALID_ARGUMENT"; got != want {
		t.Errorf("destroyed: got %s, want %s", got, want)
	}
}

func TestInstanceCallsWithFaults(t *testing.T) {
	for _, tt := range []struct{ call, command string }{
		{"SetMigMode", "mig 1"},
		{"CreateGpuInstanceWithPlacement", "create 1g.10gb 0 1"},
		{"CreateGpuInstance", "create 1g.10gb"},
		{"GetGpuInstanceById", "compute 11"},
		{"GpuInstanceCreateComputeInstance", "compute 11"},
		{"GpuInstanceGetComputeInstanceById", "destroy 12 0"},
		{"ComputeInstanceDestroy", "destroy 12 0"},
		{"GpuInstanceDestroy", "destroy 11"},
	} {
		t.Run(tt.call, func(t *testing.T) {
			n := open(t, "dgx-h100")
			partitions(t, n, "mig 1; create 1g.10gb 4 1; create 1g.10gb 5 1; compute 12")
			before := firstGPU(n)
			must(t, n.Fail("0", tt.call, "ERROR_TIMEOUT"))
			if got := partitions(t, n, tt.command); got != "ERROR_TIMEOUT" {
				t.Errorf("said %q", got)
			}
			must(t, n.Heal("0"))
			if got := firstGPU(n); got != before {
				t.Errorf("got:\n%s\nwant:\n%s", got, before)
			}
		})
	}
}

func TestInstanceCallsMatchGoNVML(t *testing.T) {
	for _, call := range hwprofile.InstanceCalls() {
		if _, ok := reflect.TypeFor[nvml.Interface]().MethodByName(call); !ok {
			t.Errorf("go-nvml has no call %s", call)
		}
	}
}

func TestProcessesBlockMIGChanges(t *testing.T) {
	n := open(t, "dgx-h100")
	must(t, n.AddProcess("0", "dcgm-exporter", 1<<20))
	if got, want := partitions(t, n, "mig 1"), "activation ERROR_IN_USE"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	whole := gpu(t, n, 0)
	if got, want := says(whole.GetComputeRunningProcesses()),
		"[{4194305 1048576 4294967295 4294967295}] SUCCESS"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := says(n.NVML().SystemGetProcessName(4194305)), "dcgm-exporter SUCCESS"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	must(t, n.RemoveProcess("0", "dcgm-exporter"))
	p := partitionOf(t, n, "mig 1; create 1g.10gb 4 1; compute 11")
	must(t, n.AddProcess("0/1g.10gb@4", "train", 1<<30))
	const processes = "[{4194305 1073741824 11 0}] SUCCESS"
	for _, c := range []struct{ name, got, want string }{
		{"of the partition", says(p.GetComputeRunningProcesses()), processes},
		{"of the GPU", says(whole.GetComputeRunningProcesses()), processes},
		{"memory of the partition", says(p.GetMemoryInfo()), "{10468982784 9395240960 1073741824} SUCCESS"},
		{"to destroy it", partitions(t, n, "destroy 11 0; destroy 11"), "ERROR_IN_USE; ERROR_IN_USE"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, c.got, c.want)
		}
	}
}

// go-nvlib, which other drivers use, derives the names from NVML's answers about the instances and the GPU.
func TestNvlibPartitionNames(t *testing.T) {
	for _, profile := range []string{"a30-x2", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl4",
		"rtxpro6000-x2"} {
		t.Run(profile, func(t *testing.T) {
			n := open(t, profile)
			must(t, n.SwitchMIG("0", hwprofile.Enabled))
			whole := gpu(t, n, 0)
			d, err := device.New(n.NVML()).NewDevice(whole)
			must(t, err)
			for name := range profiled(t, whole) {
				_, err := n.CreatePartition("0", name)
				must(t, err)
				all, err := d.GetMigDevices()
				must(t, err)
				p, err := all[0].GetProfile()
				must(t, err)
				if got := p.String(); got != name {
					t.Errorf("got %s, want %s", got, name)
				}
				must(t, n.DeletePartition("0", ""))
			}
		})
	}
}
