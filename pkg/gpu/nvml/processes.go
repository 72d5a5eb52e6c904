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

// utilizationWindow is the maximum age of utilization samples. The driver takes one about every second.
const utilizationWindow = 2 * time.Second

// processes implements Machine.Processes.
func (s *session) processes(d gpu.Device) ([]gpu.Process, error) {
	handle, err := s.handle(d.UUID)
	if err != nil {
		return nil, err
	}
	processes, err := s.memoryByProcess(handle)
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

// memoryByProcess returns the memory of processes of every kind. A process may be listed under several kinds, with the
// same memory: some drivers list MPS clients among compute processes, too.
func (s *session) memoryByProcess(handle nvmllib.Device) (map[int]int64, error) {
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
		if !s.has("nvmlDeviceGet" + kind.name + "RunningProcesses") {
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

// utilizationByProcess returns the last sample of each process; one without a sample has been idle. nil: samples are
// not supported.
func utilizationByProcess(handle nvmllib.Device) map[int]int {
	samples, ret := handle.GetProcessUtilization(uint64(time.Now().Add(-utilizationWindow).UnixMicro()))
	if ret != nvmllib.SUCCESS && ret != nvmllib.ERROR_NOT_FOUND {
		return nil
	}
	found, taken := map[int]int{}, map[int]uint64{}
	for _, s := range samples {
		const most = 100 // some drivers return invalid numbers
		if pid := int(s.Pid); s.SmUtil <= most && s.TimeStamp >= taken[pid] {
			found[pid], taken[pid] = int(s.SmUtil), s.TimeStamp
		}
	}
	return found
}
