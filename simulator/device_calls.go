// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// setIdentityCalls sets the calls that identify the GPU.
func (d *device) setIdentityCalls() {
	d.GetIndexFunc = value(d, func(c node.GPU) hwprofile.Answer[int] { return hwprofile.Value(c.Index) }, same[int])
	d.GetMinorNumberFunc = value(d, func(c node.GPU) hwprofile.Answer[int] {
		return c.Calls.GetMinorNumber.Or(c.Minor)
	}, same[int])
	d.GetUUIDFunc = value(d, func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetUUID.Or(c.UUID) },
		same[string])
	d.GetSerialFunc = value(d, func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetSerial.Or(c.Serial) },
		same[string])
	d.GetNameFunc = value(d, func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetName }, same[string])
	d.GetVbiosVersionFunc = value(d, func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetVbiosVersion },
		same[string])
	d.GetBoardPartNumberFunc = value(d,
		func(c node.GPU) hwprofile.Answer[string] { return c.Calls.GetBoardPartNumber }, same[string])
	pci := func(c node.GPU) hwprofile.Answer[hwprofile.PCI] { return hwprofile.Value(c.PCI) }
	d.GetPciInfoFunc = value(d, pci, pciInfo)
	d.GetPciInfoExtFunc = value(d, pci, pciInfoExt)
}

// setModelCalls sets the calls about the GPU's model.
func (d *device) setModelCalls() {
	d.GetBrandFunc = value(d, func(c node.GPU) hwprofile.Answer[hwprofile.Brand] { return c.Calls.GetBrand },
		func(v hwprofile.Brand) nvml.BrandType { return nvml.BrandType(v) })
	d.GetArchitectureFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Architecture] { return c.Calls.GetArchitecture },
		func(v hwprofile.Architecture) nvml.DeviceArchitecture { return nvml.DeviceArchitecture(v) })
	capability := value(d, func(
		c node.GPU) hwprofile.Answer[hwprofile.Capability] {
		return c.Calls.GetCudaComputeCapability
	}, same[hwprofile.Capability])
	d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) {
		v, ret := capability()
		return v.Major, v.Minor, ret
	}
	d.GetNumGpuCoresFunc = value(d, cores, same[int])
	d.GetMemoryBusWidthFunc = value(d, func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetMemoryBusWidth },
		same[uint32])
	clock := func(v nvml.ClockType) hwprofile.Clock { return hwprofile.Clock(v) }
	d.GetMaxClockInfoFunc = lookup(d,
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Clock]uint32] { return c.Calls.GetMaxClockInfo }, clock,
		same[uint32])
	d.GetClockInfoFunc = lookup(d,
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Clock]uint32] { return c.Calls.GetClockInfo }, clock,
		same[uint32])
	d.GetMaxPcieLinkGenerationFunc = value(d,
		func(c node.GPU) hwprofile.Answer[int] { return c.Calls.GetMaxPcieLinkGeneration }, same[int])
	d.GetMaxPcieLinkWidthFunc = value(d, func(c node.GPU) hwprofile.Answer[int] { return c.Calls.GetMaxPcieLinkWidth },
		same[int])
	d.GetCurrPcieLinkGenerationFunc = value(d,
		func(c node.GPU) hwprofile.Answer[int] { return c.CurrPcieLinkGeneration() }, same[int])
	d.GetCurrPcieLinkWidthFunc = value(d,
		func(c node.GPU) hwprofile.Answer[int] { return c.CurrPcieLinkWidth() }, same[int])
	d.GetAddressingModeFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.AddressingMode] { return c.Calls.GetAddressingMode },
		func(v hwprofile.AddressingMode) nvml.DeviceAddressingMode {
			mode := nvml.DeviceAddressingMode{Value: uint32(v)}
			mode.Version = nvml.STRUCT_VERSION(mode, 1)
			return mode
		})
	d.GetNumaNodeIdFunc = value(d, func(c node.GPU) hwprofile.Answer[int] { return c.Calls.GetNumaNodeId }, same[int])
}

// cores returns the number of cores, which NVML does not report in MIG mode (nvml.h: nvmlDeviceGetNumGpuCores).
func cores(c node.GPU) hwprofile.Answer[int] {
	if c.MIG().Mode.Current == 1 {
		return hwprofile.Failure[int](hwprofile.NotSupported)
	}
	return c.Calls.GetNumGpuCores
}

// setUsageCalls sets the calls about the GPU's usage: it is idle, except for its memory.
func (d *device) setUsageCalls() {
	memory := func(c node.GPU) hwprofile.Answer[hwprofile.Memory] { return c.Memory() }
	d.GetMemoryInfoFunc = value(d, memory, func(m hwprofile.Memory) nvml.Memory {
		return nvml.Memory{Total: m.Total, Used: m.Reserved + m.Used, Free: m.Total - m.Reserved - m.Used}
	})
	d.GetMemoryInfo_v2Func = value(d, memory, func(m hwprofile.Memory) nvml.Memory_v2 {
		v := nvml.Memory_v2{Total: m.Total, Reserved: m.Reserved, Used: m.Used, Free: m.Total - m.Reserved - m.Used}
		v.Version = nvml.STRUCT_VERSION(v, 2)
		return v
	})
	d.GetTemperatureFunc = lookup(d,
		func(c node.GPU) hwprofile.Answer[map[hwprofile.Sensor]uint32] { return c.Calls.GetTemperature },
		func(v nvml.TemperatureSensors) hwprofile.Sensor { return hwprofile.Sensor(v) }, same[uint32])
	d.GetFanSpeedFunc = value(d, func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetFanSpeed },
		same[uint32])
	pstate := func(v hwprofile.Performance) nvml.Pstates { return nvml.Pstates(v) }
	d.GetPerformanceStateFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Performance] { return c.PerformanceState() }, pstate)
	d.GetPowerStateFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Performance] { return c.PerformanceState() }, pstate)
	d.GetPowerUsageFunc = value(d, func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetPowerUsage },
		same[uint32])
	d.GetPowerManagementLimitFunc = value(d,
		func(c node.GPU) hwprofile.Answer[uint32] { return c.Calls.GetPowerManagementLimit }, same[uint32])
	d.GetEnforcedPowerLimitFunc = d.GetPowerManagementLimitFunc
	d.GetUtilizationRatesFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Utilization] { return c.Calls.GetUtilizationRates },
		func(v hwprofile.Utilization) nvml.Utilization { return nvml.Utilization{Gpu: v.GPU, Memory: v.Memory} })
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	// All processes are MPS clients: nvidia-smi's M+C, a context of either kind.
	d.GetComputeRunningProcessesFunc = value(d, hwprofile.Value[node.GPU], allProcesses)
	d.GetMPSComputeRunningProcessesFunc = d.GetComputeRunningProcessesFunc
	d.GetProcessUtilizationFunc = d.processUtilization
}

func processes(c node.GPU) hwprofile.Answer[[]node.Process] {
	return hwprofile.Value(c.State.Processes)
}

// noInstance means no MIG instance.
const noInstance = ^uint32(0)

func processInfo(all []node.Process, instance, compute uint32) []nvml.ProcessInfo {
	var out []nvml.ProcessInfo
	for _, p := range all {
		out = append(out, nvml.ProcessInfo{Pid: uint32(p.PID), UsedGpuMemory: p.Memory, GpuInstanceId: instance,
			ComputeInstanceId: compute})
	}
	return out
}

// allProcesses returns the processes of the GPU and of all its partitions, as NVML reports them to an administrator.
func allProcesses(c node.GPU) []nvml.ProcessInfo {
	out := processInfo(c.State.Processes, noInstance, noInstance)
	for _, p := range c.Partitions() {
		out = append(out, processInfo(p.Compute.Processes, uint32(p.Instance.ID), uint32(p.Compute.ID))...)
	}
	return out
}

// processUtilization answers as if every process used as many multiprocessors as it may, up to all of them in total.
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

// setConfigCalls sets the calls about settings that an administrator can change, and about events.
func (d *device) setConfigCalls() {
	state := func(v hwprofile.Switch) nvml.EnableState { return nvml.EnableState(v) }
	d.GetComputeModeFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.ComputeMode] { return c.ComputeMode() },
		func(v hwprofile.ComputeMode) nvml.ComputeMode { return nvml.ComputeMode(v) })
	d.SetComputeModeFunc = d.setComputeMode
	d.GetPersistenceModeFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Switch] { return c.Persistence() }, state)
	d.SetPersistenceModeFunc = d.setPersistenceMode
	d.GetDisplayActiveFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Switch] { return c.Calls.GetDisplayActive }, state)
	ecc := value(d, func(c node.GPU) hwprofile.Answer[hwprofile.ModeChange] { return c.EccMode() },
		same[hwprofile.ModeChange])
	d.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		v, ret := ecc()
		return state(v.Current), state(v.Pending), ret
	}
	d.GetVirtualizationModeFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.Virtualization] { return c.Calls.GetVirtualizationMode },
		func(v hwprofile.Virtualization) nvml.GpuVirtualizationMode { return nvml.GpuVirtualizationMode(v) })
	d.GetGridLicensableFeaturesFunc = value(d,
		func(c node.GPU) hwprofile.Answer[hwprofile.License] { return c.License() }, licensableFeatures)
	d.GetSupportedEventTypesFunc = value(d,
		func(c node.GPU) hwprofile.Answer[uint64] { return c.SupportedEvents() }, same[uint64])
	d.RegisterEventsFunc = d.registerEvents
	d.GetFieldValuesFunc = d.fieldValues
}

// licensableFeatures has the expiry of a license only while there is one.
func licensableFeatures(l hwprofile.License) nvml.GridLicensableFeatures {
	var out nvml.GridLicensableFeatures
	if l.Product == "" {
		return out
	}
	f := &out.GridLicensableFeatures[0]
	out.IsGridLicenseSupported, out.LicensableFeaturesCount = 1, 1
	f.FeatureEnabled, f.FeatureState = 1, uint32(l.Licensed)
	f.FeatureCode = uint32(nvml.GRID_LICENSE_FEATURE_CODE_NVIDIA_RTX)
	put(f.ProductName[:], l.Product)
	if at, err := time.Parse(time.RFC3339, l.Expiry); err == nil && l.Licensed == hwprofile.Enabled {
		at = at.UTC()
		f.LicenseExpiry = nvml.GridLicenseExpiry{Year: uint32(at.Year()), Month: uint16(at.Month()),
			Day: uint16(at.Day()), Hour: uint16(at.Hour()), Min: uint16(at.Minute()), Sec: uint16(at.Second()),
			Status: nvml.GRID_LICENSE_EXPIRY_VALID}
	}
	return out
}

func (d *device) setComputeMode(mode nvml.ComputeMode) nvml.Return {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return ret
	}
	if _, e := c.ComputeMode().Get(); e != "" {
		return nvml.Return(e.Number())
	}
	if !hwprofile.ComputeMode(mode).Valid() {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if err := d.library.node.SetComputeMode(d.UUID, hwprofile.ComputeMode(mode)); err != nil {
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}

func (d *device) setPersistenceMode(mode nvml.EnableState) nvml.Return {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return ret
	}
	if _, e := c.Persistence().Get(); e != "" {
		return nvml.Return(e.Number())
	}
	if err := d.library.node.SetPersistence(d.UUID, hwprofile.Switch(mode)); err != nil {
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}

// busID formats the address as NVML does, in upper case: the domain has eight digits, in the legacy form four.
func busID(at hwprofile.Address, domain int) string {
	return fmt.Sprintf("%0*X:%02X:%02X.%X", domain, at.Domain, at.Bus, at.Device, at.Function)
}

func pciInfo(p hwprofile.PCI) nvml.PciInfo {
	info := nvml.PciInfo{
		Domain: p.Address.Domain, Bus: uint32(p.Address.Bus), Device: uint32(p.Address.Device),
		PciDeviceId: p.DeviceID<<16 | hwprofile.Vendor, PciSubSystemId: p.Subsystem,
	}
	put(info.BusId[:], busID(p.Address, 8))
	put(info.BusIdLegacy[:], busID(p.Address, 4))
	return info
}

func pciInfoExt(p hwprofile.PCI) nvml.PciInfoExt {
	const displayController, threeD = 3, 2
	info := nvml.PciInfoExt{
		Domain: p.Address.Domain, Bus: uint32(p.Address.Bus), Device: uint32(p.Address.Device),
		PciDeviceId: p.DeviceID<<16 | hwprofile.Vendor, PciSubSystemId: p.Subsystem, BaseClass: displayController,
		SubClass: threeD,
	}
	info.Version = nvml.STRUCT_VERSION(info, 1)
	put(info.BusId[:], busID(p.Address, 8))
	return info
}

// put writes a C string, truncated if it does not fit.
func put(to []int8, s string) {
	for i := range min(len(s), len(to)-1) {
		to[i] = int8(s[i])
	}
}
