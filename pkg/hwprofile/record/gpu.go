// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// gpuReader records one GPU.
type gpuReader struct {
	*reader
	index  int
	handle nvmllib.Device
	lost   hwprofile.Error // why there is no handle
	out    hwprofile.GPU
}

// read makes all calls on the GPU; others are all GPUs of the machine, by NVML's index.
func (g *gpuReader) read(others []*gpuReader) hwprofile.GPU {
	if g.lost != "" {
		g.out.Calls.SetError(hwprofile.HandleCall, g.lost)
		return g.out
	}
	if at, model, ok := g.address(); ok {
		g.out.PCI = model
		g.out.PCI.Address = at
	}
	g.readIdentity()
	g.readModel()
	g.readUsage()
	g.readConfig()
	g.readMIG()
	g.readTopology(others)
	g.failures()
	return g.out
}

// ask returns the answer to a call, ERROR_FUNCTION_NOT_FOUND if the library lacks it.
func ask[T, V any](g *gpuReader, call string, get func() (T, nvmllib.Return), convert func(T) V) hwprofile.Answer[V] {
	if !g.has(call) {
		return hwprofile.Failure[V]("ERROR_FUNCTION_NOT_FOUND")
	}
	v, ret := get()
	return of(convert(v), ret)
}

// askEach returns the answers to a call with an argument. If it fails for every argument, the answer is the error. If
// it fails for some, these are omitted, and noted unless the GPU does not have the argument.
func askEach[K comparable, V any](g *gpuReader, call string, arguments []K,
	get func(K) (V, nvmllib.Return)) hwprofile.Answer[map[K]V] {
	if !g.has(call) {
		return hwprofile.Failure[map[K]V]("ERROR_FUNCTION_NOT_FOUND")
	}
	values := map[K]V{}
	var failures []string
	var first hwprofile.Error
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
		return hwprofile.Failure[map[K]V](first)
	}
	for _, f := range failures {
		g.note("%s", f)
	}
	return hwprofile.Value(values)
}

func same[T any](v T) T { return v }

func to[V, T ~int | ~int32 | ~uint32](v T) V { return V(v) }

// address returns the GPU's PCI address and model as NVML reports them.
func (g *gpuReader) address() (hwprofile.Address, hwprofile.PCI, bool) {
	info, ret := g.handle.GetPciInfo()
	if ret != nvmllib.SUCCESS {
		g.out.Calls.SetError("GetPciInfo", code(ret))
		return hwprofile.Address{}, hwprofile.PCI{}, false
	}
	at, err := pciAddress(info)
	if err != nil {
		g.note("GPU %d: %v", g.index, err)
		return hwprofile.Address{}, hwprofile.PCI{}, false
	}
	return at, hwprofile.PCI{DeviceID: info.PciDeviceId >> 16, Subsystem: info.PciSubSystemId}, true
}

func pciAddress(info nvmllib.PciInfo) (hwprofile.Address, error) {
	var chars []byte
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		chars = append(chars, byte(c))
	}
	at, err := gpu.ParsePCIAddress(string(chars))
	return hwprofile.Address{PCIAddress: at}, err
}

func (g *gpuReader) readIdentity() {
	d, c := g.handle, &g.out.Calls
	c.GetName = ask(g, "GetName", d.GetName, same)
	c.GetUUID = ask(g, "GetUUID", d.GetUUID, same)
	c.GetSerial = ask(g, "GetSerial", d.GetSerial, same)
	c.GetVbiosVersion = ask(g, "GetVbiosVersion", d.GetVbiosVersion, same)
	c.GetBoardPartNumber = ask(g, "GetBoardPartNumber", d.GetBoardPartNumber, same)
	c.GetMinorNumber = ask(g, "GetMinorNumber", d.GetMinorNumber, same)
}

func (g *gpuReader) readModel() {
	d, c := g.handle, &g.out.Calls
	c.GetBrand = ask(g, "GetBrand", d.GetBrand, to[hwprofile.Brand])
	c.GetArchitecture = ask(g, "GetArchitecture", d.GetArchitecture, to[hwprofile.Architecture])
	c.GetCudaComputeCapability = ask(g, "GetCudaComputeCapability", func() (hwprofile.Capability, nvmllib.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return hwprofile.Capability{Major: major, Minor: minor}, ret
	}, same)
	c.GetNumGpuCores = ask(g, "GetNumGpuCores", d.GetNumGpuCores, same)
	c.GetMemoryBusWidth = ask(g, "GetMemoryBusWidth", d.GetMemoryBusWidth, same)
	c.GetMaxClockInfo = askEach(g, "GetMaxClockInfo", clocks, func(k hwprofile.Clock) (uint32,
		nvmllib.Return) {
		return d.GetMaxClockInfo(nvmllib.ClockType(k))
	})
	c.GetClockInfo = askEach(g, "GetClockInfo", clocks, func(k hwprofile.Clock) (uint32,
		nvmllib.Return) {
		return d.GetClockInfo(nvmllib.ClockType(k))
	})
	c.GetMaxPcieLinkGeneration = ask(g, "GetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration, same)
	c.GetMaxPcieLinkWidth = ask(g, "GetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth, same)
	c.GetCurrPcieLinkGeneration = ask(g, "GetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration, same)
	c.GetCurrPcieLinkWidth = ask(g, "GetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth, same)
	c.GetAddressingMode = ask(g, "GetAddressingMode", d.GetAddressingMode,
		func(m nvmllib.DeviceAddressingMode) hwprofile.AddressingMode {
			return hwprofile.AddressingMode(m.Value)
		})
	c.GetNumaNodeId = ask(g, "GetNumaNodeId", d.GetNumaNodeId, same)
}

// clocks are NVML's clocks (nvmlClockType_t).
var clocks = []hwprofile.Clock{hwprofile.Clock(nvmllib.CLOCK_GRAPHICS), hwprofile.Clock(nvmllib.CLOCK_SM),
	hwprofile.Clock(nvmllib.CLOCK_MEM), hwprofile.Clock(nvmllib.CLOCK_VIDEO)}

func (g *gpuReader) readUsage() {
	d, c := g.handle, &g.out.Calls
	c.GetMemoryInfo = g.memory()
	c.GetTemperature = askEach(g, "GetTemperature", []hwprofile.Sensor{hwprofile.Sensor(nvmllib.TEMPERATURE_GPU)},
		func(k hwprofile.Sensor) (uint32, nvmllib.Return) {
			return d.GetTemperature(nvmllib.TemperatureSensors(k))
		})
	c.GetFanSpeed = ask(g, "GetFanSpeed", d.GetFanSpeed, same)
	c.GetPerformanceState = ask(g, "GetPerformanceState", d.GetPerformanceState, to[hwprofile.Performance])
	c.GetPowerUsage = ask(g, "GetPowerUsage", d.GetPowerUsage, same)
	c.GetPowerManagementLimit = ask(g, "GetPowerManagementLimit", d.GetPowerManagementLimit, same)
	c.GetUtilizationRates = ask(g, "GetUtilizationRates", d.GetUtilizationRates,
		func(u nvmllib.Utilization) hwprofile.Utilization {
			return hwprofile.Utilization{GPU: u.Gpu, Memory: u.Memory}
		})
}

// memory takes the driver's reserved memory from the newer call; the older one counts it as used.
func (g *gpuReader) memory() hwprofile.Answer[hwprofile.Memory] {
	v1 := ask(g, "GetMemoryInfo", g.handle.GetMemoryInfo,
		func(m nvmllib.Memory) hwprofile.Memory { return hwprofile.Memory{Total: m.Total, Used: m.Used} })
	v2 := ask(g, "GetMemoryInfo_v2", g.handle.GetMemoryInfo_v2,
		func(m nvmllib.Memory_v2) hwprofile.Memory {
			return hwprofile.Memory{Total: m.Total, Reserved: m.Reserved, Used: m.Used}
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

func licenseOf(all nvmllib.GridLicensableFeatures) hwprofile.License {
	l := nvml.LicenseOf(all)
	out := hwprofile.License{Product: l.Product}
	if l.State == gpu.Licensed {
		out.Licensed = hwprofile.Enabled
	}
	if !l.Expiry.IsZero() {
		out.Expiry = l.Expiry.Format(time.RFC3339)
	}
	return out
}

func (g *gpuReader) readConfig() {
	d, c := g.handle, &g.out.Calls
	c.GetComputeMode = ask(g, "GetComputeMode", d.GetComputeMode, to[hwprofile.ComputeMode])
	c.GetPersistenceMode = ask(g, "GetPersistenceMode", d.GetPersistenceMode, to[hwprofile.Switch])
	c.GetDisplayActive = ask(g, "GetDisplayActive", d.GetDisplayActive, to[hwprofile.Switch])
	c.GetEccMode = ask(g, "GetEccMode", func() (hwprofile.ModeChange, nvmllib.Return) {
		current, pending, ret := d.GetEccMode()
		return hwprofile.ModeChange{Current: hwprofile.Switch(current), Pending: hwprofile.Switch(pending)}, ret
	}, same)
	c.GetVirtualizationMode = ask(g, "GetVirtualizationMode", d.GetVirtualizationMode, to[hwprofile.Virtualization])
	c.GetGridLicensableFeatures = ask(g, "GetGridLicensableFeatures", d.GetGridLicensableFeatures, licenseOf)
	c.GetSupportedEventTypes = ask(g, "GetSupportedEventTypes", d.GetSupportedEventTypes, same)
}

func (g *gpuReader) readTopology(others []*gpuReader) {
	d, c := g.handle, &g.out.Calls
	var links []int
	for link := range nvmllib.NVLINK_MAX_LINKS {
		links = append(links, link)
	}
	c.GetNvLinkState = asLinks(askEach(g, "GetNvLinkState", links, func(link int) (hwprofile.Switch, nvmllib.Return) {
		state, ret := d.GetNvLinkState(link)
		return hwprofile.Switch(state), ret
	}))
	c.GetNvLinkVersion = asLinks(askEach(g, "GetNvLinkVersion", links, func(link int) (hwprofile.LinkVersion,
		nvmllib.Return) {
		version, ret := d.GetNvLinkVersion(link)
		return hwprofile.LinkVersion(version), ret
	}))
	c.GetNvLinkRemoteDeviceType = asLinks(askEach(g, "GetNvLinkRemoteDeviceType", links,
		func(link int) (hwprofile.LinkEnd, nvmllib.Return) {
			kind, ret := d.GetNvLinkRemoteDeviceType(link)
			return hwprofile.LinkEnd(kind), ret
		}))
	c.GetNvLinkRemotePciInfo = asLinks(askEach(g, "GetNvLinkRemotePciInfo", links, func(link int) (hwprofile.Address,
		nvmllib.Return) {
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

func asLinks[T any](a hwprofile.Answer[map[int]T]) hwprofile.Answer[hwprofile.Links[T]] {
	all, e := a.Get()
	if e != "" {
		return hwprofile.Failure[hwprofile.Links[T]](e)
	}
	return hwprofile.Value(hwprofile.Links[T](all))
}

func fabric(info nvmllib.GpuFabricInfo) hwprofile.Fabric {
	u := hex.EncodeToString(info.ClusterUuid[:])
	return hwprofile.Fabric{State: hwprofile.FabricState(info.State), Status: int(info.Status), CliqueID: info.CliqueId,
		ClusterUUID: fmt.Sprintf("%s-%s-%s-%s-%s", u[:8], u[8:12], u[12:16], u[16:20], u[20:])}
}

// ancestors returns the topology level of the GPU with each other one.
func (g *gpuReader) ancestors(others []*gpuReader) hwprofile.Answer[map[hwprofile.Address]hwprofile.Proximity] {
	handles := map[hwprofile.Address]nvmllib.Device{}
	var addresses []hwprofile.Address
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
	return askEach(g, "GetTopologyCommonAncestor", addresses, func(at hwprofile.Address) (hwprofile.Proximity,
		nvmllib.Return) {
		level, ret := g.handle.GetTopologyCommonAncestor(handles[at])
		return hwprofile.Proximity(level), ret
	})
}

// failures records the errors of calls whose values are not recorded because they change all the time.
func (g *gpuReader) failures() {
	d := g.handle
	for _, c := range []struct {
		call string
		ask  func() nvmllib.Return
		none nvmllib.Return // the result without data
	}{
		{"GetComputeRunningProcesses", func() nvmllib.Return { _, ret := d.GetComputeRunningProcesses(); return ret },
			nvmllib.SUCCESS},
		{"GetGraphicsRunningProcesses", func() nvmllib.Return { _, ret := d.GetGraphicsRunningProcesses(); return ret },
			nvmllib.SUCCESS},
		{"GetMPSComputeRunningProcesses", func() nvmllib.Return {
			_, ret := d.GetMPSComputeRunningProcesses()
			return ret
		}, nvmllib.SUCCESS},
		{"GetCurrentClocksEventReasons", func() nvmllib.Return {
			_, ret := d.GetCurrentClocksEventReasons()
			return ret
		}, nvmllib.SUCCESS},
		{"GetProcessUtilization", func() nvmllib.Return { _, ret := d.GetProcessUtilization(0); return ret },
			nvmllib.ERROR_NOT_FOUND},
	} {
		if !g.has(c.call) {
			g.out.Calls.SetError(c.call, "ERROR_FUNCTION_NOT_FOUND")
		} else if ret := c.ask(); ret != nvmllib.SUCCESS && ret != c.none {
			g.out.Calls.SetError(c.call, code(ret))
		}
	}
}

// place sets the bus path of every GPU, and makes up an address and a minor number if NVML does not return them.
func (r *reader) place(gpus []hwprofile.GPU) {
	for i := range gpus {
		g := &gpus[i]
		if g.PCI.Address == (hwprofile.Address{}) {
			at, found := r.bus.unclaimed(gpus)
			if !found {
				at = behind(gpus[:i])
			}
			g.PCI.Address = at
			r.note("GPU %d: NVML does not say where it is; %s is %s", i, at,
				map[bool]string{true: "a GPU that NVML does not name", false: "made up"}[found])
		}
		r.bus.complete(&g.PCI)
		if g.Calls.ErrorOnly(hwprofile.HandleCall) != "" {
			g.Calls.GetMinorNumber = hwprofile.Value(freeMinor(gpus))
		}
	}
}

// behind returns an address after all others in NVML's order.
func behind(gpus []hwprofile.GPU) hwprofile.Address {
	var at hwprofile.Address
	if len(gpus) > 0 {
		at = gpus[len(gpus)-1].PCI.Address
	}
	at.Device++
	return at
}

func freeMinor(gpus []hwprofile.GPU) int {
	for minor := 0; ; minor++ {
		taken := func(g hwprofile.GPU) bool {
			is, e := g.Calls.GetMinorNumber.Get()
			return e == "" && is == minor
		}
		if !slices.ContainsFunc(gpus, taken) {
			return minor
		}
	}
}
