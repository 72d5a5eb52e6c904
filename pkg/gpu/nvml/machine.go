// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// All methods in this file wait for a GPU that hangs until ctx ends, and then return ErrNoAnswer.

// Set changes settings and MIG mode of the GPU. It is no error if the GPU is gone and want only restores defaults.
// Errors: ErrNotConfigurable, gpu.ErrBusy, gpu.ErrForeignPartition, gpu.ErrMIGModeFixed.
func (m *Machine) Set(ctx context.Context, id gpu.UUID, want gpu.State) error {
	return m.do(ctx, id, func(s *session) error { return s.set(ctx, id, want) })
}

// CheckPlacement returns gpu.ErrForeignPartition if another partition overlaps the placement. The error names it.
func (m *Machine) CheckPlacement(ctx context.Context, at gpu.Placement) error {
	return m.do(ctx, at.Parent, func(s *session) error { return s.checkPlacement(at) })
}

// CreatePartition creates the partition at the placement, and returns its UUID: a GPU instance with one compute
// instance that has all of it. If known is empty, an existing partition is adopted; otherwise it must have that UUID.
// Errors: gpu.ErrForeignPartition, which names the partition in the way; gpu.ErrPartitionRemoved.
func (m *Machine) CreatePartition(ctx context.Context, at gpu.Placement, known gpu.UUID) (gpu.UUID, error) {
	return call(ctx, m, at.Parent, func(s *session) (gpu.UUID, error) { return s.createPartition(ctx, at, known) })
}

// DestroyPartition removes the partition at the placement, also an incomplete one. A partition with another UUID than
// known is left alone. A missing GPU, or one without MIG, has no partitions. Error: gpu.ErrBusy, which names the user.
func (m *Machine) DestroyPartition(ctx context.Context, at gpu.Placement, known gpu.UUID) error {
	return m.do(ctx, at.Parent, func(s *session) error { return s.destroyPartition(ctx, at, known) })
}

// DriverAccess returns what a container needs to use any GPU: control device nodes, libraries, programs and hooks.
func (m *Machine) DriverAccess(ctx context.Context) (gpu.Access, error) {
	return m.answers.get(subject{}, m.Driver, func() (gpu.Access, error) {
		return call(ctx, m, driver, (*session).findDriver)
	})
}

// Access returns what a container needs to use this device, besides DriverAccess.
func (m *Machine) Access(ctx context.Context, d gpu.Device) (gpu.Access, error) {
	find := func() (gpu.Access, error) {
		return call(ctx, m, d.Physical(), func(s *session) (gpu.Access, error) { return s.access(d) })
	}
	if d.Type != gpu.TypeGPU || m.calls.hangs(d.UUID) {
		return find()
	}
	return m.answers.get(subject{d.UUID, d.Minor}, m.Driver, find)
}

// Processes returns the processes that use the GPU, by PID. NVIDIA's driver translates PIDs to the caller's namespace
// and leaves out processes outside of it (open kernel module, gpuGetProcWithObject), so only the host's PID namespace
// shows all. Error: gpu.ErrUnmeasured.
func (m *Machine) Processes(ctx context.Context, d gpu.Device) ([]gpu.Process, error) {
	return call(ctx, m, d.Physical(), func(s *session) ([]gpu.Process, error) { return s.processes(d) })
}

// Users returns the names of the programs that NVML lists on the GPU.
func (m *Machine) Users(ctx context.Context, d gpu.Device) ([]string, error) {
	return call(ctx, m, d.Physical(), func(s *session) ([]string, error) { return s.programs(d) })
}
