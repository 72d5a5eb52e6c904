// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/binary"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// setHealthCalls sets the calls about rows and pages of damaged memory, and about a slowdown.
func (d *device) setHealthCalls() {
	rows := value(d, remappedRows, same[nvml.RemappedRowsInfo_v2])
	d.GetRemappedRows_v2Func = rows
	d.GetRemappedRowsFunc = func() (corrected, uncorrected int, pending, failed bool, ret nvml.Return) {
		info, ret := rows()
		return int(info.CorrActiveRemaps), int(info.UncActiveRemaps), info.BPending != 0, info.BFailureOccurred != 0,
			ret
	}
	d.GetRetiredPagesPendingStatusFunc = value(d, retiredPagesPending, func(pending uint32) nvml.EnableState {
		return nvml.EnableState(pending)
	})
	d.GetCurrentClocksEventReasonsFunc = value(d, clocksEventReasons, same[uint64])
	d.GetCurrentClocksThrottleReasonsFunc = d.GetCurrentClocksEventReasonsFunc // its old name
}

// clocksEventReasons is 0 unless the hardware slows the GPU down.
func clocksEventReasons(c node.GPU) hwprofile.Answer[uint64] {
	switch c.Health().Slowdown {
	case node.Thermal:
		return hwprofile.Value[uint64](nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown)
	case node.PowerBrake:
		return hwprofile.Value[uint64](nvml.ClocksThrottleReasonHwSlowdown |
			nvml.ClocksThrottleReasonHwPowerBrakeSlowdown)
	}
	return hwprofile.Value[uint64](nvml.ClocksEventReasonNone)
}

// remappedRows has one row for an error that cannot be corrected if rows are pending or failed. NVML does not answer
// for a GPU that has MIG instances.
func remappedRows(c node.GPU) hwprofile.Answer[nvml.RemappedRowsInfo_v2] {
	if !c.RemapsRows() || len(c.MIG().Instances) > 0 {
		return hwprofile.Failure[nvml.RemappedRowsInfo_v2](hwprofile.NotSupported)
	}
	var info nvml.RemappedRowsInfo_v2
	switch c.Health().RemappedRows {
	case node.Pending:
		info.UncInactiveRemaps, info.BPending = 1, 1
	case node.Failed:
		info.UncInactiveRemaps, info.BFailureOccurred = 1, 1
	}
	return hwprofile.Value(info)
}

func retiredPagesPending(c node.GPU) hwprofile.Answer[uint32] {
	if !c.RetiresPages() {
		return hwprofile.Failure[uint32](hwprofile.NotSupported)
	}
	if c.Health().RetiredPages == node.Pending {
		return hwprofile.Value(uint32(1))
	}
	return hwprofile.Value(uint32(0))
}

// fieldValues answers the fields about health. For the others it returns ERROR_NOT_SUPPORTED separately, as NVML does.
func (d *device) fieldValues(values []nvml.FieldValue) nvml.Return {
	if len(values) == 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		v, e := field(c, values[i].FieldId).Get()
		values[i].NvmlReturn = uint32(e.Number())
		if e == "" {
			values[i].Timestamp, values[i].ValueType = time.Now().UnixMicro(), uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			values[i].Value = [8]byte{}
			binary.NativeEndian.PutUint32(values[i].Value[:], v)
		}
	}
	return nvml.SUCCESS
}

func field(c node.GPU, id uint32) hwprofile.Answer[uint32] {
	ofRows := func(pick func(nvml.RemappedRowsInfo_v2) uint32) hwprofile.Answer[uint32] {
		info, e := remappedRows(c).Get()
		if e != "" {
			return hwprofile.Failure[uint32](e)
		}
		return hwprofile.Value(pick(info))
	}
	switch id {
	case nvml.FI_DEV_GET_GPU_RECOVERY_ACTION:
		return hwprofile.Value(uint32(c.Health().RecoveryAction))
	case nvml.FI_DEV_REMAPPED_PENDING:
		return ofRows(func(info nvml.RemappedRowsInfo_v2) uint32 { return info.BPending })
	case nvml.FI_DEV_REMAPPED_FAILURE:
		return ofRows(func(info nvml.RemappedRowsInfo_v2) uint32 { return info.BFailureOccurred })
	case nvml.FI_DEV_RETIRED_PENDING:
		return retiredPagesPending(c)
	}
	return hwprofile.Failure[uint32](hwprofile.NotSupported)
}

// healthyFabric is the health mask of a GPU in a fabric in which nothing is wrong.
const healthyFabric = nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY |
	nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE<<
		nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY |
	nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE<<
		nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION

// unhealthyFabric is the same with an unhealthy route.
const unhealthyFabric = healthyFabric&^
	(nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY) |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY

// fabricInfo has the health of the fabric, which GetGpuFabricInfo does not have. An unhealthy one has an unhealthy
// route. Before a GPU has joined the fabric, its health is not known.
func (d *device) fabricInfo() (nvml.GpuFabricInfo_v4, nvml.Return) {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return nvml.GpuFabricInfo_v4{}, ret
	}
	f, e := c.Fabric().Get()
	if e != "" {
		return nvml.GpuFabricInfo_v4{}, nvml.Return(e.Number())
	}
	info := nvml.GpuFabricInfo_v4{ClusterUuid: uuidBytes(f.ClusterUUID), Status: uint32(f.Status),
		State: uint8(f.State), NumCliques: 1}
	info.Cliques[0].Id = f.CliqueID
	switch {
	case c.Health().Fabric == node.Unhealthy:
		info.HealthMask, info.HealthSummary = unhealthyFabric, nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY
	case f.State == nvml.GPU_FABRIC_STATE_COMPLETED:
		info.HealthMask, info.HealthSummary = healthyFabric, nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
	}
	return info, nvml.SUCCESS
}
