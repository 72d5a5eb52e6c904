// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/hex"
	"fmt"
	"slices"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// gpuReader asks one GPU.
type gpuReader struct {
	*reader
	index  int
	handle nvmllib.Device
	lost   node.Error // why there is no handle
	out    node.GPU
}

// read asks the GPU everything; others are all GPUs of the machine, by NVML's index.
func (g *gpuReader) read(others []*gpuReader) node.GPU {
	if g.lost != "" {
		g.out.Calls.SetError(node.HandleCall, g.lost)
		return g.out
	}
	if at, model, ok := g.address(); ok {
		g.out.PCI = model
		g.out.PCI.Address = at
	}
	g.identify()
	g.describe()
	g.measure()
	g.configure()
	g.partition()
	g.connect(others)
	g.failures()
	return g.out
}

// ask is the answer to a call, ERROR_FUNCTION_NOT_FOUND when the library does not have it.
func ask[T, V any](g *gpuReader, call string, get func() (T, nvmllib.Return), convert func(T) V) node.Answer[V] {
	if !g.has(call) {
		return node.Failure[V]("ERROR_FUNCTION_NOT_FOUND")
	}
	v, ret := get()
	return of(convert(v), ret)
}

// askEach is the answers to a call that has an argument. Where it fails for every argument the failure is the answer; where it fails
// for some, these are left out, and noted unless the argument is one that the GPU does not have.
func askEach[K comparable, V any](g *gpuReader, call string, arguments []K, get func(K) (V, nvmllib.Return)) node.Answer[map[K]V] {
	if !g.has(call) {
		return node.Failure[map[K]V]("ERROR_FUNCTION_NOT_FOUND")
	}
	values := map[K]V{}
	var failures []string
	var first node.Error
	for _, argument := range arguments {
		v, ret := get(argument)
		if ret == nvmllib.SUCCESS {
			values[argument] = v
			continue
		}
		if first == "" {
			first = code(ret)
		}
		if ret != nvmllib.ERROR_NOT_SUPPORTED && ret != nvmllib.ERROR_INVALID_ARGUMENT {
			failures = append(failures, fmt.Sprintf("GPU %d: %s(%v) answers %s", g.index, call, argument, code(ret)))
		}
	}
	if len(values) == 0 && first != "" {
		return node.Failure[map[K]V](first)
	}
	for _, f := range failures {
		g.note("%s", f)
	}
	return node.Value(values)
}

func same[T any](v T) T { return v }

func to[V, T ~int | ~int32 | ~uint32](v T) V { return V(v) }

// address is where the GPU says that it is, and its model.
func (g *gpuReader) address() (node.Address, node.PCI, bool) {
	info, ret := g.handle.GetPciInfo()
	if ret != nvmllib.SUCCESS {
		g.out.Calls.SetError("GetPciInfo", code(ret))
		return node.Address{}, node.PCI{}, false
	}
	at, err := pciAddress(info)
	if err != nil {
		g.note("GPU %d: %v", g.index, err)
		return node.Address{}, node.PCI{}, false
	}
	return at, node.PCI{DeviceID: info.PciDeviceId >> 16, Subsystem: info.PciSubSystemId}, true
}

func pciAddress(info nvmllib.PciInfo) (node.Address, error) {
	var chars []byte
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		chars = append(chars, byte(c))
	}
	at, err := gpu.ParsePCIAddress(string(chars))
	return node.Address{PCIAddress: at}, err
}

func (g *gpuReader) identify() {
	d, c := g.handle, &g.out.Calls
	c.GetName = ask(g, "GetName", d.GetName, same)
	c.GetUUID = ask(g, "GetUUID", d.GetUUID, same)
	c.GetSerial = ask(g, "GetSerial", d.GetSerial, same)
	c.GetVbiosVersion = ask(g, "GetVbiosVersion", d.GetVbiosVersion, same)
	c.GetBoardPartNumber = ask(g, "GetBoardPartNumber", d.GetBoardPartNumber, same)
	c.GetMinorNumber = ask(g, "GetMinorNumber", d.GetMinorNumber, same)
}

func (g *gpuReader) describe() {
	d, c := g.handle, &g.out.Calls
	c.GetBrand = ask(g, "GetBrand", d.GetBrand, to[node.Brand])
	c.GetArchitecture = ask(g, "GetArchitecture", d.GetArchitecture, to[node.Architecture])
	c.GetCudaComputeCapability = ask(g, "GetCudaComputeCapability", func() (node.Capability, nvmllib.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return node.Capability{Major: major, Minor: minor}, ret
	}, same)
	c.GetNumGpuCores = ask(g, "GetNumGpuCores", d.GetNumGpuCores, same)
	c.GetMemoryBusWidth = ask(g, "GetMemoryBusWidth", d.GetMemoryBusWidth, same)
	c.GetMaxClockInfo = askEach(g, "GetMaxClockInfo", clocks, func(k node.Clock) (uint32, nvmllib.Return) { return d.GetMaxClockInfo(nvmllib.ClockType(k)) })
	c.GetClockInfo = askEach(g, "GetClockInfo", clocks, func(k node.Clock) (uint32, nvmllib.Return) { return d.GetClockInfo(nvmllib.ClockType(k)) })
	c.GetMaxPcieLinkGeneration = ask(g, "GetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration, same)
	c.GetMaxPcieLinkWidth = ask(g, "GetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth, same)
	c.GetCurrPcieLinkGeneration = ask(g, "GetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration, same)
	c.GetCurrPcieLinkWidth = ask(g, "GetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth, same)
	c.GetAddressingMode = ask(g, "GetAddressingMode", d.GetAddressingMode,
		func(m nvmllib.DeviceAddressingMode) node.AddressingMode { return node.AddressingMode(m.Value) })
	c.GetNumaNodeId = ask(g, "GetNumaNodeId", d.GetNumaNodeId, same)
}

// clocks are those that NVML knows (nvmlClockType_t).
var clocks = []node.Clock{node.Clock(nvmllib.CLOCK_GRAPHICS), node.Clock(nvmllib.CLOCK_SM), node.Clock(nvmllib.CLOCK_MEM), node.Clock(nvmllib.CLOCK_VIDEO)}

func (g *gpuReader) measure() {
	d, c := g.handle, &g.out.Calls
	c.GetMemoryInfo = g.memory()
	c.GetTemperature = askEach(g, "GetTemperature", []node.Sensor{node.Sensor(nvmllib.TEMPERATURE_GPU)},
		func(k node.Sensor) (uint32, nvmllib.Return) { return d.GetTemperature(nvmllib.TemperatureSensors(k)) })
	c.GetFanSpeed = ask(g, "GetFanSpeed", d.GetFanSpeed, same)
	c.GetPerformanceState = ask(g, "GetPerformanceState", d.GetPerformanceState, to[node.Performance])
	c.GetPowerUsage = ask(g, "GetPowerUsage", d.GetPowerUsage, same)
	c.GetPowerManagementLimit = ask(g, "GetPowerManagementLimit", d.GetPowerManagementLimit, same)
	c.GetUtilizationRates = ask(g, "GetUtilizationRates", d.GetUtilizationRates,
		func(u nvmllib.Utilization) node.Utilization { return node.Utilization{GPU: u.Gpu, Memory: u.Memory} })
}

// memory takes from the newer call what the driver keeps for itself, which the older one counts as used.
func (g *gpuReader) memory() node.Answer[node.Memory] {
	v1 := ask(g, "GetMemoryInfo", g.handle.GetMemoryInfo, func(m nvmllib.Memory) node.Memory { return node.Memory{Total: m.Total, Used: m.Used} })
	v2 := ask(g, "GetMemoryInfo_v2", g.handle.GetMemoryInfo_v2,
		func(m nvmllib.Memory_v2) node.Memory {
			return node.Memory{Total: m.Total, Reserved: m.Reserved, Used: m.Used}
		})
	_, e1 := v1.Get()
	_, e2 := v2.Get()
	switch {
	case e1 != "": // a profile has one answer for both calls
		return v1
	case e2 != "":
		g.out.Calls.SetError("GetMemoryInfo_v2", e2)
		return v1
	}
	return v2
}

func (g *gpuReader) configure() {
	d, c := g.handle, &g.out.Calls
	c.GetComputeMode = ask(g, "GetComputeMode", d.GetComputeMode, to[node.ComputeMode])
	c.GetPersistenceMode = ask(g, "GetPersistenceMode", d.GetPersistenceMode, to[node.Switch])
	c.GetDisplayActive = ask(g, "GetDisplayActive", d.GetDisplayActive, to[node.Switch])
	c.GetEccMode = ask(g, "GetEccMode", func() (node.ModeChange, nvmllib.Return) {
		current, pending, ret := d.GetEccMode()
		return node.ModeChange{Current: node.Switch(current), Pending: node.Switch(pending)}, ret
	}, same)
	c.GetSupportedEventTypes = ask(g, "GetSupportedEventTypes", d.GetSupportedEventTypes, same)
}

func (g *gpuReader) connect(others []*gpuReader) {
	d, c := g.handle, &g.out.Calls
	var links []int
	for link := range nvmllib.NVLINK_MAX_LINKS {
		links = append(links, link)
	}
	c.GetNvLinkState = asLinks(askEach(g, "GetNvLinkState", links, func(link int) (node.Switch, nvmllib.Return) {
		state, ret := d.GetNvLinkState(link)
		return node.Switch(state), ret
	}))
	c.GetNvLinkVersion = asLinks(askEach(g, "GetNvLinkVersion", links, func(link int) (node.LinkVersion, nvmllib.Return) {
		version, ret := d.GetNvLinkVersion(link)
		return node.LinkVersion(version), ret
	}))
	c.GetNvLinkRemoteDeviceType = asLinks(askEach(g, "GetNvLinkRemoteDeviceType", links, func(link int) (node.LinkEnd, nvmllib.Return) {
		kind, ret := d.GetNvLinkRemoteDeviceType(link)
		return node.LinkEnd(kind), ret
	}))
	c.GetNvLinkRemotePciInfo = asLinks(askEach(g, "GetNvLinkRemotePciInfo", links, func(link int) (node.Address, nvmllib.Return) {
		info, ret := d.GetNvLinkRemotePciInfo(link)
		at, err := pciAddress(info)
		if ret == nvmllib.SUCCESS && err != nil {
			return at, nvmllib.ERROR_UNKNOWN
		}
		return at, ret
	}))
	c.GetGpuFabricInfo = ask(g, "GetGpuFabricInfo", d.GetGpuFabricInfo, fabric)
	c.GetTopologyCommonAncestor = g.ancestors(others)
}

func asLinks[T any](a node.Answer[map[int]T]) node.Answer[node.Links[T]] {
	all, e := a.Get()
	if e != "" {
		return node.Failure[node.Links[T]](e)
	}
	return node.Value(node.Links[T](all))
}

func fabric(info nvmllib.GpuFabricInfo) node.Fabric {
	u := hex.EncodeToString(info.ClusterUuid[:])
	return node.Fabric{State: node.FabricState(info.State), Status: int(info.Status), CliqueID: info.CliqueId,
		ClusterUUID: fmt.Sprintf("%s-%s-%s-%s-%s", u[:8], u[8:12], u[12:16], u[16:20], u[20:])}
}

// ancestors is what the GPU has in common with each other one on the way to the CPU.
func (g *gpuReader) ancestors(others []*gpuReader) node.Answer[map[node.Address]node.Proximity] {
	handles := map[node.Address]nvmllib.Device{}
	var addresses []node.Address
	for _, other := range others {
		if other.lost != "" || other.index == g.index {
			continue
		}
		if info, ret := other.handle.GetPciInfo(); ret == nvmllib.SUCCESS {
			if at, err := pciAddress(info); err == nil {
				handles[at], addresses = other.handle, append(addresses, at)
			}
		}
	}
	return askEach(g, "GetTopologyCommonAncestor", addresses, func(at node.Address) (node.Proximity, nvmllib.Return) {
		level, ret := g.handle.GetTopologyCommonAncestor(handles[at])
		return node.Proximity(level), ret
	})
}

// failures notes the errors of calls whose values are not recorded, because they change from one moment to the next.
func (g *gpuReader) failures() {
	d := g.handle
	for _, c := range []struct {
		call string
		ask  func() nvmllib.Return
		none nvmllib.Return // what it answers when there is nothing to tell
	}{
		{"GetComputeRunningProcesses", func() nvmllib.Return { _, ret := d.GetComputeRunningProcesses(); return ret }, nvmllib.SUCCESS},
		{"GetGraphicsRunningProcesses", func() nvmllib.Return { _, ret := d.GetGraphicsRunningProcesses(); return ret }, nvmllib.SUCCESS},
		{"GetMPSComputeRunningProcesses", func() nvmllib.Return { _, ret := d.GetMPSComputeRunningProcesses(); return ret }, nvmllib.SUCCESS},
		{"GetProcessUtilization", func() nvmllib.Return { _, ret := d.GetProcessUtilization(0); return ret }, nvmllib.ERROR_NOT_FOUND},
	} {
		if !g.has(c.call) {
			g.out.Calls.SetError(c.call, "ERROR_FUNCTION_NOT_FOUND")
		} else if ret := c.ask(); ret != nvmllib.SUCCESS && ret != c.none {
			g.out.Calls.SetError(c.call, code(ret))
		}
	}
}

// place gives every GPU its way to the CPU, and a place and a number of its own to those of which NVML does not say them.
func (r *reader) place(gpus []node.GPU) {
	for i := range gpus {
		g := &gpus[i]
		if g.PCI.Address == (node.Address{}) {
			at, found := r.bus.unclaimed(gpus)
			if !found {
				at = behind(gpus[:i])
			}
			g.PCI.Address = at
			r.note("GPU %d: NVML does not say where it is; %s is %s", i, at, map[bool]string{true: "a GPU that NVML does not name", false: "made up"}[found])
		}
		r.bus.complete(&g.PCI)
		if g.Calls.ErrorOnly(node.HandleCall) != "" {
			g.Calls.GetMinorNumber = node.Value(freeMinor(gpus))
		}
	}
}

// behind is an address that comes next in the order of NVML.
func behind(gpus []node.GPU) node.Address {
	var at node.Address
	if len(gpus) > 0 {
		at = gpus[len(gpus)-1].PCI.Address
	}
	at.Device++
	return at
}

func freeMinor(gpus []node.GPU) int {
	for minor := 0; ; minor++ {
		taken := func(g node.GPU) bool {
			is, e := g.Calls.GetMinorNumber.Get()
			return e == "" && is == minor
		}
		if !slices.ContainsFunc(gpus, taken) {
			return minor
		}
	}
}
