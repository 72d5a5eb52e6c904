// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

func TestProcesses(t *testing.T) {
	two := []node.Process{{PID: 8, Memory: 1 << 30, Threads: 100}, {PID: 7, Memory: 2 << 30, Threads: 70}}
	fail := func(calls ...string) func(*simulator.Node) error {
		return func(m *simulator.Node) error {
			errs := []error{m.SetProcesses("0", two)}
			for _, call := range calls {
				errs = append(errs, m.Fail("0", call, "ERROR_NOT_SUPPORTED"))
			}
			return errors.Join(errs...)
		}
	}
	const compute, graphics, mps = "GetComputeRunningProcesses", "GetGraphicsRunningProcesses",
		"GetMPSComputeRunningProcesses"
	for _, tt := range []struct {
		name   string
		before func(*simulator.Node) error
		want   string
	}{
		{"none", func(*simulator.Node) error { return nil }, "{[] true} <nil>"},
		{"two", fail(), "{[{7 2147483648 0 0 false} {8 1073741824 100 100 false}] true} <nil>"},
		{"a list is missing", fail(mps), "{[{7 2147483648 0 0 false} {8 1073741824 100 100 false}] true} <nil>"},
		{"no list at all", fail(compute, graphics, mps),
			"{[] false} GPU UUID: the GPU does not say what processes use of it"},
		{"no samples", fail("GetProcessUtilization"),
			"{[{7 2147483648 -1 -1 false} {8 1073741824 -1 -1 false}] false} <nil>"},
		{"a list fails", func(m *simulator.Node) error { return m.Fail("0", compute, "ERROR_UNKNOWN") },
			"{[] false} GPU UUID: list processes (Compute): ERROR_UNKNOWN"},
		{"a GPU that is gone", func(m *simulator.Node) error { return m.Unplug("0") },
			"{[] false} GPU UUID: list processes (Compute): ERROR_GPU_IS_LOST"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, n := machine(t, "t4-x2")
			look, err := n.Discover(t.Context())
			devices := look.Devices
			if err == nil {
				err = tt.before(m)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range devices {
				if d.Index == 0 {
					got, err := n.Processes(t.Context(), d)
					if said := strings.ReplaceAll(fmt.Sprint(got, err), string(d.UUID), "UUID"); said != tt.want {
						t.Errorf("got  %s\nwant %s", said, tt.want)
					}
				}
			}
		})
	}
}

// What the simulation does not do: lists that differ, memory that is not told, samples of several times, numbers that
// are none.
func TestProcessesMerged(t *testing.T) {
	list := func(processes ...nvmllib.ProcessInfo) func() ([]nvmllib.ProcessInfo, nvmllib.Return) {
		return func() ([]nvmllib.ProcessInfo, nvmllib.Return) { return processes, nvmllib.SUCCESS }
	}
	const unknown = ^uint64(0)
	handle := &mock.Device{
		GetComputeRunningProcessesFunc: list(nvmllib.ProcessInfo{Pid: 1, UsedGpuMemory: 10},
			nvmllib.ProcessInfo{Pid: 2, UsedGpuMemory: unknown}),
		GetGraphicsRunningProcessesFunc: list(nvmllib.ProcessInfo{Pid: 1, UsedGpuMemory: unknown},
			nvmllib.ProcessInfo{Pid: 3, UsedGpuMemory: unknown}),
		GetMPSComputeRunningProcessesFunc: list(nvmllib.ProcessInfo{Pid: 2, UsedGpuMemory: 20},
			nvmllib.ProcessInfo{Pid: 4, UsedGpuMemory: 30}),
		GetProcessUtilizationFunc: func(since uint64) ([]nvmllib.ProcessUtilizationSample, nvmllib.Return) {
			now := uint64(time.Now().UnixMicro())
			if age := time.Duration(now-since) * time.Microsecond; age < 50*time.Second {
				t.Errorf("samples of %s, want those of a minute", age)
			}
			return []nvmllib.ProcessUtilizationSample{{Pid: 1, TimeStamp: now, SmUtil: 50},
				{Pid: 1, TimeStamp: now - 1, SmUtil: 60}, {Pid: 2, TimeStamp: now, SmUtil: 4000000000, MemUtil: 3},
				{Pid: 3, TimeStamp: now - 30e6, SmUtil: 70}, {Pid: 9, TimeStamp: now, SmUtil: 90}}, nvmllib.SUCCESS
		},
	}
	var missing string
	n := &nvml.Machine{MachineConfig: nvml.MachineConfig{Library: libraryOf(handle, &missing)}}
	for _, tt := range []struct{ missing, want string }{
		{"", "{[{1 10 50 60 false} {2 20 0 3 false} {3 -1 0 70 false} {4 30 0 0 false} {9 0 0 90 true}] true} <nil>"},
		{"nvmlDeviceGetMPSComputeRunningProcesses",
			"{[{1 10 50 60 false} {2 -1 0 3 false} {3 -1 0 70 false} {9 0 0 90 true}] true} <nil>"},
	} {
		missing = tt.missing
		processes, err := n.Processes(t.Context(), gpu.Device{UUID: "GPU-1"})
		if got := fmt.Sprint(processes, err); got != tt.want {
			t.Errorf("without %q:\ngot  %s\nwant %s", tt.missing, got, tt.want)
		}
	}
}

// Samples of a partition that are missing say nothing about its processes; those of a GPU say that there were none.
func TestProcessesWithoutSamples(t *testing.T) {
	none := func() ([]nvmllib.ProcessInfo, nvmllib.Return) { return nil, nvmllib.SUCCESS }
	for _, tt := range []struct {
		answers nvmllib.Return
		of      *gpu.Partition
		want    bool
	}{
		{nvmllib.ERROR_NOT_FOUND, nil, true},
		{nvmllib.ERROR_NOT_FOUND, &gpu.Partition{}, false},
		{nvmllib.ERROR_NOT_SUPPORTED, nil, false},
		{nvmllib.ERROR_UNKNOWN, nil, false},
	} {
		handle := &mock.Device{GetComputeRunningProcessesFunc: none, GetGraphicsRunningProcessesFunc: none,
			GetMPSComputeRunningProcessesFunc: none,
			GetProcessUtilizationFunc: func(uint64) ([]nvmllib.ProcessUtilizationSample, nvmllib.Return) {
				return nil, tt.answers
			}}
		n := &nvml.Machine{MachineConfig: nvml.MachineConfig{Library: libraryOf(handle, nil)}}
		got, err := n.Processes(t.Context(), gpu.Device{UUID: "GPU-1", Partition: tt.of})
		if err != nil || got.Sampled != tt.want {
			t.Errorf("%v, partition %t: got %+v, %v, want sampled: %t", tt.answers,
				tt.of != nil, got, err, tt.want)
		}
	}
}

// libraryOf returns a library with one GPU, without the missing function.
func libraryOf(handle nvmllib.Device, missing *string) nvmllib.Interface {
	return &mock.Interface{
		InitWithFlagsFunc:         func(uint32) nvmllib.Return { return nvmllib.SUCCESS },
		DeviceGetHandleByUUIDFunc: func(string) (nvmllib.Device, nvmllib.Return) { return handle, nvmllib.SUCCESS },
		ExtensionsFunc: func() nvmllib.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if missing != nil && name == *missing {
					return errors.New("no such function")
				}
				return nil
			}}
		},
	}
}

func TestUsers(t *testing.T) {
	m, n := machine(t, "dgx-h100")
	d := first(t, n)
	none, err := n.Users(t.Context(), d)
	err = errors.Join(err, m.AddProcess(d.Name, "dcgm-exporter", 0))
	users, err2 := n.Users(t.Context(), d)
	if got, want := fmt.Sprint(none, users, errors.Join(err, err2)),
		"[] [process 4194305 (dcgm-exporter)] <nil>"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
