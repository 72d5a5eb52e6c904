// SPDX-License-Identifier: Apache-2.0

// Package toolkit finds what containers need to use GPUs: device nodes, libraries, programs and hooks. It asks NVIDIA's
// container toolkit, and NVML by way of an interface.
package toolkit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// NVML is the management library of the driver, in a session of somebody else.
type NVML interface {
	// Query calls find with the open library, and waits for it until ctx ends. about is the GPU that is asked; empty:
	// none.
	Query(ctx context.Context, about gpu.UUID, find func(nvmllib.Interface) (gpu.Access, error)) (gpu.Access, error)
	// Instance returns the instances of a partition, and the minor number of its GPU.
	Instance(ctx context.Context, d gpu.Device) (gpu.Instance, int, error)
	// Minor returns the minor number of a whole GPU's device node. An error says that the GPU is gone or does not
	// answer.
	Minor(ctx context.Context, d gpu.Device) (int, error)
}

// Toolkit finds what containers need. It is safe for concurrent use.
type Toolkit struct {
	NVML   NVML
	Driver driverroot.Root
	Proc   string // where proc is mounted: "/proc" on a real machine
	// HookPath is where the host has nvidia-cdi-hook.
	HookPath string
	// CombinedHookPath is where the host has cdi-hooks, which runs several of them in one process. Empty: each hook is
	// a process of its own.
	CombinedHookPath string

	answers answers
}

// DriverAccess returns what a container needs to use any GPU: control device nodes, libraries, programs and hooks.
func (t *Toolkit) DriverAccess(ctx context.Context) (gpu.Access, error) {
	return t.answers.get(subject{module: t.moduleVersion()}, func(in inputs) (gpu.Access, error) {
		return t.NVML.Query(ctx, "", func(lib nvmllib.Interface) (gpu.Access, error) { return t.driver(lib, in) })
	})
}

// Access returns what a container needs to use this device, besides DriverAccess. For the monitor device that is what
// it needs besides every GPU.
func (t *Toolkit) Access(ctx context.Context, d gpu.Device) (gpu.Access, error) {
	switch d.Type {
	case gpu.TypeMIG:
		return t.partition(ctx, d)
	case gpu.TypeMonitor:
		return t.NVML.Query(ctx, "", t.monitor)
	}
	minor, err := t.NVML.Minor(ctx, d)
	if err != nil {
		return gpu.Access{}, fmt.Errorf("find the device node of %s (%s): %w", d.Name, d.UUID, err)
	}
	d.Minor = minor // it may have changed since the last discovery
	return t.whole(ctx, d)
}

// whole returns what a container needs to use a whole GPU, whose minor number is the current one.
func (t *Toolkit) whole(ctx context.Context, d gpu.Device) (gpu.Access, error) {
	return t.answers.get(subject{gpu: d.UUID, minor: d.Minor}, func(in inputs) (gpu.Access, error) {
		return t.NVML.Query(ctx, d.UUID, func(lib nvmllib.Interface) (gpu.Access, error) {
			return t.device(lib, d, in)
		})
	})
}

// moduleVersion is what the driver's kernel module says of itself; empty: it is not loaded.
func (t *Toolkit) moduleVersion() string {
	text, err := os.ReadFile(filepath.Join(t.Proc, "driver/nvidia/version"))
	if err != nil {
		return ""
	}
	return string(text)
}

func (t *Toolkit) driver(lib nvmllib.Interface, in inputs) (gpu.Access, error) {
	return t.withNodes(controlNodes, in, func() (gpu.Access, error) { return t.askDriver(lib, in) })
}

// askDriver returns what NVIDIA's toolkit finds for every GPU.
func (t *Toolkit) askDriver(lib nvmllib.Interface, in inputs) (gpu.Access, error) {
	in.libraries(t.Driver)
	cdi, err := t.newCDI(lib, in)
	if err != nil {
		return gpu.Access{}, err
	}
	edits, err := cdi.GetCommonEdits()
	if err != nil {
		return gpu.Access{}, fmt.Errorf("find the driver's files: %w", err)
	}
	// The variable NVIDIA_VISIBLE_DEVICES keeps NVIDIA's runtime from adding GPUs. The toolkit's mount below /var/run
	// for the same would keep a container from starting that has a read-only volume there.
	edits.Mounts = slices.DeleteFunc(edits.Mounts, func(m *specs.Mount) bool { return m.HostPath == os.DevNull })
	t.mountSMI(edits.ContainerEdits)
	return t.onHost(*edits.ContainerEdits)
}

// mountSMI adds nvidia-smi of Debian's packages, where the toolkit does not find it: /usr/bin has a link to it by way
// of the absolute /etc/alternatives.
func (t *Toolkit) mountSMI(edits *specs.ContainerEdits) {
	const name = "nvidia-smi"
	if slices.ContainsFunc(edits.Mounts, func(m *specs.Mount) bool { return filepath.Base(m.HostPath) == name }) {
		return
	}
	if path, err := t.Driver.Program(name); err == nil {
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: path, ContainerPath: "/usr/bin/" + name,
			Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
}

func (t *Toolkit) device(lib nvmllib.Interface, d gpu.Device, in inputs) (gpu.Access, error) {
	return t.withNodes([]string{driverroot.DeviceNode(d.Minor)}, in, func() (gpu.Access, error) {
		return t.askDevice(lib, d, in)
	})
}

// askDevice returns what NVIDIA's toolkit finds for the GPU.
func (t *Toolkit) askDevice(lib nvmllib.Interface, d gpu.Device, in inputs) (gpu.Access, error) {
	cdi, err := t.newCDI(lib, in)
	if err != nil {
		return gpu.Access{}, err
	}
	devices, err := cdi.GetDeviceSpecsByID(string(d.UUID))
	if err != nil {
		return gpu.Access{}, fmt.Errorf("find the device nodes of %s (%s): %w", d.Name, d.UUID, err)
	}
	if len(devices) == 0 {
		return gpu.Access{}, fmt.Errorf("find the device nodes of %s (%s): none", d.Name, d.UUID)
	}
	return t.onHost(devices[0].ContainerEdits)
}

// newCDI returns a new instance of NVIDIA's toolkit for every query, because it caches, and answers controls caching.
func (t *Toolkit) newCDI(lib nvmllib.Interface, in inputs) (nvcdi.Interface, error) {
	in.devices(t.Driver)
	dev, _ := t.Driver.Dev()
	return nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(searchLog{toolkitLog{}, in, map[string]bool{}}),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDriverRoot(t.Driver.Here),
		nvcdi.WithDevRoot(dev),
		nvcdi.WithLibrarySearchPaths(searchPaths(t.Driver)),
		nvcdi.WithNVIDIACDIHookPath(t.HookPath),
		nvcdi.WithDisabledHooks(memoryLimitsHook),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
}

// searchPaths returns the directory of the driver's libraries if NVIDIA's toolkit does not search it itself. Otherwise
// none: with search paths it does not read the cache of ldconfig.
func searchPaths(driver driverroot.Root) []string {
	library, err := driver.Library()
	if err != nil {
		return nil
	}
	dir := filepath.Dir(library)
	relative, err := filepath.Rel(driver.Here, dir)
	if err != nil || !slices.Contains([]string{"usr/lib", "lib", "usr/local/glibc/usr/lib"}, relative) {
		return nil
	}
	return []string{dir}
}

// onHost rewrites the driver's paths in this container to those on the host.
func (t *Toolkit) onHost(edits specs.ContainerEdits) (gpu.Access, error) {
	here, host := t.Driver.Dev()
	transformer := root.NewDriverTransformer(
		root.WithDriverRoot(t.Driver.Here),
		root.WithTargetDriverRoot(t.Driver.Host),
		root.WithDevRoot(here),
		root.WithTargetDevRoot(host),
	)
	spec := &specs.Spec{ContainerEdits: edits}
	if err := transformer.Transform(spec); err != nil {
		return gpu.Access{}, fmt.Errorf("rewrite %s to %s: %w", t.Driver.Here, t.Driver.Host, err)
	}
	access := accessOf(spec.ContainerEdits)
	access.Hooks = t.combine(access.Hooks)
	return access, nil
}

func accessOf(e specs.ContainerEdits) gpu.Access {
	a := gpu.Access{Env: e.Env, Groups: e.AdditionalGIDs}
	for _, d := range e.DeviceNodes {
		a.Nodes = append(a.Nodes, gpu.DeviceNode{Path: d.Path, HostPath: d.HostPath, Type: d.Type, Major: d.Major,
			Minor: d.Minor, Permissions: d.Permissions})
	}
	for _, m := range e.Mounts {
		a.Mounts = append(a.Mounts, gpu.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Options: m.Options})
	}
	for _, h := range e.Hooks {
		a.Hooks = append(a.Hooks, gpu.Hook{Name: h.HookName, Path: h.Path, Args: h.Args, Env: h.Env})
	}
	return a
}

// toolkitLog logs messages of NVIDIA's toolkit at debug level only, because it warns of every missing optional file.
// What matters is an error of its calls, or found by requireNodes.
type toolkitLog struct{}

const toolkitVerbosity = 5

func (toolkitLog) log(level, format string, args []any) {
	klog.V(toolkitVerbosity).Infof("nvidia-container-toolkit: "+level+": "+format, args...)
}

func (l toolkitLog) Debugf(format string, args ...any)   { l.log("debug", format, args) }
func (l toolkitLog) Infof(format string, args ...any)    { l.log("info", format, args) }
func (l toolkitLog) Warningf(format string, args ...any) { l.log("warning", format, args) }
func (l toolkitLog) Errorf(format string, args ...any)   { l.log("error", format, args) }
func (l toolkitLog) Tracef(format string, args ...any)   { l.log("trace", format, args) }
