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

const (
	// utilizationWindow is the maximum age of the samples that are the current utilization. The driver takes one about
	// every second.
	utilizationWindow = 2 * time.Second
	// peakWindow is the maximum age of samples that are read.
	peakWindow = time.Minute
)

// processes implements Machine.Processes. Processes that have ended come last.
func (s *session) processes(d gpu.Device) (gpu.Processes, error) {
	handle, err := s.handle(d.UUID)
	if err != nil {
		return gpu.Processes{}, err
	}
	processes, err := s.memoryByProcess(handle)
	if err != nil {
		return gpu.Processes{}, fmt.Errorf("GPU %s: %w", d.UUID, err)
	}
	utilization := utilizationByProcess(handle, d.Partition != nil)
	var all []gpu.Process
	for _, pid := range slices.Sorted(maps.Keys(processes)) {
		p := gpu.Process{PID: pid, Memory: processes[pid], Utilization: gpu.Unmeasured, Peak: gpu.Unmeasured}
		if utilization != nil {
			p.Utilization, p.Peak = utilization[pid].current, utilization[pid].peak
		}
		all = append(all, p)
	}
	for _, pid := range slices.Sorted(maps.Keys(utilization)) {
		if _, listed := processes[pid]; !listed && utilization[pid].peak > 0 {
			all = append(all, gpu.Process{PID: pid, Peak: utilization[pid].peak, Ended: true})
		}
	}
	return gpu.Processes{All: all, Sampled: utilization != nil}, nil
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

// utilization is that of a process, in percent.
type utilization struct {
	current, peak int
	at            uint64 // of the sample that is the current one
}

// utilizationByProcess returns the utilization of processes, by their samples; one without a sample has been idle. nil:
// there are no samples, as of partitions, where their absence says nothing.
func utilizationByProcess(handle nvmllib.Device, partition bool) map[int]utilization {
	now := time.Now()
	samples, ret := handle.GetProcessUtilization(uint64(now.Add(-peakWindow).UnixMicro()))
	if none := ret == nvmllib.ERROR_NOT_FOUND && !partition; ret != nvmllib.SUCCESS && !none {
		return nil
	}
	found, current := map[int]utilization{}, uint64(now.Add(-utilizationWindow).UnixMicro())
	for _, s := range samples {
		const most = 100 // some drivers return invalid numbers
		u := found[int(s.Pid)]
		if s.SmUtil <= most && s.TimeStamp >= max(u.at, current) {
			u.current, u.at = int(s.SmUtil), s.TimeStamp
		}
		for _, percent := range []uint32{s.SmUtil, s.MemUtil, s.EncUtil, s.DecUtil} {
			if percent <= most {
				u.peak = max(u.peak, int(percent))
			}
		}
		found[int(s.Pid)] = u
	}
	return found
}
