// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// setMIG sets the MIG mode of the GPU. Errors: gpu.ErrBusy and gpu.ErrForeignPartition, which name the obstacle;
// gpu.ErrMIGModeFixed.
func (s *session) setMIG(ctx context.Context, handle nvmllib.Device, id gpu.UUID, mode gpu.MIGMode) error {
	switch mode {
	case gpu.MIGOn:
		return steps.Do(ctx, steps.EnableMIG, func(context.Context) error {
			return s.setMIGMode(handle, id, nvmllib.DEVICE_MIG_ENABLE)
		})
	case gpu.MIGOff:
		return steps.Do(ctx, steps.DisableMIG, func(context.Context) error { return s.disableMIG(handle, id) })
	case gpu.MIGOffIfUnused:
		err := steps.Do(ctx, steps.DisableMIG, func(context.Context) error { return s.disableMIG(handle, id) })
		if errors.Is(err, gpu.ErrBusy) || errors.Is(err, gpu.ErrForeignPartition) {
			klog.FromContext(ctx).Info("GPU stays in MIG mode after its last partition", "uuid", id, "err", err)
			return nil
		}
		if errors.Is(err, gpu.ErrMIGModeFixed) {
			return nil
		}
		return err
	}
	return nil
}

// disableMIG disables the MIG mode. Existing partitions belong to others: gpu.ErrForeignPartition.
func (s *session) disableMIG(handle nvmllib.Device, id gpu.UUID) error {
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.ERROR_NOT_SUPPORTED || ret == nvmllib.SUCCESS && current != nvmllib.DEVICE_MIG_ENABLE {
		return nil
	}
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get MIG mode: %w", ret)
	}
	profiles, err := s.profiles(handle)
	existing, unlisted := s.instances(handle, id, profiles)
	if len(existing) > 0 {
		return fmt.Errorf("GPU instance %d (%s): %w", existing[0].GPUInstance,
			cmp.Or(string(existing[0].UUID), "no compute instance"), gpu.ErrForeignPartition)
	}
	if err = errors.Join(err, unlisted); err != nil {
		return fmt.Errorf("there may be partitions that cannot be read: %w: %w", err, gpu.ErrForeignPartition)
	}
	return s.setMIGMode(handle, id, nvmllib.DEVICE_MIG_DISABLE)
}

// modeNames are the MIG modes, as people write them.
var modeNames = map[int]string{nvmllib.DEVICE_MIG_DISABLE: "off", nvmllib.DEVICE_MIG_ENABLE: "on"}

// setMIGMode switches the MIG mode if needed. A GPU that needs a reset for it is left alone. Errors: gpu.ErrBusy,
// gpu.ErrMIGModeFixed.
func (s *session) setMIGMode(handle nvmllib.Device, id gpu.UUID, mode int) error {
	current, _, ret := handle.GetMigMode()
	if ret == nvmllib.SUCCESS && current == mode {
		return nil
	}
	what := "switch MIG mode " + modeNames[mode]
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("%s: %w", what, ret)
	}
	major, _, ret := handle.GetCudaComputeCapability()
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("%s: get compute capability: %w", what, ret)
	}
	if major < switchableSince {
		return fmt.Errorf("%s: this takes a reset of the GPU, which is the administrator's to do "+
			"while no program has it open (nvidia-smi -mig, nvidia-smi --gpu-reset): %w", what, gpu.ErrMIGModeFixed)
	}
	defer s.known.startSwitch(id)()
	activation, ret := handle.SetMigMode(mode)
	if ret == nvmllib.SUCCESS {
		ret = activation
	}
	if ret == nvmllib.SUCCESS { // "may unbind or reset the device": its events and its handle may have ended
		s.handles.Delete(id)
		s.known.changed()
		return nil
	}
	_, _ = handle.SetMigMode(current) // otherwise the next reset would still apply the mode
	switch ret {
	// in a virtual machine, for example
	case nvmllib.ERROR_RESET_REQUIRED, nvmllib.ERROR_NOT_SUPPORTED, nvmllib.ERROR_NO_PERMISSION:
		return fmt.Errorf("%s: %w: offer the GPU with partitions: none or static: %w", what, ret, gpu.ErrMIGModeFixed)
	}
	return s.refused(handle, what, ret)
}

// refused returns the error of a call that NVML refused. Error: gpu.ErrBusy, which names the users of the GPU.
func (s *session) refused(handle nvmllib.Device, what string, err error) error {
	if !errors.Is(err, nvmllib.ERROR_IN_USE) {
		return fmt.Errorf("%s: %w", what, err)
	}
	names := s.clients(handle)
	if len(names) == 0 {
		names = []string{"nobody that can be seen from here (perhaps a monitoring program with an NVML session)"}
	}
	return fmt.Errorf("%s: used by %s: %w", what, strings.Join(names, ", "), gpu.ErrBusy)
}
