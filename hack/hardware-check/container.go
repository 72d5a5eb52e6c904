// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// probe is the path of a GPU's device node in a container without a claim, which must not be able to open it.
const probe = "/dev/probe"

// containers starts a container with the CDI spec of a GPU, and one without.
func (e *checker) containers(ctx context.Context) {
	const with, without = "a container with a GPU", "a container without a claim"
	why := ""
	runtime, err := exec.LookPath(e.runtime)
	switch {
	case err != nil:
		why = err.Error()
	case os.Geteuid() != 0:
		why = "it takes root"
	case e.report.CDI == nil || len(e.report.CDI.Devices) == 0:
		why = "there is no CDI spec"
	case e.report.Driver.CDIHook == "":
		why = "there is no " + e.hook + ", which the CDI spec has the runtime run (-cdi-hook)"
	}
	if why != "" {
		e.add(skipped, with, "%s", why)
		e.add(skipped, without, "%s", why)
		return
	}
	rootfs, done, err := e.rootFileSystem()
	if err != nil {
		e.add(skipped, with, "no root file system for it (-rootfs): %v", err)
		e.add(skipped, without, "no root file system for it (-rootfs): %v", err)
		return
	}
	defer done()
	device := e.report.CDI.Devices[0]
	uuid := e.uuidOf(device.Name)
	text, err := e.runContainer(ctx, runtime, rootfs, "with", e.claim, "nvidia-smi", "-L")
	if err == nil && (!strings.Contains(text, uuid) || strings.Count(text, "GPU ") != 1) {
		err = fmt.Errorf("nvidia-smi -L does not show %s alone: %s", uuid, text)
	}
	e.expect(err, with, "nvidia-smi -L shows %s", uuid)
	text, err = e.runContainer(ctx, runtime, rootfs, "without", e.noClaim, "sh", "-c", "echo "+started+"; : <"+probe)
	if err == nil {
		e.add(failed, without, "it can open the device node of %s", device.Name)
	} else if denied := strings.ToLower(text); strings.Contains(text, started) &&
		(strings.Contains(denied, "not permitted") || strings.Contains(denied, "permission denied")) {
		e.add(verified, without, "it cannot open the device node of %s: %s", device.Name, text)
	} else {
		e.add(failed, without, "%v: %s", err, text)
	}
}

// started is the first output of a container. Without it the container did not start, which proves nothing about
// devices.
const started = "the container has started"

// uuidOf returns the UUID of the GPU with that name.
func (e *checker) uuidOf(name string) string {
	for _, g := range e.report.GPUs {
		if g.Name == name {
			return fmt.Sprint(g.Attributes["uuid"])
		}
	}
	return "a GPU without a UUID"
}

// claim adds the GPU's CDI devices to the container, as a runtime does for a claim.
func (e *checker) claim(spec *oci.Spec) error {
	dir := filepath.Join(e.dir, "cdi")
	text, err := json.Marshal(e.report.CDI)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "hardware-check.json"), text, 0o600)
	}
	if err != nil {
		return err
	}
	cache, err := cdiapi.NewCache(cdiapi.WithSpecDirs(dir), cdiapi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	vendor, class := parser.ParseQualifier(e.report.CDI.Kind)
	_, err = cache.InjectDevices(spec, parser.QualifiedName(vendor, class, e.report.CDI.Devices[0].Name))
	return err
}

// noClaim adds a GPU's device node to the container without the permission to use it.
func (e *checker) noClaim(spec *oci.Spec) error {
	nodes := e.report.CDI.Devices[0].ContainerEdits.DeviceNodes
	if len(nodes) == 0 {
		return errors.New("the GPU has no device node")
	}
	path := cmp.Or(nodes[0].HostPath, nodes[0].Path)
	spec.Mounts = append(spec.Mounts, oci.Mount{Destination: probe, Type: "bind", Source: path,
		Options: []string{"bind", "ro"}})
	return nil
}

// runContainer runs the program in a container and returns its output.
func (e *checker) runContainer(ctx context.Context, runtime, rootfs, name string, change func(*oci.Spec) error,
	args ...string) (string, error) {
	bundle := filepath.Join(e.dir, name)
	if err := os.MkdirAll(bundle, 0o755); err != nil {
		return "", err
	}
	spec := plainContainer(rootfs, args)
	if err := change(spec); err != nil {
		return "", err
	}
	text, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)
	}
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("hardware-check-%d-%s", os.Getpid(), name)
	out, err := exec.CommandContext(ctx, runtime, "run", "--bundle", bundle, id).CombinedOutput()
	output := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	return output, err
}

// plainContainer returns the spec of a container that may use no device.
func plainContainer(rootfs string, args []string) *oci.Spec {
	some := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETGID", "CAP_SETUID"}
	return &oci.Spec{
		Version: oci.Version,
		Process: &oci.Process{Args: args, Cwd: "/",
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, NoNewPrivileges: true,
			Capabilities: &oci.LinuxCapabilities{Bounding: some, Effective: some, Permitted: some}},
		Root: &oci.Root{Path: rootfs},
		Mounts: []oci.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime",
				"mode=755"}},
			{Destination: "/sys", Type: "none", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev",
				"ro"}},
		},
		Linux: &oci.Linux{
			Namespaces: []oci.LinuxNamespace{{Type: oci.PIDNamespace}, {Type: oci.IPCNamespace},
				{Type: oci.UTSNamespace}, {Type: oci.MountNamespace}, {Type: oci.NetworkNamespace}},
			Resources: &oci.LinuxResources{Devices: []oci.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// rootFileSystem returns the directory that the user named, or this machine's root behind an overlay, so that nothing
// writes to it.
func (e *checker) rootFileSystem() (dir string, done func(), err error) {
	if e.rootfs != "" {
		return e.rootfs, func() {}, nil
	}
	dir = filepath.Join(e.dir, "rootfs")
	upper, work := filepath.Join(e.dir, "overlay/upper"), filepath.Join(e.dir, "overlay/work")
	for _, d := range []string{dir, upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", nil, err
		}
	}
	if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return "", nil, fmt.Errorf("mount an overlay of /: %w", err)
	}
	return dir, func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }, nil
}
