// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// caller of C functions, with variables that stay where they are.
type program struct {
	t       *testing.T
	library *Library
	device  *uint64
	name    *[64]byte
	memory  *nvml.Memory_v2
	count   *uint32
	node    *simulator.Node
}

func newProgram(t *testing.T) *program {
	t.Helper()
	profile, err := simulator.BuiltIn("t4-x2")
	if err != nil {
		t.Fatal(err)
	}
	n, err := simulator.Open(t.TempDir(), profile)
	if err != nil {
		t.Fatal(err)
	}
	return &program{t: t, library: New(func() (nvml.Interface, nvml.Return) { return n.NVML(), n.NVML().Init() }),
		device: new(uint64), name: new([64]byte), memory: new(nvml.Memory_v2), count: new(uint32), node: n}
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

func (p *program) start() {
	p.t.Helper()
	p.want("init", p.library.Call("nvmlInit_v2", nil, nil), nvml.SUCCESS)
	p.want("handle", p.handle(), nvml.SUCCESS)
}

func (p *program) handle() nvml.Return {
	return p.library.Call("nvmlDeviceGetHandleByIndex_v2", []uint64{1, address(p.device)}, []uint32{0, 8})
}

func (p *program) getName(device uint64, length uint64) nvml.Return {
	return p.library.Call("nvmlDeviceGetName", []uint64{device, address(p.name), length}, []uint32{0, 1, 0})
}

func (p *program) getMemory(version uint32) nvml.Return {
	p.memory.Version = version
	return p.library.Call("nvmlDeviceGetMemoryInfo_v2", []uint64{*p.device, address(p.memory)},
		[]uint32{0, uint32(unsafe.Sizeof(*p.memory))})
}

func (p *program) want(step string, got, want nvml.Return) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: got %v, want %v", step, got, want)
	}
}

func TestCalls(t *testing.T) {
	p := newProgram(t)
	p.want("before init", p.handle(), nvml.ERROR_UNINITIALIZED)
	p.start()
	first := *p.device
	p.want("the same handle", p.handle(), nvml.SUCCESS)
	if *p.device != first {
		t.Errorf("got handle %x and then %x", first, *p.device)
	}
	p.want("a name", p.getName(first, 64), nvml.SUCCESS)
	if got := text(unsafe.Pointer(p.name)); got != "Tesla T4" {
		t.Errorf("got name %q, want Tesla T4", got)
	}
	p.want("a buffer too small", p.getName(first, 8), nvml.ERROR_INSUFFICIENT_SIZE)
	p.want("an unknown handle", p.getName(first+1, 64), nvml.ERROR_INVALID_ARGUMENT)
	p.want("no buffer", p.library.Call("nvmlDeviceGetName", []uint64{first, 0, 64}, []uint32{0, 1, 0}),
		nvml.ERROR_INVALID_ARGUMENT)
	version := nvml.STRUCT_VERSION(*p.memory, 2)
	p.want("memory", p.getMemory(version), nvml.SUCCESS)
	if p.memory.Total != 15360<<20 {
		t.Errorf("got %d bytes, want 15360 MiB", p.memory.Total)
	}
	p.want("another version", p.getMemory(version+1), nvml.ERROR_ARGUMENT_VERSION_MISMATCH)
	p.want("another struct", p.library.Call("nvmlDeviceGetMemoryInfo", []uint64{first, address(p.memory)},
		[]uint32{0, 8}), nvml.ERROR_NOT_SUPPORTED)
	p.want("an unknown function", p.library.Call("nvmlNew", nil, nil), nvml.ERROR_NOT_SUPPORTED)
	p.want("shutdown", p.library.Call("nvmlShutdown", nil, nil), nvml.SUCCESS)
	p.want("after shutdown", p.getName(first, 64), nvml.ERROR_UNINITIALIZED)
}

// cEvent is nvmlEventData_t.
type cEvent struct {
	device, kind, data uint64
	instance, compute  uint32
}

func TestEvents(t *testing.T) {
	p := newProgram(t)
	p.start()
	set, event := new(uint64), new(cEvent)
	p.want("create", p.library.Call("nvmlEventSetCreate", []uint64{address(set)}, []uint32{8}), nvml.SUCCESS)
	p.want("register", p.library.Call("nvmlDeviceRegisterEvents",
		[]uint64{*p.device, nvml.EventTypeXidCriticalError, *set}, []uint32{0, 0, 0}), nvml.SUCCESS)
	wait := func(name string) nvml.Return {
		return p.library.Call(name, []uint64{*set, address(event), 0}, []uint32{0, 32, 0})
	}
	p.want("no event", wait("nvmlEventSetWait_v2"), nvml.ERROR_TIMEOUT)
	for _, tt := range []struct {
		function string
		want     cEvent
	}{
		{"nvmlEventSetWait_v2", cEvent{*p.device, 8, 79, 0xffffffff, 0xffffffff}},
		{"nvmlEventSetWait", cEvent{*p.device, 8, 79, 7, 7}}, // before it had the instances
	} {
		e, err := p.node.NewEvent("1", node.EventXID, 79)
		if err == nil {
			err = p.node.Emit(e)
		}
		if err != nil {
			t.Fatal(err)
		}
		*event = cEvent{instance: 7, compute: 7}
		p.want(tt.function, wait(tt.function), nvml.SUCCESS)
		if *event != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.function, *event, tt.want)
		}
	}
	p.want("free", p.library.Call("nvmlEventSetFree", []uint64{*set}, []uint32{0}), nvml.SUCCESS)
	p.want("a freed set", wait("nvmlEventSetWait_v2"), nvml.ERROR_INVALID_ARGUMENT)
}

// TestUse: the node is in use from the first Init to the last Shutdown.
func TestUse(t *testing.T) {
	p := newProgram(t)
	for _, tt := range []struct {
		call string
		want hwprofile.Error
	}{{"nvmlInit_v2", "ERROR_IN_USE"}, {"nvmlInit_v2", "ERROR_IN_USE"}, {"nvmlShutdown", "ERROR_IN_USE"},
		{"nvmlShutdown", ""}} {
		p.want(tt.call, p.library.Call(tt.call, nil, nil), nvml.SUCCESS)
		if got := node.CodeOf(p.node.Reset("0")); got != tt.want {
			t.Errorf("a reset after %s: got %q, want %q", tt.call, got, tt.want)
		}
	}
}
