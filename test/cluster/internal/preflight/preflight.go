// SPDX-License-Identifier: Apache-2.0

// Package preflight checks whether this machine can run a cluster, before anything is created. Every message is one
// sentence.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cgroups"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/machine"
)

// ErrUnfit means that the machine cannot run a cluster; the message gives the reason.
var ErrUnfit = errors.New("cannot run a cluster here")

// Subcommand is the hidden command that calls Probe.
const Subcommand = "probe"

// CheckRoot returns ErrUnfit unless this process is root.
func CheckRoot() error {
	if os.Geteuid() != 0 {
		return unfit("a cluster needs namespaces, mounts and control groups: run this as root")
	}
	return nil
}

// Check returns ErrUnfit if a cluster with its state below the folder cannot run. It leaves nothing behind.
func Check(ctx context.Context, state string) error {
	if err := CheckRoot(); err != nil {
		return err
	}
	if err := checkCgroups(); err != nil {
		return err
	}
	if err := checkDisk(state); err != nil {
		return err
	}
	return checkKernel(ctx)
}

func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnfit, fmt.Sprintf(format, args...))
}

func checkCgroups() error {
	layout, err := cgroups.Detect()
	if err != nil {
		return unfit("%v", err)
	}
	have := map[string]bool{}
	for _, h := range layout {
		names := h.Controllers
		if h.Unified {
			data, _ := os.ReadFile(filepath.Join(h.Root, "cgroup.controllers"))
			names = strings.Fields(string(data))
		}
		for _, name := range names {
			have[name] = true
		}
		if err := unix.Access(h.Root, unix.W_OK); err != nil {
			return unfit("control groups at %s cannot be written: %v", h.Root, err)
		}
	}
	for _, name := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !have[name] {
			return unfit("the kernel has no control group controller %s", name)
		}
	}
	return nil
}

const overlayMagic = 0x794c7630

func checkDisk(state string) error {
	if strings.ContainsAny(state, ",:\\") {
		return unfit("the folder for state %s has a character that overlay mounts do not take", state)
	}
	dir := state
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return unfit("the folder for state %s cannot be examined: %v", state, err)
	}
	switch {
	case fs.Flags&unix.ST_NODEV != 0:
		return unfit("%s is mounted with nodev, so device nodes of simulated GPUs would not work; choose another "+
			"folder with --state", dir)
	case fs.Flags&unix.ST_RDONLY != 0:
		return unfit("%s is read-only; choose another folder with --state", dir)
	case int64(fs.Type) == overlayMagic: //nolint:unconvert // the type differs between architectures
		return unfit("%s is on an overlay, which cannot hold the overlays of containers; choose another folder with "+
			"--state", dir)
	}
	return nil
}

// checkKernel tries the kernel's features in a process with its own namespaces.
func checkKernel(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Subcommand)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: machine.Namespaces}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return unfit("%s", strings.TrimSpace(string(out)))
	default:
		return unfit("the kernel does not allow new namespaces (network, mount, PID, UTS, IPC): %v", err)
	}
}

// Probe tries the kernel's features in its own namespaces, and returns the first that is missing.
func Probe() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts cannot be made private: %w", err)
	}
	for _, try := range []func() error{tryProc, tryOverlay, tryLinks, tryNFTables, tryDevice} {
		if err := try(); err != nil {
			return err
		}
	}
	return nil
}

func tryProc() error {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("a new /proc cannot be mounted: %w", err)
	}
	return nil
}

// scratch gets a tmpfs in the probe's mount namespace.
const scratch = "/tmp"

func tryOverlay() error {
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("a tmpfs cannot be mounted: %w", err)
	}
	for _, dir := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(scratch, dir), 0o755); err != nil {
			return err
		}
	}
	options := "lowerdir=" + scratch + "/lower,upperdir=" + scratch + "/upper,workdir=" + scratch + "/work"
	if err := unix.Mount("overlay", scratch+"/merged", "overlay", 0, options); err != nil {
		return fmt.Errorf("the kernel lacks overlay mounts (overlayfs): %w", err)
	}
	return nil
}

func tryDevice() error {
	path := filepath.Join(scratch, "device")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("device nodes cannot be made (CAP_MKNOD): %w", err)
	}
	return nil
}
