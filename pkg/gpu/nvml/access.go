// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// DriverRoot is where NVIDIA's driver is installed.
type DriverRoot struct {
	Host string // on the host, as container runtimes see it
	Here string // in this container
	// HostDev is where this container sees the root of the host as far as /dev goes: where a driver is installed without device nodes
	// of its own, they are there. Empty: nowhere.
	HostDev string
}

// dev is the root that has the driver's device nodes, as seen here and on the host.
func (r DriverRoot) dev() (here, host string) {
	const control = "dev/nvidiactl"
	if _, err := os.Stat(filepath.Join(r.Here, control)); err != nil && r.HostDev != "" {
		if _, err := os.Stat(filepath.Join(r.HostDev, control)); err == nil {
			return r.HostDev, "/"
		}
	}
	return r.Here, r.Host
}

// memoryLimitsHook limits a GPU's memory by a variable that any container can set for itself; here, limits come from claims.
const memoryLimitsHook = "apply-cuda-memory-limits"

// controlNodes are the device nodes that no CUDA program starts without. nvcdi leaves out, without a word, what is no character device.
var controlNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}

// ErrNoDriver means that the driver root does not have NVIDIA's driver.
var ErrNoDriver = errors.New("no NVIDIA driver")

// libraryDirs are where distributions put the driver's libraries, relative to its root.
var libraryDirs = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib", "lib",
}

// Library is the path of the driver's NVML library. Error: ErrNoDriver, with what is missing and where.
func (r DriverRoot) Library() (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(r.Here, dir, "libnvidia-ml.so.1")
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("libnvidia-ml.so.1 is in no library directory below %s (seen here as %s): install the driver there or name the directory that has it (--driver-root): %w",
		r.Host, r.Here, ErrNoDriver)
}

// DriverAccess is what a container needs to use any GPU at all: control device nodes, libraries, programs and hooks.
func (n *Node) DriverAccess() (gpu.Access, error) {
	return n.answers.get(subject{}, n.Driver, n.findDriver)
}

// Access is what a container needs to use this GPU or partition, beside DriverAccess. Of the monitor device it is what is needed
// beside every GPU.
func (n *Node) Access(d gpu.Device) (gpu.Access, error) {
	switch d.Type {
	case gpu.TypeMIG:
		return n.findPartition(d)
	case gpu.TypeMonitor:
		return n.findMonitoring()
	}
	return n.answers.get(subject{d.UUID, d.Minor}, n.Driver, func() (gpu.Access, error) { return n.findDevice(d) })
}

func (n *Node) findDriver() (gpu.Access, error) {
	lib, err := n.toolkit()
	if err != nil {
		return gpu.Access{}, err
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return gpu.Access{}, fmt.Errorf("find the driver's files: %w", err)
	}
	access, err := n.onHost(*edits.ContainerEdits)
	if err != nil {
		return gpu.Access{}, err
	}
	return access, n.requireNodes(access, controlNodes)
}

func (n *Node) findDevice(d gpu.Device) (gpu.Access, error) {
	lib, err := n.toolkit()
	if err != nil {
		return gpu.Access{}, err
	}
	devices, err := lib.GetDeviceSpecsByID(string(d.UUID))
	if err != nil {
		return gpu.Access{}, fmt.Errorf("find the device nodes of %s (%s): %w", d.Name, d.UUID, err)
	}
	if len(devices) == 0 {
		return gpu.Access{}, fmt.Errorf("find the device nodes of %s (%s): none", d.Name, d.UUID)
	}
	access, err := n.onHost(devices[0].ContainerEdits)
	if err != nil {
		return gpu.Access{}, err
	}
	return access, n.requireNodes(access, []string{nodePath(d.Minor)})
}

// nodePath is the device node of the GPU with that minor number.
func nodePath(minor int) string { return fmt.Sprintf("/dev/nvidia%d", minor) }

// toolkit is made anew for every question: it remembers what it saw, and answers decides how long that holds.
func (n *Node) toolkit() (nvcdi.Interface, error) {
	dev, _ := n.Driver.dev()
	return nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(toolkitLog{}),
		nvcdi.WithNvmlLib(n.Library),
		nvcdi.WithDeviceLib(n.devices),
		nvcdi.WithDriverRoot(n.Driver.Here),
		nvcdi.WithDevRoot(dev),
		nvcdi.WithNVIDIACDIHookPath(n.HookPath),
		nvcdi.WithDisabledHooks(memoryLimitsHook),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
}

// onHost rewrites the paths from how this container sees the driver to how the host does.
func (n *Node) onHost(edits specs.ContainerEdits) (gpu.Access, error) {
	here, host := n.Driver.dev()
	transformer := root.NewDriverTransformer(
		root.WithDriverRoot(n.Driver.Here),
		root.WithTargetDriverRoot(n.Driver.Host),
		root.WithDevRoot(here),
		root.WithTargetDevRoot(host),
	)
	spec := &specs.Spec{ContainerEdits: edits}
	if err := transformer.Transform(spec); err != nil {
		return gpu.Access{}, fmt.Errorf("rewrite %s to %s: %w", n.Driver.Here, n.Driver.Host, err)
	}
	return accessOf(spec.ContainerEdits), nil
}

// requireNodes reports the device nodes that a container would miss.
func (n *Node) requireNodes(a gpu.Access, paths []string) error {
	var errs []error
	_, host := n.Driver.dev()
	for _, path := range paths {
		if !slices.ContainsFunc(a.Nodes, func(node gpu.Node) bool { return node.Path == path }) {
			errs = append(errs, fmt.Errorf("%s is not a character device: load the driver's kernel modules and make its device nodes (nvidia-modprobe -u -c=0)",
				filepath.Join(host, path)))
		}
	}
	return errors.Join(errs...)
}

func accessOf(e specs.ContainerEdits) gpu.Access {
	a := gpu.Access{Env: e.Env, Groups: e.AdditionalGIDs}
	for _, d := range e.DeviceNodes {
		a.Nodes = append(a.Nodes, gpu.Node{Path: d.Path, HostPath: d.HostPath, Type: d.Type, Major: d.Major, Minor: d.Minor, Permissions: d.Permissions})
	}
	for _, m := range e.Mounts {
		a.Mounts = append(a.Mounts, gpu.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Options: m.Options})
	}
	for _, h := range e.Hooks {
		a.Hooks = append(a.Hooks, gpu.Hook{Name: h.HookName, Path: h.Path, Args: h.Args, Env: h.Env})
	}
	return a
}
