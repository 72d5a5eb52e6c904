// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// library is go-nvml's mock server over a node. Frequent calls are methods here and not functions of the mock, because
// the mock remembers every call forever.
type library struct {
	*server.Server
	node *node.Node
	root string // of a container, which reaches only some GPUs; "" on the node

	devices sync.Map // identity of a GPU → *device, the first one: see newDevice

	mu      sync.Mutex
	uses    int    // Init minus Shutdown
	release func() // ends the use of the node; nil without uses
}

var _ nvml.Interface = (*library)(nil)

func newLibrary(n *node.Node, root string) *library {
	s, err := server.New()
	if err != nil {
		panic(err) // only options can fail, and there are none
	}
	l := &library{Server: s, node: n, root: root}
	delegate(&s.Interface)
	refuse(&s.Interface)
	return l
}

// Init returns SUCCESS if the node exists and its driver is loaded. Until as many calls of Shutdown, this process has
// NVML open: resets are refused. Unlike the real library, a process can load another one: that on disk.
func (l *library) Init() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uses == 0 {
		l.release = l.node.Use()
	}
	l.node.Reopen()
	_, ret := l.read()
	if ret == nvml.SUCCESS {
		l.uses++
	}
	l.end()
	return ret
}

// end ends the use of the node if nothing uses it. The caller holds l.mu.
func (l *library) end() {
	if l.uses == 0 && l.release != nil {
		l.release()
		l.release = nil
	}
}

// InitWithFlags is Init: the flags are about missing GPUs.
func (l *library) InitWithFlags(uint32) nvml.Return { return l.Init() }

// Shutdown takes one call of Init back.
func (l *library) Shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uses == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	l.uses--
	l.end()
	return nvml.SUCCESS
}

// view returns the node. Like the real library, it does so only between Init and the last Shutdown.
func (l *library) view() (*node.View, nvml.Return) {
	l.mu.Lock()
	open := l.uses > 0
	l.mu.Unlock()
	if !open {
		return nil, nvml.ERROR_UNINITIALIZED
	}
	return l.read()
}

func (l *library) read() (*node.View, nvml.Return) {
	v, err := l.node.View()
	switch {
	case errors.Is(err, node.ErrNoNode), errors.Is(err, fs.ErrNotExist):
		return nil, nvml.ERROR_LIBRARY_NOT_FOUND
	case err != nil:
		return nil, nvml.ERROR_UNKNOWN
	case v.Unloaded:
		return nil, nvml.ERROR_DRIVER_NOT_LOADED
	case l.root != "":
		return v.Reachable(l.root), nvml.SUCCESS
	}
	return v, nvml.SUCCESS
}

// Extensions returns the calls about the library itself.
func (l *library) Extensions() nvml.ExtendedInterface { return l }

// LookupSymbol reports whether the library has the function. It lacks those that need a handler of go-nvml.
func (l *library) LookupSymbol(symbol string) error {
	for _, name := range []string{"GpuFabricInfoV", "C2cModeInfoV", "TemperatureV", "GpuInstanceProfileInfoV",
		"GpuInstanceProfileInfoByIdV", "NvLinkInfo", "ComputeInstanceProfileInfoV"} {
		if strings.HasPrefix(symbol, "nvml") && strings.HasSuffix(symbol, "Get"+name) {
			return fmt.Errorf("look up %s: the simulated library has no such function", symbol)
		}
	}
	return nil
}

// ErrorString returns the name of the error.
func (l *library) ErrorString(r nvml.Return) string { return r.Error() }

func (l *library) system(pick func(hwprofile.System) hwprofile.Answer[string]) (string, nvml.Return) {
	v, ret := l.view()
	if ret != nvml.SUCCESS {
		return "", ret
	}
	s, e := pick(v.Profile.System).Get()
	return s, nvml.Return(e.Number())
}

// SystemGetDriverVersion is the version of the simulated driver.
func (l *library) SystemGetDriverVersion() (string, nvml.Return) {
	return l.system(func(s hwprofile.System) hwprofile.Answer[string] { return s.DriverVersion })
}

// SystemGetNVMLVersion is the version of the simulated library.
func (l *library) SystemGetNVMLVersion() (string, nvml.Return) {
	return l.system(func(s hwprofile.System) hwprofile.Answer[string] { return s.NVMLVersion })
}

// SystemGetProcessName is the name of a process that uses a GPU.
func (l *library) SystemGetProcessName(pid int) (string, nvml.Return) {
	v, ret := l.view()
	if ret != nvml.SUCCESS {
		return "", ret
	}
	name, ok := v.ProcessName(pid)
	if !ok {
		return "", nvml.ERROR_NOT_FOUND
	}
	return name, nvml.SUCCESS
}

// SystemGetCudaDriverVersion is the version of CUDA that the simulated driver has: 1000*major + 10*minor.
func (l *library) SystemGetCudaDriverVersion() (int, nvml.Return) {
	v, ret := l.view()
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	n, e := v.Profile.System.CUDAVersion.Get()
	return n, nvml.Return(e.Number())
}

// SystemGetCudaDriverVersion_v2 is SystemGetCudaDriverVersion.
func (l *library) SystemGetCudaDriverVersion_v2() (int, nvml.Return) { //nolint:revive // NVML's name
	return l.SystemGetCudaDriverVersion()
}

// DeviceGetCount returns the number of GPUs, including those off the bus: NVML counts them without access to the GPU.
// Issue 231 of the k8s-device-plugin shows a machine that counts four GPUs although the handle of one is lost.
func (l *library) DeviceGetCount() (int, nvml.Return) {
	v, ret := l.view()
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return len(v.GPUs), nvml.SUCCESS
}

// find returns a handle of the first GPU that matches, or the error.
//
// For a GPU off the bus it returns ERROR_GPU_IS_LOST, as nvml.h documents for all ways to get a handle. By UUID and
// serial number, nvml.h allows that error even if another GPU is off the bus; here the others still work, as reports
// from real machines show. Real NVML may not see a GPU added after Init; this one does.
func (l *library) find(is func(node.GPU) bool, otherwise nvml.Return) (nvml.Device, nvml.Return) {
	v, ret := l.view()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, c := range v.GPUs {
		if is(c) && c.State.Unplugged {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		if is(c) {
			return l.handle(c)
		}
	}
	return nil, otherwise
}

// handle returns a handle of the GPU, or the error that the profile or a fault has for that call.
func (l *library) handle(c node.GPU) (nvml.Device, nvml.Return) {
	d := newDevice(l, c)
	// a fault of all calls does not include those that return the handle
	if _, ordered := c.State.Faults[hwprofile.HandleCall]; ordered {
		if ret := d.injectFault(c, hwprofile.HandleCall); ret != nvml.SUCCESS {
			return nil, ret
		}
	}
	if e := c.Calls.ErrorOnly(hwprofile.HandleCall); e != "" {
		return nil, nvml.Return(e.Number())
	}
	return d, nvml.SUCCESS
}

// DeviceGetHandleByIndex is a handle of the GPU with that index.
func (l *library) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	return l.find(func(c node.GPU) bool { return c.Index == index }, nvml.ERROR_INVALID_ARGUMENT)
}

// DeviceGetHandleByUUID is a handle of the GPU, or of the partition of one, with that UUID.
func (l *library) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	if strings.HasPrefix(uuid, "MIG-") {
		return l.partition(uuid)
	}
	return l.find(func(c node.GPU) bool { return c.UUID == uuid }, nvml.ERROR_NOT_FOUND)
}

// DeviceGetHandleBySerial is a handle of the GPU with that serial number.
func (l *library) DeviceGetHandleBySerial(serial string) (nvml.Device, nvml.Return) {
	return l.find(func(c node.GPU) bool { return c.Serial == serial }, nvml.ERROR_NOT_FOUND)
}

// DeviceGetHandleByPciBusId is a handle of the GPU at that PCI address.
func (l *library) DeviceGetHandleByPciBusId(address string) (nvml.Device, nvml.Return) { //nolint:revive // NVML's name
	at, err := gpu.ParsePCIAddress(address)
	if err != nil {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return l.find(func(c node.GPU) bool { return c.PCI.Address.PCIAddress == at }, nvml.ERROR_NOT_FOUND)
}
