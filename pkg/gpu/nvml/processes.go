// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"maps"
	"slices"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// utilizationWindow is how far back samples are asked for. The driver takes one about every second.
const utilizationWindow = 2 * time.Second

// Processes are those that use the GPU, by PID. NVIDIA's driver translates PIDs to the namespace of the one who asks, and leaves out
// processes that are not in it (open kernel module, gpuGetProcWithObject): it takes the host's namespace to see them all.
// Error: gpu.ErrUnmeasured.
func (n *Node) Processes(d gpu.Device) ([]gpu.Process, error) {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(d.UUID))
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("get handle of GPU %s: %w", d.UUID, ret)
	}
	processes, err := n.memoryByProcess(handle)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", d.UUID, err)
	}
	utilization := utilizationByProcess(handle)
	var all []gpu.Process
	for _, pid := range slices.Sorted(maps.Keys(processes)) {
		p := gpu.Process{PID: pid, Memory: processes[pid], Utilization: gpu.Unmeasured}
		if utilization != nil {
			p.Utilization = utilization[pid]
		}
		all = append(all, p)
	}
	return all, nil
}

// memoryByProcess asks for processes of every kind. One may be of several kinds and is the same with the same memory then: clients
// of MPS are listed among compute processes too, depending on the driver.
func (n *Node) memoryByProcess(handle nvmllib.Device) (map[int]int64, error) {
	found := map[int]int64{}
	told := false
	for _, kind := range []struct {
		name string
		list func() ([]nvmllib.ProcessInfo, nvmllib.Return)
	}{
		{"Compute", handle.GetComputeRunningProcesses},
		{"Graphics", handle.GetGraphicsRunningProcesses},
		{"MPSCompute", handle.GetMPSComputeRunningProcesses},
	} {
		// The binding ends the process when it calls what the library does not have.
		if n.Library.Extensions().LookupSymbol("nvmlDeviceGet"+kind.name+"RunningProcesses") != nil {
			continue
		}
		list, ret := kind.list()
		if ret == nvmllib.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvmllib.SUCCESS {
			return nil, fmt.Errorf("list processes (%s): %w", kind.name, ret)
		}
		told = true
		for _, p := range list {
			memory := int64(p.UsedGpuMemory) // NVML_VALUE_NOT_AVAILABLE is -1: gpu.Unmeasured
			if known, ok := found[int(p.Pid)]; !ok || memory > known {
				found[int(p.Pid)] = memory
			}
		}
	}
	if !told {
		return nil, gpu.ErrUnmeasured
	}
	return found, nil
}

// utilizationByProcess is the last sample of each process; one without has been idle. nil: there are no samples to be had.
func utilizationByProcess(handle nvmllib.Device) map[int]int {
	samples, ret := handle.GetProcessUtilization(uint64(time.Now().Add(-utilizationWindow).UnixMicro()))
	if ret != nvmllib.SUCCESS && ret != nvmllib.ERROR_NOT_FOUND {
		return nil
	}
	found, taken := map[int]int{}, map[int]uint64{}
	for _, s := range samples {
		const most = 100 // drivers have been seen to give numbers that are none
		if pid := int(s.Pid); s.SmUtil <= most && s.TimeStamp >= taken[pid] {
			found[pid], taken[pid] = int(s.SmUtil), s.TimeStamp
		}
	}
	return found
}
