// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// driver checks the files of NVIDIA's driver and its kernel module.
func (e *checker) driver() {
	root := e.Machine.Driver
	d := &e.report.Driver
	d.Root, d.Mount, d.Installed = root.Host, root.Here, root.Versions()
	d.Module = e.moduleVersion()
	d.NvidiaSMI = e.program("nvidia-smi")
	d.MPSControl = e.program("nvidia-cuda-mps-control")
	d.CDIHook = existing(e.CDIHook)
	d.Persistence = existing(filepath.Join(root.Here, "run/nvidia-persistenced/socket")) != ""
	d.MIGDeviceNodes = existing(filepath.Join(e.Machine.Proc, "driver/nvidia-caps/mig-minors")) != ""
	e.link()
	library, err := root.Library()
	if err != nil {
		e.found(noLibrary.Found("%v", err))
		return
	}
	d.Library = e.onHost(library)
	e.versions(library)
	if d.NvidiaSMI == "" {
		e.found(noSMI.Found("nvidia-smi is in no directory for programs below %s", root.Host))
	}
	if d.MPSControl == "" {
		e.found(noMPS.Found("nvidia-cuda-mps-control is in no directory for programs below %s", root.Host))
	}
	if d.CDIHook == "" {
		e.found(noHook.Found("there is no %s", e.CDIHook))
	}
}

// link reports a driver root that is a symbolic link.
func (e *checker) link() {
	target, err := os.Readlink(strings.TrimSuffix(e.Machine.Driver.Here, "/"))
	if err != nil {
		return
	}
	e.report.Driver.Target = target
	e.found(symlink.Found("the driver root %s is a symbolic link to %s", e.Machine.Driver.Host, target))
}

// versions compares the versions of the libraries and of the kernel module.
func (e *checker) versions(library string) {
	d := e.report.Driver
	if len(d.Installed) > 1 {
		e.found(twoVersions.Found("the driver root %s has libraries of the versions %s", d.Root,
			strings.Join(d.Installed, ", ")))
	}
	if d.Module == "" {
		e.found(noModule.Found("there is no %s: NVIDIA's kernel module is not loaded",
			filepath.Join(e.Machine.Proc, moduleFile)))
		return
	}
	file, err := filepath.EvalSymlinks(library)
	if err != nil {
		return
	}
	version := strings.TrimPrefix(filepath.Base(file), "libnvidia-ml.so.")
	if strings.Contains(version, ".") && version != d.Module {
		e.found(versionMismatch.Found("the kernel module has version %s, the libraries have %s", d.Module, version))
	}
}

const moduleFile = "driver/nvidia/version"

var moduleLine = regexp.MustCompile(`NVRM version:.*?\s([0-9]+\.[0-9]\S*)`)

// moduleVersion returns the version of the kernel module; "" if it is not loaded.
func (e *checker) moduleVersion() string {
	text, err := os.ReadFile(filepath.Join(e.Machine.Proc, moduleFile))
	if err != nil {
		return ""
	}
	if found := moduleLine.FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return "unknown"
}

// program returns the path of a driver's program on the host; "" if there is none.
func (e *checker) program(name string) string {
	path, err := e.Machine.Driver.Program(name)
	if err != nil {
		return ""
	}
	return e.onHost(path)
}

// onHost converts a path in the driver root to the path on the host.
func (e *checker) onHost(path string) string {
	relative, err := filepath.Rel(e.Machine.Driver.Here, path)
	if err != nil {
		return path
	}
	return filepath.Join(e.Machine.Driver.Host, relative)
}

func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
