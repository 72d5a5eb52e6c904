// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// ErrNotConfigurable means that the GPU cannot have the setting at all. The message says what it can have.
var ErrNotConfigurable = errors.New("the GPU does not support it")

// programDirs are where distributions put the driver's programs, relative to its root.
var programDirs = []string{"usr/bin", "bin", "usr/sbin", "sbin", "usr/local/bin"}

// modes are the compute modes, as NVML numbers them.
var modes = map[gpu.ComputeMode]nvmllib.ComputeMode{
	"":                   nvmllib.COMPUTEMODE_DEFAULT,
	gpu.ExclusiveProcess: nvmllib.COMPUTEMODE_EXCLUSIVE_PROCESS,
}

// intervals are the time slices, as nvidia-smi numbers them.
var intervals = map[gpu.Interval]int{"": 0, gpu.IntervalShort: 1, gpu.IntervalMedium: 2, gpu.IntervalLong: 3}

// Configure makes the GPU shared in time as the settings say. It may be repeated. The zero Settings undo: a GPU that is gone, or
// that has never had such a setting, is no error then. What time slice a GPU has cannot be asked, and setting it takes a run of
// nvidia-smi, which can take longer than all the rest; so that is done only for a GPU that is to have another one than the factory's,
// or has had one before.
// Error: ErrNotConfigurable.
func (n *Node) Configure(ctx context.Context, id gpu.UUID, s, before gpu.Settings) error {
	mode, ok := modes[s.Mode]
	if !ok {
		return fmt.Errorf("compute mode %q: want %s, or none for the default", s.Mode, gpu.ExclusiveProcess)
	}
	interval, ok := intervals[s.Interval]
	if !ok {
		return fmt.Errorf("time slice %q: want %s, %s or %s, or none for the default", s.Interval, gpu.IntervalShort, gpu.IntervalMedium, gpu.IntervalLong)
	}
	handle, ret := n.Library.DeviceGetHandleByUUID(string(id))
	if ret != nvmllib.SUCCESS {
		if s == (gpu.Settings{}) && gone(ret) {
			return nil
		}
		return fmt.Errorf("get handle of GPU %s: %w", id, ret)
	}
	err := setMode(handle, s.Mode, mode)
	if s.Interval == "" && before.Interval == "" {
		return err
	}
	// Both are tried: what can be undone is undone.
	return errors.Join(err, n.setTimeSlice(ctx, id, s.Interval, interval))
}

// gone says whether the answer means that the GPU is not there any more: all that was set went with it.
func gone(ret nvmllib.Return) bool {
	return ret == nvmllib.ERROR_NOT_FOUND || ret == nvmllib.ERROR_GPU_IS_LOST || ret == nvmllib.ERROR_GPU_NOT_FOUND
}

func setMode(handle nvmllib.Device, name gpu.ComputeMode, mode nvmllib.ComputeMode) error {
	is, ret := handle.GetComputeMode()
	if ret == nvmllib.SUCCESS && is != mode {
		ret = handle.SetComputeMode(mode)
	}
	switch {
	case ret == nvmllib.SUCCESS:
		return nil
	case name == "" && (ret == nvmllib.ERROR_NOT_SUPPORTED || gone(ret)):
		return nil
	case ret == nvmllib.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("compute mode %s: it can only have the default: %w", name, ErrNotConfigurable)
	case name == "":
		name = "DEFAULT"
	}
	return fmt.Errorf("compute mode %s: %w", name, ret)
}

// Exit codes of nvidia-smi: numbers of NVML's errors.
const (
	exitNotSupported = int(nvmllib.ERROR_NOT_SUPPORTED)
	exitNoDevice     = int(nvmllib.ERROR_NOT_FOUND)
	exitLost         = int(nvmllib.ERROR_GPU_IS_LOST)
)

// setTimeSlice runs nvidia-smi: NVML has no call for it.
func (n *Node) setTimeSlice(ctx context.Context, id gpu.UUID, name gpu.Interval, number int) error {
	code, text, err := n.Driver.runSMI(ctx, "compute-policy", "-i", string(id), "--set-timeslice", strconv.Itoa(number))
	unsupported := code == exitNotSupported || strings.Contains(text, "Not Supported")
	switch {
	case err == nil:
		return nil
	case name == "" && (unsupported || code == exitNoDevice || code == exitLost):
		return nil // it has the default, or is gone
	case unsupported:
		return fmt.Errorf("time slice %s: it can only have Default: %w", name, ErrNotConfigurable)
	case name == "":
		name = "Default"
	}
	if text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return fmt.Errorf("time slice %s: nvidia-smi: %w", name, err)
}

// runSMI runs the driver's nvidia-smi. It returns the exit code when it got so far, what it said in one line, and an error unless
// all went well: exec.ErrNotFound when the root has no nvidia-smi.
func (r DriverRoot) runSMI(ctx context.Context, args ...string) (code int, text string, err error) {
	program, err := r.Program("nvidia-smi")
	if err != nil {
		return 0, "", err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = os.Environ()
	if r.Here != "/" {
		// The library alone, by name: a search path into the root would also find its C library, which may not fit the loader here.
		library, err := r.Library()
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
	return code, strings.Join(strings.FieldsFunc(strings.TrimSpace(output.String()), func(c rune) bool { return c == '\n' }), "; "), err
}

// Program is the path of a program of the driver, as this container sees it. Error: exec.ErrNotFound.
func (r DriverRoot) Program(name string) (string, error) {
	for _, dir := range programDirs {
		path := filepath.Join(r.Here, dir, name)
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("in no directory for programs below %s (seen here as %s): %w", r.Host, r.Here, exec.ErrNotFound)
}
