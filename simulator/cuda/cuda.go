// SPDX-License-Identifier: Apache-2.0

// Package cuda simulates how a CUDA program starts on simulated GPUs: it connects to the MPS daemon, or opens the GPU
// if there is none, and allocates memory.
package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// Error is an error of CUDA's driver API.
type Error struct {
	Name   string // CUDA_ERROR_OUT_OF_MEMORY
	Detail string
}

// Error is the name and the reason.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Name
	}
	return e.Name + ": " + e.Detail
}

// numbers are the values of the errors in cuda.h.
var numbers = map[string]int{
	"CUDA_ERROR_INVALID_VALUE": 1, outOfMemory: 2, deviceUnavailable: 46, noDevice: 100, invalidDevice: 101,
}

const (
	outOfMemory       = "CUDA_ERROR_OUT_OF_MEMORY"
	deviceUnavailable = "CUDA_ERROR_DEVICE_UNAVAILABLE"
	noDevice          = "CUDA_ERROR_NO_DEVICE"
	invalidDevice     = "CUDA_ERROR_INVALID_DEVICE"
	rpcFailure        = "CUDA_ERROR_MPS_RPC_FAILURE"
)

// Number is the value in cuda.h if it fits an exit code, otherwise 255.
func (e *Error) Number() int {
	if n, ok := numbers[e.Name]; ok {
		return n
	}
	return 255
}

// Program is a CUDA program.
type Program struct {
	Env       func(string) string
	Reachable func() ([]node.Device, error) // GPUs and partitions whose device nodes it can open
}

// Memory is an allocation.
type Memory struct {
	UUID    string
	Bytes   uint64
	Limit   uint64  // in bytes; 0: the whole GPU; for a partition its memory
	Threads float64 // limit in percent of the multiprocessors

	client *mps.Client // nil without MPS
}

// Allocate allocates memory on a device, numbered as the program sees them. It blocks while another user's programs
// have the GPU. Error: *Error.
func (p Program) Allocate(ctx context.Context, device int, bytes uint64) (*Memory, error) {
	devices, err := p.Reachable()
	if err != nil || len(devices) == 0 {
		return nil, &Error{noDevice, fmt.Sprint("no GPU can be opened here: ", err)}
	}
	pipe := p.Env(mps.PipeVariable)
	if pipe == "" {
		pipe = mps.DefaultPipe
	}
	client, err := mps.Connect(ctx, pipe, p.Env(mps.ThreadsVariable), p.Env(mps.MemoryVariable))
	if errors.Is(err, mps.ErrNoDaemon) {
		return direct(devices, device, bytes)
	}
	if err != nil {
		return nil, &Error{rpcFailure, err.Error()}
	}
	memory, err := shared(client, devices, device, bytes)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return memory, nil
}

// direct allocates without MPS. A GPU in exclusive process mode is reserved for the MPS server.
func direct(devices []node.Device, device int, bytes uint64) (*Memory, error) {
	if device < 0 || device >= len(devices) {
		return nil, &Error{invalidDevice, fmt.Sprintf("device %d: there are %d", device, len(devices))}
	}
	d := devices[device]
	if d.Health().Fabric == node.NotStarted {
		return nil, &Error{"CUDA_ERROR_SYSTEM_NOT_READY", "the GPU is not registered with the NVLink fabric"}
	}
	if mode, _ := d.ComputeMode().Get(); mode != 0 && d.Partition == nil {
		return nil, &Error{deviceUnavailable, fmt.Sprintf("the compute mode of the GPU is %s", mode)}
	}
	m, e := d.Memory().Get()
	if e != "" {
		return nil, &Error{"CUDA_ERROR_UNKNOWN", string(e)}
	}
	if free := m.Total - m.Reserved - m.Used; bytes > free {
		return nil, &Error{outOfMemory, fmt.Sprintf("the %s has %dMiB left", kindOf(d), free>>20)}
	}
	return &Memory{UUID: d.ID(), Bytes: bytes, Limit: limitOf(d), Threads: 100}, nil
}

func kindOf(d node.Device) string {
	if d.Partition != nil {
		return "partition"
	}
	return "GPU"
}

// limitOf returns the memory limit on the device in bytes, 0 for all of a GPU.
func limitOf(d node.Device) uint64 {
	if d.Partition == nil {
		return 0
	}
	return d.Partition.Memory().Total
}

// shared allocates through the daemon.
func shared(client *mps.Client, here []node.Device, device int, bytes uint64) (*Memory, error) {
	if e := client.Hello.Error; e != "" {
		return nil, &Error{e, client.Hello.Detail}
	}
	devices := client.Hello.Devices
	if device < 0 || device >= len(devices) {
		return nil, &Error{invalidDevice, fmt.Sprintf("device %d: the daemon has %d", device, len(devices))}
	}
	at := slices.IndexFunc(here, func(d node.Device) bool { return d.ID() == devices[device] })
	if at < 0 {
		return nil, &Error{noDevice, fmt.Sprintf("device %d of the daemon is %s, which cannot be opened here", device,
			devices[device])}
	}
	a, err := client.Allocate(device, bytes)
	switch {
	case err != nil:
		return nil, &Error{rpcFailure, err.Error()}
	case a.Error != "" && a.Limit > 0:
		return nil, &Error{a.Error, fmt.Sprintf("%s: limit %dMiB, held %dMiB", a.Detail, a.Limit>>20, a.Held>>20)}
	case a.Error != "":
		return nil, &Error{a.Error, a.Detail}
	}
	if a.Limit == 0 {
		a.Limit = limitOf(here[at])
	}
	return &Memory{UUID: devices[device], Bytes: bytes, Limit: a.Limit, Threads: a.Threads, client: client}, nil
}

// Hold blocks until the context ends, or returns an *Error when the daemon ends and its allocations are lost.
func (m *Memory) Hold(ctx context.Context) error {
	if m.client == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = m.client.Close() })
	defer stop()
	m.client.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return &Error{rpcFailure, "the MPS daemon has gone"}
}

// Free frees the memory.
func (m *Memory) Free() {
	if m.client != nil {
		_ = m.client.Close()
	}
}
