// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

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

// instance is a GPU instance with a compute instance, and the minor number of its GPU.
type instance struct {
	gpu.Instance
	minor int
}

// Instance returns the instances of a partition, and the minor number that its GPU has now.
func (m *Machine) Instance(ctx context.Context, d gpu.Device) (gpu.Instance, int, error) {
	found, err := call(ctx, m, d.Physical(), func(s *session) (instance, error) { return s.instanceOf(d) })
	return found.Instance, found.minor, err
}

// Query calls find with the library of a session. about is the GPU that find asks; empty: none.
func (m *Machine) Query(ctx context.Context, about gpu.UUID,
	find func(nvmllib.Interface) (gpu.Access, error)) (gpu.Access, error) {
	return call(ctx, m, about, func(s *session) (gpu.Access, error) { return find(s.lib) })
}

// Hangs reports whether an abandoned call for the GPU has not returned yet.
func (m *Machine) Hangs(id gpu.UUID) bool { return m.calls.hangs(id) }
