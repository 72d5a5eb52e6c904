// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// parent is the GPU of a placement, and what of it is being asked for.
type parent struct {
	nvmllib.Device
	profile  profile
	profiles []profile
}

// parent finds the GPU and the profile of a placement.
func (n *Node) parent(at gpu.Placement) (parent, error) {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(at.Parent))
	if ret != nvmllib.SUCCESS {
		return parent{}, fmt.Errorf("get handle of GPU %s: %w", at.Parent, ret)
	}
	profiles, err := n.profiles(handle)
	if err != nil {
		return parent{}, fmt.Errorf("GPU %s: %w", at.Parent, err)
	}
	i := slices.IndexFunc(profiles, func(p profile) bool { return p.Name == at.Profile })
	if i < 0 {
		return parent{}, fmt.Errorf("GPU %s has no MIG profile %s", at.Parent, at.Profile)
	}
	return parent{handle, profiles[i], profiles}, nil
}

// at is the GPU instance that sits at the placement; ok is false when there is none.
func (p parent) at(at gpu.Placement) (found gpuInstance, ok bool, err error) {
	all, err := gpuInstances(p.Device, p.profile)
	i := slices.IndexFunc(all, func(i gpuInstance) bool { return int(i.info.Placement.Start) == at.Start })
	if i < 0 {
		return gpuInstance{}, false, err
	}
	return all[i], true, nil
}

// Vacant says whether a partition could be made at the placement, as far as those go that are there. Error: gpu.ErrForeign, with the
// one that is in the way.
func (n *Node) Vacant(at gpu.Placement) error {
	p, err := n.parent(at)
	if err != nil {
		return err
	}
	return n.inTheWay(p, at, nil)
}

// inTheWay is an error about a partition that overlaps the placement, otherwise what is given.
func (n *Node) inTheWay(p parent, at gpu.Placement, otherwise error) error {
	there, err := n.instances(p.Device, at.Parent, p.profiles)
	if err != nil {
		return err
	}
	for _, other := range there {
		if other.Overlaps(at) {
			return fmt.Errorf("%s at %d (GPU instance %d, %s): remove it (nvidia-smi mig -dci, -dgi), or offer the GPU with partitions: static: %w",
				other.Profile, other.Start, other.GPUInstance, cmp.Or(string(other.UUID), "no compute instance"), gpu.ErrForeign)
		}
	}
	return otherwise
}

// Divide puts the GPU into MIG mode. Errors: gpu.ErrBusy, with who keeps the mode from changing; gpu.ErrFixed.
func (n *Node) Divide(_ context.Context, id gpu.UUID) error {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(id))
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get handle: %w", ret)
	}
	return n.setMIGMode(handle, nvmllib.DEVICE_MIG_ENABLE)
}

// Create makes the partition at the placement: a GPU instance with one compute instance that has all of it. Where nothing is known of how
// it was, what is there already is not made again; otherwise it has to be that one. Calls of NVML cannot be called off: ctx is looked at
// between them. Errors: gpu.ErrForeign, with the partition that is in the way; gpu.ErrRemoved.
func (n *Node) Create(ctx context.Context, at gpu.Placement, was gpu.UUID) (gpu.UUID, error) {
	p, err := n.parent(at)
	if err != nil {
		return "", err
	}
	instance, ok, err := p.at(at)
	if err == nil {
		err = ctx.Err()
	}
	switch {
	case err != nil:
		return "", err
	case !ok && was != "":
		return "", n.inTheWay(p, at, fmt.Errorf("%s: %w", was, gpu.ErrRemoved))
	case !ok:
		handle, ret := p.CreateGpuInstanceWithPlacement(&p.profile.info, &nvmllib.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
		if ret != nvmllib.SUCCESS {
			return "", n.inTheWay(p, at, fmt.Errorf("create GPU instance: %w", ret))
		}
		instance.handle = handle
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return createCompute(instance.handle, p.profile, was)
}

// createCompute makes the compute instance that has all of the GPU instance, unless it is there.
func createCompute(in nvmllib.GpuInstance, p profile, was gpu.UUID) (gpu.UUID, error) {
	there, err := computeInstances(in)
	if err != nil {
		return "", err
	}
	for _, c := range there {
		switch {
		case was != "" && c.uuid != was:
			return "", fmt.Errorf("there is %s, and it was %s: somebody else has made it anew: %w", c.uuid, was, gpu.ErrForeign)
		case int(c.profile.SliceCount) == p.Slices:
			return c.uuid, nil
		}
		return "", fmt.Errorf("compute instance %d (%s) has a part of it: %w", c.id, c.uuid, gpu.ErrForeign)
	}
	if was != "" {
		return "", fmt.Errorf("%s: %w", was, gpu.ErrRemoved)
	}
	info, err := wholeCompute(in, p)
	if err != nil {
		return "", err
	}
	handle, ret := in.CreateComputeInstance(&info)
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("create compute instance: %w", ret)
	}
	c, err := readComputeInstance(handle, info)
	return c.uuid, err
}

// wholeCompute is the profile of the compute instance that has all slices of the GPU instance. Which number it goes by differs between
// products, so it is looked for.
func wholeCompute(in nvmllib.GpuInstance, p profile) (nvmllib.ComputeInstanceProfileInfo, error) {
	for i := range nvmllib.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := in.GetComputeInstanceProfileInfo(i, nvmllib.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvmllib.SUCCESS && int(info.SliceCount) == p.Slices {
			return info, nil
		}
	}
	return nvmllib.ComputeInstanceProfileInfo{}, fmt.Errorf("no compute instance has all %d slices of %s", p.Slices, p.Name)
}

// Destroy removes the partition at the placement, whatever of it is there, and switches the MIG mode off after the last one where that
// takes no reset; somebody who uses the GPU then keeps it on. One with another UUID than it had is left alone. A GPU that is gone, or
// knows no MIG, has no partitions. Error: gpu.ErrBusy, with who uses the partition.
func (n *Node) Destroy(ctx context.Context, at gpu.Placement, was gpu.UUID) error {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(at.Parent))
	if gone(ret) {
		return nil
	}
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get handle of GPU %s: %w", at.Parent, ret)
	}
	current, _, ret := handle.GetMigMode()
	switch {
	case gone(ret) || ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.SUCCESS && current != nvmllib.DEVICE_MIG_ENABLE:
		return nil
	case ret != nvmllib.SUCCESS:
		return fmt.Errorf("get MIG mode of GPU %s: %w", at.Parent, ret)
	}
	profiles, err := n.profiles(handle)
	if err != nil {
		return err
	}
	for _, p := range profiles { // whatever the driver of today calls the profile
		p := parent{handle, p, profiles}
		instance, ok, err := p.at(at)
		if err != nil {
			return err
		}
		if !ok || int(instance.info.Placement.Size) != at.Size {
			continue
		}
		if err := n.destroy(ctx, p, instance, was); err != nil {
			return err
		}
	}
	return n.endMIG(ctx, handle, at.Parent, profiles)
}

func (n *Node) destroy(ctx context.Context, p parent, instance gpuInstance, was gpu.UUID) error {
	computes, err := computeInstances(instance.handle)
	if err != nil {
		return err
	}
	if was != "" && slices.ContainsFunc(computes, func(c computeInstance) bool { return c.uuid != was }) {
		return nil // somebody else has made it since
	}
	for _, c := range computes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ret := c.handle.Destroy(); ret != nvmllib.SUCCESS && ret != nvmllib.ERROR_NOT_FOUND {
			return n.refused(p.Device, fmt.Sprintf("remove compute instance %d (%s)", c.id, c.uuid), ret)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if ret := instance.handle.Destroy(); ret != nvmllib.SUCCESS && ret != nvmllib.ERROR_NOT_FOUND {
		return n.refused(p.Device, fmt.Sprintf("remove GPU instance %d", instance.info.Id), ret)
	}
	return nil
}

// endMIG switches the MIG mode off when there is no partition any more and no reset is needed. It stays on while others use the GPU.
func (n *Node) endMIG(ctx context.Context, handle nvmllib.Device, id gpu.UUID, profiles []profile) error {
	left, err := n.instances(handle, id, profiles)
	if err != nil || len(left) > 0 {
		return err
	}
	if major, _, ret := handle.GetCudaComputeCapability(); ret != nvmllib.SUCCESS || major < switchableSince {
		return nil
	}
	if err := n.setMIGMode(handle, nvmllib.DEVICE_MIG_DISABLE); err != nil {
		klog.FromContext(ctx).Info("GPU stays in MIG mode after its last partition", "uuid", id, "err", err)
	}
	return nil
}

// Merge makes the GPU usable as a whole: it switches the MIG mode off. Errors: gpu.ErrBusy, gpu.ErrForeign, with who is in the way; gpu.ErrFixed.
func (n *Node) Merge(_ context.Context, id gpu.UUID) error {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(id))
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get handle: %w", ret)
	}
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.SUCCESS && current != nvmllib.DEVICE_MIG_ENABLE {
		return nil
	}
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get MIG mode: %w", ret)
	}
	profiles, err := n.profiles(handle)
	if err != nil {
		return err
	}
	there, err := n.instances(handle, id, profiles)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("GPU instance %d (%s): %w", there[0].GPUInstance, cmp.Or(string(there[0].UUID), "no compute instance"), gpu.ErrForeign)
	}
	return n.setMIGMode(handle, nvmllib.DEVICE_MIG_DISABLE)
}

// modeNames are the MIG modes, as people write them.
var modeNames = map[int]string{nvmllib.DEVICE_MIG_DISABLE: "off", nvmllib.DEVICE_MIG_ENABLE: "on"}

// setMIGMode switches the MIG mode, unless it is so already. A GPU that takes a reset for it is left alone. Errors: gpu.ErrBusy,
// gpu.ErrFixed.
func (n *Node) setMIGMode(handle nvmllib.Device, mode int) error {
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.SUCCESS && current == mode {
		return nil
	}
	what := "switch MIG mode " + modeNames[mode]
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("%s: %w", what, ret)
	}
	if major, _, ret := handle.GetCudaComputeCapability(); ret != nvmllib.SUCCESS || major < switchableSince {
		return fmt.Errorf("%s: this takes a reset of the GPU, which is the administrator's to do (nvidia-smi -mig, nvidia-smi --gpu-reset): %w", what, gpu.ErrFixed)
	}
	n.switching.RLock() // Discover has to wait: the GPU may be away for a moment
	defer n.switching.RUnlock()
	activation, ret := handle.SetMigMode(mode)
	if ret == nvmllib.SUCCESS {
		ret = activation
	}
	if ret == nvmllib.SUCCESS {
		return nil
	}
	_, _ = handle.SetMigMode(current) // or the next reset would make it so, when nobody wants it any more
	switch ret {
	case nvmllib.ERROR_RESET_REQUIRED, nvmllib.ERROR_NOT_SUPPORTED, nvmllib.ERROR_NO_PERMISSION: // in a virtual machine, for example
		return fmt.Errorf("%s: %w: offer the GPU with partitions: none or static: %w", what, ret, gpu.ErrFixed)
	}
	return n.refused(handle, what, ret)
}

// refused is the error of a call that NVML refused. When somebody uses the GPU it names who. Error: gpu.ErrBusy.
func (n *Node) refused(handle nvmllib.Device, what string, ret nvmllib.Return) error {
	if ret != nvmllib.ERROR_IN_USE {
		return fmt.Errorf("%s: %w", what, ret)
	}
	names := n.clients(handle)
	if len(names) == 0 {
		names = []string{"nobody that can be seen from here (a monitoring program, perhaps)"}
	}
	return fmt.Errorf("%s: used by %s: %w", what, strings.Join(names, ", "), gpu.ErrBusy)
}
