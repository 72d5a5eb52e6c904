// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// parent is the GPU of a placement, with the placement's profile.
type parent struct {
	nvmllib.Device
	profile  profile
	profiles []profile
}

// parent finds the GPU and the profile of a placement.
func (s *session) parent(at gpu.Placement) (parent, error) {
	handle, err := s.handle(at.Parent)
	if err != nil {
		return parent{}, err
	}
	profiles, err := s.profiles(handle)
	i := slices.IndexFunc(profiles, func(p profile) bool { return p.unusable == nil && p.Name == at.Profile })
	if i < 0 && err != nil {
		return parent{}, fmt.Errorf("GPU %s: %w", at.Parent, err)
	}
	if i < 0 {
		return parent{}, fmt.Errorf("GPU %s has no MIG profile %s", at.Parent, at.Profile)
	}
	return parent{handle, profiles[i], profiles}, nil
}

// instanceAt returns the GPU instance at the placement; ok is false if there is none.
func (p parent) instanceAt(at gpu.Placement) (found gpuInstance, ok bool, err error) {
	all, err := gpuInstances(p.Device, p.profile)
	i := slices.IndexFunc(all, func(i gpuInstance) bool { return int(i.info.Placement.Start) == at.Start })
	if i < 0 { // it may be the one that could not be read
		return gpuInstance{}, false, err
	}
	return all[i], true, nil
}

// checkPlacement implements Machine.CheckPlacement.
func (s *session) checkPlacement(at gpu.Placement) error {
	p, err := s.parent(at)
	if err != nil {
		return err
	}
	return s.inTheWay(p, at, nil)
}

// inTheWay returns an error about a partition that overlaps the placement, or otherwise if there is none.
func (s *session) inTheWay(p parent, at gpu.Placement, otherwise error) error {
	// NVML refuses what overlaps a partition that cannot be read.
	there, _ := s.instances(p.Device, at.Parent, p.profiles) //nolint:errcheck // see above
	for _, other := range there {
		if other.Overlaps(at) {
			return fmt.Errorf("%s at %d (GPU instance %d, %s): remove it (nvidia-smi mig -dci, -dgi), or offer the "+
				"GPU with partitions: static: %w",
				cmp.Or(other.Profile, "a partition"), other.Start, other.GPUInstance,
				cmp.Or(string(other.UUID), "no compute instance"), gpu.ErrForeignPartition)
		}
	}
	return otherwise
}

// createPartition implements Machine.CreatePartition.
func (s *session) createPartition(ctx context.Context, at gpu.Placement, known gpu.UUID) (gpu.UUID, error) {
	p, err := s.parent(at)
	if err != nil {
		return "", err
	}
	instance, ok, err := p.instanceAt(at)
	if err == nil {
		err = ctx.Err()
	}
	switch {
	case err != nil:
		return "", err
	case !ok && known != "":
		return "", s.inTheWay(p, at, fmt.Errorf("%s: %w", known, gpu.ErrPartitionRemoved))
	case !ok:
		err := change(ctx, "create_gpu_instance", func() (ret nvmllib.Return) {
			instance.handle, ret = p.CreateGpuInstanceWithPlacement(&p.profile.info,
				&nvmllib.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
			return ret
		})
		var refused nvmllib.Return
		if errors.As(err, &refused) {
			return "", s.inTheWay(p, at, fmt.Errorf("create GPU instance: %w", err))
		}
		if err != nil {
			return "", err
		}
	}
	return createCompute(ctx, instance.handle, p.profile, known)
}

// createCompute creates the compute instance that has all of the GPU instance, unless it exists.
func createCompute(ctx context.Context, in nvmllib.GpuInstance, p profile, known gpu.UUID) (gpu.UUID, error) {
	there, err := computeInstances(in)
	if err != nil {
		return "", err
	}
	if len(there) > 0 {
		c := there[0]
		switch {
		case known != "" && c.uuid != known:
			return "", fmt.Errorf("there is %s, and it was %s: somebody else has made it anew: %w", c.uuid, known,
				gpu.ErrForeignPartition)
		case int(c.profile.SliceCount) == p.Slices:
			return c.uuid, nil
		}
		return "", fmt.Errorf("compute instance %d (%s) has a part of it: %w", c.id, c.uuid, gpu.ErrForeignPartition)
	}
	if known != "" {
		return "", fmt.Errorf("%s: %w", known, gpu.ErrPartitionRemoved)
	}
	info, err := wholeCompute(in, p)
	if err != nil {
		return "", err
	}
	var handle nvmllib.ComputeInstance
	if err := change(ctx, "create_compute_instance", func() (ret nvmllib.Return) {
		handle, ret = in.CreateComputeInstance(&info)
		return ret
	}); err != nil {
		return "", fmt.Errorf("create compute instance: %w", err)
	}
	c, err := readComputeInstance(handle, info)
	return c.uuid, err
}

// wholeCompute returns the profile of the compute instance that has all slices of the GPU instance. It searches all,
// because the number differs between products.
func wholeCompute(in nvmllib.GpuInstance, p profile) (nvmllib.ComputeInstanceProfileInfo, error) {
	for i := range nvmllib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := in.GetComputeInstanceProfileInfo(i, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvmllib.SUCCESS && int(info.SliceCount) == p.Slices {
			return info, nil
		}
	}
	return nvmllib.ComputeInstanceProfileInfo{}, fmt.Errorf("no compute instance has all %d slices of %s", p.Slices,
		p.Name)
}

// destroyPartition implements Machine.DestroyPartition.
func (s *session) destroyPartition(ctx context.Context, at gpu.Placement, known gpu.UUID) error {
	handle, err := s.handle(at.Parent)
	if err != nil {
		return err
	}
	current, _, ret := handle.GetMigMode()
	switch {
	case ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.SUCCESS &&
		current != nvmllib.DEVICE_MIG_ENABLE:
		return nil
	case ret != nvmllib.SUCCESS:
		return fmt.Errorf("get MIG mode of GPU %s: %w", at.Parent, ret)
	}
	profiles, err := s.profiles(handle)
	errs := []error{err}
	for _, candidate := range profiles { // all, because another driver may name the profile differently
		on := parent{handle, candidate, profiles}
		instance, ok, err := on.instanceAt(at)
		if ok && int(instance.info.Placement.Size) == at.Size {
			return s.destroy(ctx, on, instance, known)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...) // the partition may be one that cannot be read
}

func (s *session) destroy(ctx context.Context, p parent, instance gpuInstance, known gpu.UUID) error {
	computes, err := computeInstances(instance.handle)
	if err != nil {
		return err
	}
	if known != "" && slices.ContainsFunc(computes, func(c computeInstance) bool { return c.uuid != known }) {
		return nil // somebody else has created it since
	}
	for _, c := range computes {
		if err := change(ctx, "destroy_compute_instance", c.handle.Destroy); err != nil &&
			!errors.Is(err, nvmllib.ERROR_NOT_FOUND) {
			return s.refused(p.Device, fmt.Sprintf("remove compute instance %d (%s)", c.id, c.uuid), err)
		}
	}
	if err := change(ctx, "destroy_gpu_instance", instance.handle.Destroy); err != nil &&
		!errors.Is(err, nvmllib.ERROR_NOT_FOUND) {
		return s.refused(p.Device, fmt.Sprintf("remove GPU instance %d", instance.info.Id), err)
	}
	return nil
}

// change runs an NVML call that changes a GPU, as a step. The call cannot be interrupted, so ctx is checked before.
func change(ctx context.Context, step string, call func() nvmllib.Return) error {
	return steps.Do(ctx, step, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ret := call(); ret != nvmllib.SUCCESS {
			return ret
		}
		return nil
	})
}

// instanceOf implements Machine.Instance.
func (s *session) instanceOf(d gpu.Device) (instance, error) {
	found := instance{minor: d.Minor}
	handle, err := s.handle(d.UUID)
	if err != nil {
		return found, fmt.Errorf("find partition %s: %w", d.Name, err)
	}
	var ret, ret2 nvmllib.Return
	found.GPU, ret = handle.GetGpuInstanceId()
	found.Compute, ret2 = handle.GetComputeInstanceId()
	if ret != nvmllib.SUCCESS || ret2 != nvmllib.SUCCESS {
		return found, fmt.Errorf("find the instances of partition %s (%s): %w", d.Name, d.UUID, errors.Join(ret, ret2))
	}
	if parent, err := s.handle(d.Partition.Parent); err == nil {
		if minor, ret := parent.GetMinorNumber(); ret == nvmllib.SUCCESS {
			found.minor = minor
		}
	}
	return found, nil
}
