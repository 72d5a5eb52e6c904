// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// All methods in this file wait for a GPU that hangs until ctx ends, and then return ErrNoAnswer. The first five
// implement claims.Hardware, which says what they do.

// none is the result of a call that has none.
type none = struct{}

// Set changes settings and MIG mode of the GPU. Another error: ErrNotConfigurable.
func (m *Machine) Set(ctx context.Context, id gpu.UUID, want gpu.DesiredState) error {
	_, err := call(ctx, m, id, func(s *session) (none, error) { return none{}, s.set(ctx, id, want) })
	if needsReset(err) && undoes(want) {
		return nil
	}
	return err
}

// ComputeMode reads the present mode.
func (m *Machine) ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error) {
	return call(ctx, m, id, func(s *session) (gpu.ComputeMode, error) {
		handle, err := s.handle(id)
		if err != nil {
			return "", err
		}
		return computeMode(handle)
	})
}

// CheckPlacement looks for another partition at the placement. The error names it.
func (m *Machine) CheckPlacement(ctx context.Context, at gpu.Placement) error {
	_, err := call(ctx, m, at.Parent, func(s *session) (none, error) { return none{}, s.checkPlacement(at) })
	return err
}

// CreatePartition creates a GPU instance with one compute instance that has all of it. An error names the partition in
// the way.
func (m *Machine) CreatePartition(ctx context.Context, at gpu.Placement, known gpu.UUID) (gpu.UUID, error) {
	return call(ctx, m, at.Parent, func(s *session) (gpu.UUID, error) { return s.createPartition(ctx, at, known) })
}

// DestroyPartition removes the GPU instance and its compute instances. An error names who uses them.
func (m *Machine) DestroyPartition(ctx context.Context, at gpu.Placement, known gpu.UUID) error {
	_, err := call(ctx, m, at.Parent, func(s *session) (none, error) {
		return none{}, s.destroyPartition(ctx, at, known)
	})
	if needsReset(err) {
		return nil
	}
	return err
}

// Processes returns the processes that use the GPU, by PID. NVIDIA's driver translates PIDs to the caller's namespace
// and leaves out processes outside of it (open kernel module, gpuGetProcWithObject), so only the host's PID namespace
// shows all. Error: gpu.ErrUnmeasured.
func (m *Machine) Processes(ctx context.Context, d gpu.Device) (gpu.Processes, error) {
	return call(ctx, m, d.Physical(), func(s *session) (gpu.Processes, error) { return s.processes(d) })
}

// Users returns the names of the programs that NVML lists on the GPU.
func (m *Machine) Users(ctx context.Context, d gpu.Device) ([]string, error) {
	return call(ctx, m, d.Physical(), func(s *session) ([]string, error) { return s.programs(d) })
}

// Openers returns the names of the programs that keep the GPU from being given to a virtual machine: they use it, or
// have it open. It sees those of the PID namespace of this process, and looks for the latter every 5 s at most.
func (m *Machine) Openers(ctx context.Context, d gpu.Device) ([]string, error) {
	m.known.openers(m.Proc) // this may take long, so it is no part of the call, which would count as hanging
	return call(ctx, m, d.Physical(), func(s *session) ([]string, error) { return s.openersOf(d.UUID) })
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

// Minor returns the minor number that a whole GPU has now.
func (m *Machine) Minor(ctx context.Context, d gpu.Device) (int, error) {
	return call(ctx, m, d.UUID, func(s *session) (int, error) {
		handle, err := s.handle(d.UUID)
		if err != nil {
			return 0, err
		}
		return s.minor(handle, d)
	})
}
