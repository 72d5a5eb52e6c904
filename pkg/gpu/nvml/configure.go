// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// ErrNotConfigurable means that the GPU does not support the setting. The message says what it supports.
var ErrNotConfigurable = errors.New("the GPU does not support it")

// modes maps compute modes to NVML's values.
var modes = map[gpu.ComputeMode]nvmllib.ComputeMode{
	"":                   nvmllib.COMPUTEMODE_DEFAULT,
	gpu.ExclusiveProcess: nvmllib.COMPUTEMODE_EXCLUSIVE_PROCESS,
	gpu.Prohibited:       nvmllib.COMPUTEMODE_PROHIBITED,
}

// computeMode returns the present compute mode.
func computeMode(handle nvmllib.Device) (gpu.ComputeMode, error) {
	is, ret := handle.GetComputeMode()
	if ret != nvmllib.SUCCESS && ret != nvmllib.ERROR_NOT_SUPPORTED {
		return "", fmt.Errorf("get compute mode: %w", ret)
	}
	for name, mode := range modes {
		if mode == is {
			return name, nil
		}
	}
	return "", nil
}

// intervals maps time slices to nvidia-smi's numbers.
var intervals = map[gpu.Interval]int{gpu.IntervalDefault: 0, gpu.IntervalShort: 1, gpu.IntervalMedium: 2,
	gpu.IntervalLong: 3}

// set implements Machine.Set. Restoring a default is no error if the GPU does not support the setting. Without an
// interval it leaves the time slice alone, which cannot be read: setting it takes a slow run of nvidia-smi.
func (s *session) set(ctx context.Context, id gpu.UUID, want gpu.DesiredState) error {
	if err := validate(want.Settings); err != nil {
		return err
	}
	handle, err := s.handle(id)
	if err != nil {
		return err
	}
	if err := s.setMIG(ctx, handle, id, want.MIG); err != nil || want.Settings == nil {
		return err
	}
	return steps.Do(ctx, steps.ConfigureGPU, func(ctx context.Context) error {
		err := setMode(handle, want.Settings.Mode)
		if needsReset(err) && (want.Settings.Mode == "" || undoes(want)) {
			err = nil
		}
		if want.Settings.Interval == "" {
			return err
		}
		return errors.Join(err, s.setTimeSlice(ctx, id, want.Settings.Interval)) // also if the mode cannot be set
	})
}

// validate checks that the driver supports the settings.
func validate(s *gpu.Settings) error {
	if s == nil {
		return nil
	}
	if _, ok := modes[s.Mode]; !ok {
		return fmt.Errorf("compute mode %q: want %s or %s, or none for the default", s.Mode, gpu.ExclusiveProcess,
			gpu.Prohibited)
	}
	if _, ok := intervals[s.Interval]; !ok && s.Interval != "" {
		return fmt.Errorf("time slice %q: want %s, %s, %s or %s, or none to leave it alone", s.Interval,
			gpu.IntervalDefault, gpu.IntervalShort, gpu.IntervalMedium, gpu.IntervalLong)
	}
	return nil
}

// undoes reports whether the state only restores what was found, which is nothing on a missing GPU.
func undoes(s gpu.DesiredState) bool {
	restores := s.Settings == nil || s.Settings.Interval == gpu.IntervalDefault ||
		s.Settings.Interval == "" && s.Settings.Mode != gpu.ExclusiveProcess
	return restores && (s.MIG == gpu.MIGUnchanged || s.MIG == gpu.MIGOffIfUnused)
}

func setMode(handle nvmllib.Device, name gpu.ComputeMode) error {
	mode := modes[name]
	current, ret := handle.GetComputeMode()
	if ret == nvmllib.SUCCESS && current != mode {
		ret = handle.SetComputeMode(mode)
	}
	switch {
	case ret == nvmllib.SUCCESS:
		return nil
	case name == "" && ret == nvmllib.ERROR_NOT_SUPPORTED:
		return nil
	case ret == nvmllib.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("compute mode %s: it can only have the default: %w", name, ErrNotConfigurable)
	case name == "":
		name = "DEFAULT"
	}
	return fmt.Errorf("compute mode %s: %w", name, ret)
}

// setTimeSlice runs nvidia-smi, because NVML has no call for it. Its exit codes are NVML's error numbers.
func (s *session) setTimeSlice(ctx context.Context, id gpu.UUID, name gpu.Interval) error {
	code, text, err := runSMI(ctx, s.config.Driver, "compute-policy", "-i", string(id), "--set-timeslice",
		strconv.Itoa(intervals[name]))
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("time slice %s: %w", name, err)
	}
	ret := nvmllib.Return(code)
	unsupported := ret == nvmllib.ERROR_NOT_SUPPORTED || strings.Contains(text, "Not Supported")
	switch {
	case err == nil:
		return nil
	case name == gpu.IntervalDefault && (unsupported || needsReset(ret)):
		return nil // it has the default
	case unsupported:
		return fmt.Errorf("time slice %s: it can only have Default: %w", name, ErrNotConfigurable)
	}
	if text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return fmt.Errorf("time slice %s: nvidia-smi: %w", name, err)
}

// runSMI runs the driver's nvidia-smi, and returns its exit code and its output in one line. Error: exec.ErrNotFound
// when the root has no nvidia-smi, or why the run failed.
func runSMI(ctx context.Context, driver driverroot.Root, args ...string) (code int, text string, err error) {
	program, err := driver.Program("nvidia-smi")
	if err != nil {
		return 0, "", err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = os.Environ()
	if driver.Here != "/" {
		// Preload only the library: a search path into the root would also find its C library, which may not fit the
		// loader here.
		library, err := driver.Library()
		if err != nil {
			return 0, "", err
		}
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+library)
	}
	cmd.WaitDelay = time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return code, strings.Join(strings.FieldsFunc(strings.TrimSpace(output.String()),
		func(c rune) bool { return c == '\n' }), "; "), err
}
