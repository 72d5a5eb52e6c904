// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// identify sets the calls that say which GPU it is.
func (d *device) identify() {
	d.GetIndexFunc = value(d, func(c node.Card) node.Answer[int] { return node.Value(c.Index) }, same[int])
	d.GetMinorNumberFunc = value(d, func(c node.Card) node.Answer[int] { return c.Calls.GetMinorNumber.Or(c.Minor) }, same[int])
	d.GetUUIDFunc = value(d, func(c node.Card) node.Answer[string] { return c.Calls.GetUUID.Or(c.UUID) }, same[string])
	d.GetSerialFunc = value(d, func(c node.Card) node.Answer[string] { return c.Calls.GetSerial.Or(c.Serial) }, same[string])
	d.GetNameFunc = value(d, func(c node.Card) node.Answer[string] { return c.Calls.GetName }, same[string])
	d.GetVbiosVersionFunc = value(d, func(c node.Card) node.Answer[string] { return c.Calls.GetVbiosVersion }, same[string])
	d.GetBoardPartNumberFunc = value(d, func(c node.Card) node.Answer[string] { return c.Calls.GetBoardPartNumber }, same[string])
	pci := func(c node.Card) node.Answer[node.PCI] { return node.Value(c.PCI) }
	d.GetPciInfoFunc = value(d, pci, pciInfo)
	d.GetPciInfoExtFunc = value(d, pci, pciInfoExt)
}

// describe sets the calls that say what kind of GPU it is.
func (d *device) describe() {
	d.GetBrandFunc = value(d, func(c node.Card) node.Answer[node.Brand] { return c.Calls.GetBrand },
		func(v node.Brand) nvml.BrandType { return nvml.BrandType(v) })
	d.GetArchitectureFunc = value(d, func(c node.Card) node.Answer[node.Architecture] { return c.Calls.GetArchitecture },
		func(v node.Architecture) nvml.DeviceArchitecture { return nvml.DeviceArchitecture(v) })
	capability := value(d, func(c node.Card) node.Answer[node.Capability] { return c.Calls.GetCudaComputeCapability }, same[node.Capability])
	d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) {
		v, ret := capability()
		return v.Major, v.Minor, ret
	}
	d.GetNumGpuCoresFunc = value(d, cores, same[int])
	d.GetMemoryBusWidthFunc = value(d, func(c node.Card) node.Answer[uint32] { return c.Calls.GetMemoryBusWidth }, same[uint32])
	clock := func(v nvml.ClockType) node.Clock { return node.Clock(v) }
	d.GetMaxClockInfoFunc = lookup(d, func(c node.Card) node.Answer[map[node.Clock]uint32] { return c.Calls.GetMaxClockInfo }, clock, same[uint32])
	d.GetClockInfoFunc = lookup(d, func(c node.Card) node.Answer[map[node.Clock]uint32] { return c.Calls.GetClockInfo }, clock, same[uint32])
	d.GetMaxPcieLinkGenerationFunc = value(d, func(c node.Card) node.Answer[int] { return c.Calls.GetMaxPcieLinkGeneration }, same[int])
	d.GetMaxPcieLinkWidthFunc = value(d, func(c node.Card) node.Answer[int] { return c.Calls.GetMaxPcieLinkWidth }, same[int])
	d.GetCurrPcieLinkGenerationFunc = value(d, func(c node.Card) node.Answer[int] { return c.Calls.GetCurrPcieLinkGeneration }, same[int])
	d.GetCurrPcieLinkWidthFunc = value(d, func(c node.Card) node.Answer[int] { return c.Calls.GetCurrPcieLinkWidth }, same[int])
	d.GetAddressingModeFunc = value(d, func(c node.Card) node.Answer[node.AddressingMode] { return c.Calls.GetAddressingMode },
		func(v node.AddressingMode) nvml.DeviceAddressingMode {
			mode := nvml.DeviceAddressingMode{Value: uint32(v)}
			mode.Version = nvml.STRUCT_VERSION(mode, 1)
			return mode
		})
	d.GetNumaNodeIdFunc = value(d, func(c node.Card) node.Answer[int] { return c.Calls.GetNumaNodeId }, same[int])
}

// cores are not told of a GPU in MIG mode (nvml.h: nvmlDeviceGetNumGpuCores).
func cores(c node.Card) node.Answer[int] {
	if c.MIG().Mode.Current == 1 {
		return node.Failure[int](node.NotSupported)
	}
	return c.Calls.GetNumGpuCores
}

// measure sets the calls about what the GPU is doing: nothing, but that its memory may be in use.
func (d *device) measure() {
	memory := func(c node.Card) node.Answer[node.Memory] { return c.Memory() }
	d.GetMemoryInfoFunc = value(d, memory, func(m node.Memory) nvml.Memory {
		return nvml.Memory{Total: m.Total, Used: m.Reserved + m.Used, Free: m.Total - m.Reserved - m.Used}
	})
	d.GetMemoryInfo_v2Func = value(d, memory, func(m node.Memory) nvml.Memory_v2 {
		v := nvml.Memory_v2{Total: m.Total, Reserved: m.Reserved, Used: m.Used, Free: m.Total - m.Reserved - m.Used}
		v.Version = nvml.STRUCT_VERSION(v, 2)
		return v
	})
	d.GetTemperatureFunc = lookup(d, func(c node.Card) node.Answer[map[node.Sensor]uint32] { return c.Calls.GetTemperature },
		func(v nvml.TemperatureSensors) node.Sensor { return node.Sensor(v) }, same[uint32])
	d.GetFanSpeedFunc = value(d, func(c node.Card) node.Answer[uint32] { return c.Calls.GetFanSpeed }, same[uint32])
	pstate := func(v node.Performance) nvml.Pstates { return nvml.Pstates(v) }
	d.GetPerformanceStateFunc = value(d, func(c node.Card) node.Answer[node.Performance] { return c.Calls.GetPerformanceState }, pstate)
	d.GetPowerStateFunc = value(d, func(c node.Card) node.Answer[node.Performance] { return c.Calls.GetPerformanceState }, pstate)
	d.GetPowerUsageFunc = value(d, func(c node.Card) node.Answer[uint32] { return c.Calls.GetPowerUsage }, same[uint32])
	d.GetPowerManagementLimitFunc = value(d, func(c node.Card) node.Answer[uint32] { return c.Calls.GetPowerManagementLimit }, same[uint32])
	d.GetEnforcedPowerLimitFunc = d.GetPowerManagementLimitFunc
	d.GetUtilizationRatesFunc = value(d, func(c node.Card) node.Answer[node.Utilization] { return c.Calls.GetUtilizationRates },
		func(v node.Utilization) nvml.Utilization { return nvml.Utilization{Gpu: v.GPU, Memory: v.Memory} })
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	// All are clients of MPS: nvidia-smi's M+C, a context of either kind.
	d.GetComputeRunningProcessesFunc = value(d, func(c node.Card) node.Answer[node.Card] { return node.Value(c) }, allProcesses)
	d.GetMPSComputeRunningProcessesFunc = d.GetComputeRunningProcessesFunc
	d.GetProcessUtilizationFunc = d.processUtilization
}

func processes(c node.Card) node.Answer[[]node.Process] { return node.Value(c.State.Processes) }

// noInstance is the ID of no instance of MIG.
const noInstance = ^uint32(0)

func processInfo(all []node.Process, instance, compute uint32) []nvml.ProcessInfo {
	var out []nvml.ProcessInfo
	for _, p := range all {
		out = append(out, nvml.ProcessInfo{Pid: uint32(p.PID), UsedGpuMemory: p.Memory, GpuInstanceId: instance, ComputeInstanceId: compute})
	}
	return out
}

// allProcesses are the processes of the GPU and of all its partitions: NVML tells an administrator of all of them.
func allProcesses(c node.Card) []nvml.ProcessInfo {
	out := processInfo(c.State.Processes, noInstance, noInstance)
	for _, p := range c.Partitions() {
		out = append(out, processInfo(p.Compute.Processes, uint32(p.Instance.ID), uint32(p.Compute.ID))...)
	}
	return out
}

// processUtilization is as if every process used all the multiprocessors that it may, and all of them together no more than there are.
func (d *device) processUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	all, ret := value(d, processes, same[[]node.Process])()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if len(all) == 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	now, free := uint64(time.Now().UnixMicro()), 100
	var out []nvml.ProcessUtilizationSample
	for _, p := range all {
		sm := min(p.Threads, free)
		free -= sm
		out = append(out, nvml.ProcessUtilizationSample{Pid: uint32(p.PID), TimeStamp: now, SmUtil: uint32(sm)})
	}
	return out, nvml.SUCCESS
}

// configure sets the calls about what an administrator can change, and those about events.
func (d *device) configure() {
	state := func(v node.Switch) nvml.EnableState { return nvml.EnableState(v) }
	d.GetComputeModeFunc = value(d, func(c node.Card) node.Answer[node.ComputeMode] { return c.ComputeMode() },
		func(v node.ComputeMode) nvml.ComputeMode { return nvml.ComputeMode(v) })
	d.SetComputeModeFunc = d.setComputeMode
	d.GetPersistenceModeFunc = value(d, func(c node.Card) node.Answer[node.Switch] { return c.Calls.GetPersistenceMode }, state)
	d.GetDisplayActiveFunc = value(d, func(c node.Card) node.Answer[node.Switch] { return c.Calls.GetDisplayActive }, state)
	ecc := value(d, func(c node.Card) node.Answer[node.ModeChange] { return c.Calls.GetEccMode }, same[node.ModeChange])
	d.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		v, ret := ecc()
		return state(v.Current), state(v.Pending), ret
	}
	events := value(d, func(c node.Card) node.Answer[uint64] { return c.Calls.GetSupportedEventTypes }, same[uint64])
	d.GetSupportedEventTypesFunc = events
	d.RegisterEventsFunc = func(mask uint64, set nvml.EventSet) nvml.Return {
		supported, ret := events()
		return registerEvents(supported, ret, mask, set)
	}
	d.GetFieldValuesFunc = d.fieldValues
}

func (d *device) setComputeMode(mode nvml.ComputeMode) nvml.Return {
	c, ret := d.card()
	if ret != nvml.SUCCESS {
		return ret
	}
	if _, e := c.ComputeMode().Get(); e != "" {
		return nvml.Return(e.Number())
	}
	if !node.ComputeMode(mode).Valid() {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if err := d.library.node.SetComputeMode(d.UUID, node.ComputeMode(mode)); err != nil {
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}

// registerEvents accepts the kinds of event that the GPU has: those supported, if it says so.
func registerEvents(supported uint64, ret nvml.Return, mask uint64, set nvml.EventSet) nvml.Return {
	switch {
	case ret != nvml.SUCCESS:
		return ret
	case set == nil:
		return nvml.ERROR_INVALID_ARGUMENT
	case mask&^supported != 0:
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

// fieldValues answers for each field by itself, as NVML does: none of them is supported.
func (d *device) fieldValues(values []nvml.FieldValue) nvml.Return {
	if len(values) == 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	for i := range values {
		values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
	}
	return nvml.SUCCESS
}

// busID is the address as NVML writes it: the domain has eight digits, four in the legacy form, all letters are capitals.
func busID(at node.Address, domain int) string {
	return fmt.Sprintf("%0*X:%02X:%02X.%X", domain, at.Domain, at.Bus, at.Device, at.Function)
}

func pciInfo(p node.PCI) nvml.PciInfo {
	info := nvml.PciInfo{
		Domain: p.Address.Domain, Bus: uint32(p.Address.Bus), Device: uint32(p.Address.Device),
		PciDeviceId: p.DeviceID<<16 | node.Vendor, PciSubSystemId: p.Subsystem,
	}
	put(info.BusId[:], busID(p.Address, 8))
	put(info.BusIdLegacy[:], busID(p.Address, 4))
	return info
}

func pciInfoExt(p node.PCI) nvml.PciInfoExt {
	const displayController, threeD = 3, 2
	info := nvml.PciInfoExt{
		Domain: p.Address.Domain, Bus: uint32(p.Address.Bus), Device: uint32(p.Address.Device),
		PciDeviceId: p.DeviceID<<16 | node.Vendor, PciSubSystemId: p.Subsystem, BaseClass: displayController, SubClass: threeD,
	}
	info.Version = nvml.STRUCT_VERSION(info, 1)
	put(info.BusId[:], busID(p.Address, 8))
	return info
}

// put writes a C string; what does not fit is cut off.
func put(to []int8, s string) {
	for i := range min(len(s), len(to)-1) {
		to[i] = int8(s[i])
	}
}
