// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// open returns a machine whose NVML is open.
func open(t *testing.T, profile string) *simulator.Node {
	t.Helper()
	n := closed(t, profile)
	initialise(t, n)
	return n
}

// initialise opens NVML until the end of the test.
func initialise(t *testing.T, n *simulator.Node) {
	t.Helper()
	success(t, n.NVML().Init())
	t.Cleanup(func() { n.NVML().Shutdown() })
}

// closed returns a machine whose NVML is not open.
func closed(t *testing.T, profile string) *simulator.Node {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	n, err := simulator.Open(tmpfs.Dir(t), p)
	must(t, err)
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}

// gpu is a handle of a GPU.
func gpu(t *testing.T, n *simulator.Node, index int) nvml.Device {
	t.Helper()
	d, ret := n.NVML().DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return d
}

// A discovery asks for a handle of each GPU. Without the functions of the first handle, one took 967 allocations.
func TestAnotherHandleIsCheap(t *testing.T) {
	n := open(t, "dgx-h100")
	if got := testing.AllocsPerRun(20, func() { gpu(t, n, 3) }); got > 40 {
		t.Errorf("%v allocations for a handle, want at most 40", got)
	}
	first, second := gpu(t, n, 3), gpu(t, n, 3)
	must(t, n.SetComputeMode("3", hwprofile.ComputeModeExclusiveProcess))
	for _, d := range []nvml.Device{first, second} {
		if mode, ret := d.GetComputeMode(); ret != nvml.SUCCESS || mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
			t.Errorf("compute mode %v, %v", mode, ret)
		}
	}
}

// says is what calls of NVML answer, as text.
func says(results ...any) string { return strings.TrimSuffix(fmt.Sprintln(results...), "\n") }

func TestNVML(t *testing.T) {
	type call struct{ name, got, want string }
	check := func(t *testing.T, calls []call) {
		t.Helper()
		for _, c := range calls {
			if c.got != c.want {
				t.Errorf("%s: got %s, want %s", c.name, c.got, c.want)
			}
		}
	}
	t.Run("an H100 in a DGX", func(t *testing.T) {
		n := open(t, "dgx-h100")
		first, second, fifth := gpu(t, n, 0), gpu(t, n, 1), gpu(t, n, 4)
		pci, _ := first.GetPciInfo()
		remote, _ := first.GetNvLinkRemotePciInfo(17)
		fabric, ret := first.GetGpuFabricInfo()
		uuid, _ := first.GetUUID()
		again, _ := n.NVML().DeviceGetHandleByPciBusId("0000:1B:00.0")
		check(t, []call{
			{"driver", says(n.NVML().SystemGetDriverVersion()), "580.95.05 SUCCESS"},
			{"NVML", says(n.NVML().SystemGetNVMLVersion()), "13.580.95.05 SUCCESS"},
			{"CUDA", says(n.NVML().SystemGetCudaDriverVersion()), "13000 SUCCESS"},
			{"count", says(n.NVML().DeviceGetCount()), "8 SUCCESS"},
			{"name", says(first.GetName()), "NVIDIA H100 80GB HBM3 SUCCESS"},
			{"by way of the library", says(n.NVML().DeviceGetName(first)), "NVIDIA H100 80GB HBM3 SUCCESS"},
			{"UUID by PCI address", says(again.GetUUID()), uuid + " SUCCESS"},
			{"bus id", text(pci.BusId[:]), "00000000:1B:00.0"},
			{"legacy bus id", text(pci.BusIdLegacy[:]), "0000:1B:00.0"},
			{"PCI device id", fmt.Sprintf("%#x %#x", pci.PciDeviceId, pci.PciSubSystemId), "0x233010de 0x16c110de"},
			{"brand", says(first.GetBrand()), fmt.Sprint(int(nvml.BRAND_NVIDIA), " SUCCESS")},
			{"architecture", says(first.GetArchitecture()), fmt.Sprint(nvml.DEVICE_ARCH_HOPPER, " SUCCESS")},
			{"compute capability", says(first.GetCudaComputeCapability()), "9 0 SUCCESS"},
			{"memory", says(first.GetMemoryInfo()), "{85520809984 85017493504 503316480} SUCCESS"},
			{"cores", says(first.GetNumGpuCores()), "16896 SUCCESS"},
			{"bus width", says(first.GetMemoryBusWidth()), "5120 SUCCESS"},
			{"memory clock", says(first.GetMaxClockInfo(nvml.CLOCK_MEM)), "2619 SUCCESS"},
			{"a clock that does not exist", says(first.GetMaxClockInfo(77)), "0 ERROR_INVALID_ARGUMENT"},
			{"compute mode", says(first.GetComputeMode()), "0 SUCCESS"},
			{"MIG mode", says(first.GetMigMode()), "0 0 SUCCESS"},
			{"MIG devices", says(first.GetMaxMigDeviceCount()), "7 SUCCESS"},
			{"a MIG device", says(first.GetMigDeviceHandleByIndex(0)), "<nil> ERROR_NOT_FOUND"},
			{"is it one", says(first.IsMigDeviceHandle()), "false SUCCESS"},
			{"NUMA node of its memory", says(first.GetNumaNodeId()), "0 ERROR_NOT_SUPPORTED"},
			{"NUMA nodes near the first", says(first.GetMemoryAffinity(64, nvml.AFFINITY_SCOPE_NODE)), "[1] SUCCESS"},
			{"NUMA nodes near the fifth", says(fifth.GetMemoryAffinity(64, nvml.AFFINITY_SCOPE_NODE)), "[2] SUCCESS"},
			{"NVLink state", says(first.GetNvLinkState(17)), "1 SUCCESS"},
			{"a link it has not", says(first.GetNvLinkState(18)), "0 ERROR_INVALID_ARGUMENT"},
			{"NVLink's other end", says(first.GetNvLinkRemoteDeviceType(0)),
				fmt.Sprint(int(nvml.NVLINK_DEVICE_TYPE_SWITCH), " SUCCESS")},
			{"and where it is", text(remote.BusId[:]), "00000000:0A:00.0"},
			{"NVLink between two", says(first.GetP2PStatus(fifth, nvml.P2P_CAPS_INDEX_NVLINK)), "0 SUCCESS"},
			{"near", says(first.GetTopologyCommonAncestor(second)), fmt.Sprint(int(nvml.TOPOLOGY_NODE), " SUCCESS")},
			{"far", says(first.GetTopologyCommonAncestor(fifth)), fmt.Sprint(int(nvml.TOPOLOGY_SYSTEM), " SUCCESS")},
			{"fabric", fmt.Sprint(fabric.State, fabric.ClusterUuid, ret), fmt.Sprint(nvml.GPU_FABRIC_STATE_COMPLETED,
				[16]uint8{}, " SUCCESS")},
			{"processes", says(first.GetComputeRunningProcesses()), "[] SUCCESS"},
			{"fabric by a handler", says(n.NVML().Extensions().LookupSymbol("nvmlDeviceGetGpuFabricInfoV")),
				"look up nvmlDeviceGetGpuFabricInfoV: the simulated library has no such function"},
			{"fabric without", says(n.NVML().Extensions().LookupSymbol("nvmlDeviceGetGpuFabricInfo")), "<nil>"},
			{"a call nobody has thought of", says(first.GetEncoderStats()), "0 0 0 ERROR_NOT_SUPPORTED"},
		})
	})
	t.Run("an L40S beside another", func(t *testing.T) {
		n := open(t, "l40s-x4")
		first, second := gpu(t, n, 0), gpu(t, n, 1)
		check(t, []call{
			{"memory", says(first.GetMemoryInfo()), "{48305799168 47785705472 520093696} SUCCESS"},
			{"MIG mode", says(first.GetMigMode()), "0 0 ERROR_NOT_SUPPORTED"},
			{"MIG devices", says(first.GetMaxMigDeviceCount()), "0 SUCCESS"},
			{"MIG profile", says(first.GetGpuInstanceProfileInfo(0)), says(nvml.GpuInstanceProfileInfo{},
				nvml.ERROR_NOT_SUPPORTED)},
			{"MIG instances", says(first.GetGpuInstances(&nvml.GpuInstanceProfileInfo{})), "[] ERROR_NOT_SUPPORTED"},
			{"NVLink", says(first.GetNvLinkState(0)), "0 ERROR_NOT_SUPPORTED"},
			{"NVLink between two", says(first.GetP2PStatus(second, nvml.P2P_CAPS_INDEX_NVLINK)), "5 SUCCESS"},
			{"PCIe between two", says(first.GetP2PStatus(second, nvml.P2P_CAPS_INDEX_READ)), "0 SUCCESS"},
			{"behind one switch", says(first.GetTopologyCommonAncestor(second)), fmt.Sprint(int(nvml.TOPOLOGY_SINGLE),
				" SUCCESS")},
		})
	})
	t.Run("what nvlib makes of it", func(t *testing.T) {
		n := open(t, "mixed")
		lib := device.New(n.NVML())
		devices, err := lib.GetDevices()
		must(t, err)
		var got []string
		for _, d := range devices {
			brand, err := d.GetBrandAsString()
			must(t, err)
			arch, err := d.GetArchitectureAsString()
			must(t, err)
			address, err := d.GetPCIBusID()
			must(t, err)
			mode, err := d.GetAddressingModeAsString()
			must(t, err)
			mig, err := d.IsMigCapable()
			must(t, err)
			fabric, err := d.IsFabricAttached()
			must(t, err)
			got = append(got, says(address, brand, arch, mode, mig, fabric))
		}
		want := []string{
			"0000:41:00.0 Nvidia Hopper HMM true false", "0000:61:00.0 Nvidia Ada Lovelace HMM false false",
			"0000:81:00.0 Nvidia Ampere HMM true false", "0000:a1:00.0 Nvidia Turing HMM false false",
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func text(c []int8) string {
	var b strings.Builder
	for _, x := range c {
		if x == 0 {
			break
		}
		b.WriteByte(byte(x))
	}
	return b.String()
}

func TestHandleSeesChanges(t *testing.T) {
	n := open(t, "t4-x2")
	other, err := simulator.Attach(n.Dir())
	must(t, err)
	initialise(t, other)
	d := gpu(t, n, 0)
	for _, tt := range []struct {
		name   string
		change func() error
		ask    func() string
		want   string
	}{
		{"memory used", func() error { return other.SetMemoryUsed("0", 5<<30) },
			func() string { return says(d.GetMemoryInfo_v2()) },
			"{33554472 16106127360 466616320 10270801920 5368709120} SUCCESS"},
		{"compute mode", func() error { return other.SetComputeMode("0", 3) },
			func() string { return says(d.GetComputeMode()) }, "3 SUCCESS"},
		{"compute mode by NVML", func() error {
			return ok(gpu(t, other, 0).SetComputeMode(nvml.COMPUTEMODE_PROHIBITED))
		},
			func() string { return says(d.GetComputeMode()) }, "2 SUCCESS"},
		{"a call that fails", func() error { return other.Fail("0", "GetName", "ERROR_UNKNOWN") },
			func() string { return says(d.GetName()) }, " ERROR_UNKNOWN"},
		{"the others go on", func() error { return nil }, func() string { return says(d.GetCudaComputeCapability()) },
			"7 5 SUCCESS"},
		{"all calls fail", func() error { return other.Fail("0", node.AllCalls, "ERROR_GPU_IS_LOST") },
			func() string { return says(d.GetCudaComputeCapability()) },
			"0 0 ERROR_GPU_IS_LOST"},
		{"a call that is not simulated fails, too", func() error { return nil },
			func() string { return says(d.GetEncoderStats()) }, "0 0 0 ERROR_GPU_IS_LOST"},
		{"the other GPU goes on", func() error { return nil }, func() string { return says(gpu(t, n, 1).GetName()) },
			"Tesla T4 SUCCESS"},
		{"healed", func() error { return other.Heal("0") }, func() string { return says(d.GetName()) },
			"Tesla T4 SUCCESS"},
		{"the machine is swapped", func() error { return swap(t, n.Dir(), "mixed") },
			func() string { return says(d.GetName()) }, " ERROR_GPU_IS_LOST"},
		{"and has other GPUs", func() error { return nil }, func() string { return says(n.NVML().DeviceGetCount()) },
			"4 SUCCESS"},
	} {
		must(t, tt.change())
		if got := tt.ask(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func ok(ret nvml.Return) error {
	if ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

func swap(t *testing.T, dir, profile string) error {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	_, err = simulator.Open(dir, p)
	return err
}

func TestNoCallPanics(t *testing.T) {
	for _, profile := range simulator.Profiles() {
		t.Run(profile, func(t *testing.T) {
			n := open(t, profile)
			set, _ := n.NVML().EventSetCreate()
			sweep(t, n, reflect.TypeFor[nvml.Interface](), n.NVML())
			sweep(t, n, reflect.TypeFor[nvml.Device](), gpu(t, n, 0))
			sweep(t, n, reflect.TypeFor[nvml.EventSet](), set)
			if got := gpuCount(n); got != strings.Count(n.String(), "\ngpu-") {
				t.Errorf("%d GPUs after all calls:\n%s", got, n)
			}
		})
	}
}

func gpuCount(n *simulator.Node) int {
	count, _ := n.NVML().DeviceGetCount()
	return count
}

// sweep calls every method of the interface on the object, with arbitrary arguments.
func sweep(t *testing.T, n *simulator.Node, as reflect.Type, object any) {
	t.Helper()
	for i := range as.NumMethod() {
		name := as.Method(i).Name
		method := reflect.ValueOf(object).MethodByName(name)
		for _, withDevice := range []bool{true, false} {
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("%s.%s panics: %v", as.Name(), name, p)
					}
				}()
				method.Call(arguments(t, n, method.Type(), withDevice))
			}()
		}
	}
}

func arguments(t *testing.T, n *simulator.Node, f reflect.Type, withDevice bool) []reflect.Value {
	t.Helper()
	out := make([]reflect.Value, f.NumIn())
	for i := range out {
		switch {
		case f.In(i) == reflect.TypeFor[nvml.Device]() && withDevice:
			out[i] = reflect.ValueOf(gpu(t, n, 1))
		case f.In(i).Kind() == reflect.Pointer:
			out[i] = reflect.New(f.In(i).Elem())
		default:
			out[i] = reflect.Zero(f.In(i))
		}
	}
	return out
}

func TestProcesses(t *testing.T) {
	n := open(t, "t4-x2")
	handle, ret := n.NVML().DeviceGetHandleByIndex(0)
	success(t, ret)
	if _, ret := handle.GetProcessUtilization(0); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("no process: %v", ret)
	}
	must(t, n.SetMemoryUsed("0", 1<<30))
	must(t, n.SetProcesses("0", []node.Process{{PID: 7, Name: "a", Memory: 2 << 30, Threads: 70},
		{PID: 8, Name: "b", Memory: 1 << 30, Threads: 100}}))
	for name, list := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
		"compute": handle.GetComputeRunningProcesses, "MPS": handle.GetMPSComputeRunningProcesses,
	} {
		got, ret := list()
		success(t, ret)
		if len(got) != 2 || got[0].Pid != 7 || got[0].UsedGpuMemory != 2<<30 || got[1].Pid != 8 {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	memory, ret := handle.GetMemoryInfo_v2()
	success(t, ret)
	if memory.Used != 4<<30 {
		t.Errorf("used %d", memory.Used)
	}
	samples, ret := handle.GetProcessUtilization(0)
	success(t, ret)
	if len(samples) != 2 || samples[0].SmUtil != 70 || samples[1].SmUtil != 30 {
		t.Errorf("got %+v", samples)
	}
	if err := n.SetProcesses("0", []node.Process{{PID: 7, Memory: 14 << 30}}); !errors.Is(err, node.ErrNoMemory) {
		t.Errorf("more than there is: %v", err)
	}
	if err := n.SetMemoryUsed("0", 12<<30); err == nil {
		t.Error("more than the processes leave: no error")
	}
}

func success(t *testing.T, ret nvml.Return) {
	t.Helper()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
}
