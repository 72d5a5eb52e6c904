// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// controlNodes are the device nodes that every CUDA program needs. nvcdi silently leaves out nodes that are no
// character devices.
var controlNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}

// controlMinor is the minor number of /dev/nvidiactl.
const controlMinor = 255

// withNodes returns the answer of find with the device nodes. Missing ones are created, and find is called again: a
// host has some of them only after NVIDIA's own programs have run. find records its inputs.
func (t *Toolkit) withNodes(paths []string, in inputs, find func() (gpu.Access, error)) (gpu.Access, error) {
	access, err := find()
	if err != nil || len(missing(access, paths)) == 0 {
		return access, err
	}
	makeErr := t.makeNodes(missing(access, paths))
	if makeErr == nil {
		clear(in)
		if access, err = find(); err != nil {
			return gpu.Access{}, err
		}
	}
	return access, t.requireNodes(access, paths, makeErr)
}

// missing returns those of the device nodes that the access does not have.
func missing(a gpu.Access, paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		return slices.ContainsFunc(a.Nodes, func(node gpu.DeviceNode) bool { return node.Path == path })
	})
}

// requireNodes reports missing device nodes, and why they could not be created.
func (t *Toolkit) requireNodes(a gpu.Access, paths []string, makeErr error) error {
	var errs []error
	_, host := t.Driver.Dev()
	for _, path := range missing(a, paths) {
		err := fmt.Errorf("%s is not a character device: load the driver's kernel modules and make its device nodes "+
			"(nvidia-modprobe -u -c=0)", filepath.Join(host, path))
		if makeErr != nil {
			err = fmt.Errorf("%w: it could not be made here: %w", err, makeErr)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// makeNodes creates device nodes of the driver in the /dev of the host. It leaves alone what exists.
func (t *Toolkit) makeNodes(paths []string) error {
	if t.Driver.HostDev == "" {
		return errors.New("the host's /dev is not mounted here")
	}
	if here, _ := t.Driver.Dev(); !sameFile(filepath.Join(here, "dev"), filepath.Join(t.Driver.HostDev, "dev")) {
		return errors.New("the driver root has a /dev of its own")
	}
	for _, path := range paths {
		major, minor, err := t.numbers(filepath.Base(path))
		if err != nil {
			return err
		}
		file := filepath.Join(t.Driver.HostDev, path)
		// NVIDIA's programs create them with this mode.
		err = unix.Mknod(file, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor)))
		if err == nil {
			err = os.Chmod(file, 0o666) // whatever the umask
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	return nil
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}

// numbers returns the device number of a node of the driver: nvidiactl, nvidia-uvm or nvidiaN.
func (t *Toolkit) numbers(name string) (major, minor uint32, err error) {
	switch name {
	case "nvidia-uvm":
		major, err = t.major("nvidia-uvm")
		return major, 0, err
	case "nvidiactl":
		minor = controlMinor
	default:
		number, err := strconv.ParseUint(strings.TrimPrefix(name, "nvidia"), 10, 32)
		if err != nil {
			return 0, 0, fmt.Errorf("%s is no device node of a GPU: %w", name, err)
		}
		minor = uint32(number)
	}
	major, err = t.major("nvidia", "nvidia-frontend")
	return major, minor, err
}

// major returns the major number of the first of the drivers in the kernel's list, which has lines like "195 nvidia".
func (t *Toolkit) major(drivers ...string) (uint32, error) {
	path := filepath.Join(t.Proc, "devices")
	list, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer list.Close()
	for lines := bufio.NewScanner(list); lines.Scan(); {
		number, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if slices.Contains(drivers, name) {
			major, err := strconv.ParseUint(number, 10, 32)
			return uint32(major), err
		}
	}
	return 0, fmt.Errorf("%s does not list %s: load the driver's kernel modules", path, drivers[0])
}
