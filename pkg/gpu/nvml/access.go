// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// memoryLimitsHook limits GPU memory by a variable that any container can set, so it is only used for limits of claims.
const memoryLimitsHook = "apply-cuda-memory-limits"

// access implements Machine.Access. For the monitor device it returns what a container needs besides every GPU.
func (s *session) access(d gpu.Device) (gpu.Access, error) {
	switch d.Type {
	case gpu.TypeMIG:
		return s.findPartition(d)
	case gpu.TypeMonitor:
		return s.findMonitoring()
	}
	return s.findDevice(d)
}

func (s *session) findDriver() (gpu.Access, error) { return s.withNodes(controlNodes, s.askDriver) }

// askDriver returns what NVIDIA's toolkit finds for every GPU.
func (s *session) askDriver() (gpu.Access, error) {
	lib, err := s.toolkit()
	if err != nil {
		return gpu.Access{}, err
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return gpu.Access{}, fmt.Errorf("find the driver's files: %w", err)
	}
	s.mountSMI(edits.ContainerEdits)
	return s.onHost(*edits.ContainerEdits)
}

// mountSMI adds nvidia-smi of Debian's packages, where the toolkit does not find it: /usr/bin has a link to it by way
// of the absolute /etc/alternatives.
func (s *session) mountSMI(edits *specs.ContainerEdits) {
	const name = "nvidia-smi"
	if slices.ContainsFunc(edits.Mounts, func(m *specs.Mount) bool { return filepath.Base(m.HostPath) == name }) {
		return
	}
	if path, err := s.Driver.Program(name); err == nil {
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: path, ContainerPath: "/usr/bin/" + name,
			Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
}

func (s *session) findDevice(d gpu.Device) (gpu.Access, error) {
	return s.withNodes([]string{driverroot.DeviceNode(d.Minor)}, func() (gpu.Access, error) { return s.askDevice(d) })
}

// askDevice returns what NVIDIA's toolkit finds for the GPU.
func (s *session) askDevice(d gpu.Device) (gpu.Access, error) {
	lib, err := s.toolkit()
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
	return s.onHost(devices[0].ContainerEdits)
}

// toolkit returns a new instance for every query, because it caches, and answers controls caching.
func (s *session) toolkit() (nvcdi.Interface, error) {
	dev, _ := s.Driver.Dev()
	return nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(toolkitLog{}),
		nvcdi.WithNvmlLib(s.lib),
		nvcdi.WithDeviceLib(s.devices),
		nvcdi.WithDriverRoot(s.Driver.Here),
		nvcdi.WithDevRoot(dev),
		nvcdi.WithLibrarySearchPaths(searchPaths(s.Driver)),
		nvcdi.WithNVIDIACDIHookPath(s.HookPath),
		nvcdi.WithDisabledHooks(memoryLimitsHook),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
}

// searchPaths returns the directory of the driver's libraries if NVIDIA's toolkit does not search it itself. Otherwise
// none: with search paths it does not read the cache of ldconfig.
func searchPaths(r driverroot.Root) []string {
	library, err := r.Library()
	if err != nil {
		return nil
	}
	dir := filepath.Dir(library)
	relative, err := filepath.Rel(r.Here, dir)
	if err != nil || !slices.Contains([]string{"usr/lib", "lib", "usr/local/glibc/usr/lib"}, relative) {
		return nil
	}
	return []string{dir}
}

// onHost rewrites the driver's paths in this container to those on the host.
func (s *session) onHost(edits specs.ContainerEdits) (gpu.Access, error) {
	here, host := s.Driver.Dev()
	transformer := root.NewDriverTransformer(
		root.WithDriverRoot(s.Driver.Here),
		root.WithTargetDriverRoot(s.Driver.Host),
		root.WithDevRoot(here),
		root.WithTargetDevRoot(host),
	)
	spec := &specs.Spec{ContainerEdits: edits}
	if err := transformer.Transform(spec); err != nil {
		return gpu.Access{}, fmt.Errorf("rewrite %s to %s: %w", s.Driver.Here, s.Driver.Host, err)
	}
	access := accessOf(spec.ContainerEdits)
	access.Hooks = s.combine(access.Hooks)
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
