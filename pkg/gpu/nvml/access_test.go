// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// describe is an access as text, one line each, sorted; numbers of device nodes are left out.
func describe(a gpu.Access) string {
	var lines []string
	for _, n := range a.Nodes {
		lines = append(lines, fmt.Sprintf("node %s from %s", n.Path, n.HostPath))
	}
	for _, m := range a.Mounts {
		lines = append(lines, fmt.Sprintf("mount %s from %s", m.ContainerPath, m.HostPath))
	}
	for _, h := range a.Hooks {
		lines = append(lines, fmt.Sprintf("hook %s %s %s", h.Name, h.Path, h.Args[1]))
	}
	for _, e := range a.Env {
		lines = append(lines, "env "+e)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestAccess(t *testing.T) {
	_, node := machine(t, "t4-x2")
	look, err := node.Discover(t.Context())
	devices := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	access, err := node.Access(t.Context(), devices[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(access), "node /dev/nvidia1 from /host/dev/nvidia1"; got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
}

func TestDriverAccess(t *testing.T) {
	_, node := machine(t, "t4-x2")
	access, err := node.DriverAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(describe(access), "\n")
	for _, want := range []string{
		"node /dev/nvidiactl from /host/dev/nvidiactl",
		"node /dev/nvidia-uvm from /host/dev/nvidia-uvm",
		"mount /usr/bin/nvidia-smi from /host/usr/bin/nvidia-smi",
		"mount /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05 from /host/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
		"mount /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05 from " +
			"/host/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05",
		"hook createContainer /plugins/nvidia-cdi-hook update-ldcache",
		"hook createContainer /plugins/nvidia-cdi-hook create-symlinks",
		"env NVIDIA_VISIBLE_DEVICES=void",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	for _, line := range got {
		if strings.Contains(line, os.TempDir()) {
			t.Errorf("not a path of the host: %s", line)
		}
	}
}

// A driver root without device nodes of its own, as on GKE: they are where the host has them.
func TestDeviceNodesOfTheHost(t *testing.T) {
	m, node := machine(t, "t4-x2")
	host := tmpfs.Dir(t) // as the machine
	if err := os.Rename(filepath.Join(m.DriverRoot(), "dev"), filepath.Join(host, "dev")); err != nil {
		t.Fatal(err)
	}
	look, err := node.Discover(t.Context())
	devices := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.Access(t.Context(), devices[1]); err == nil || !strings.Contains(err.Error(),
		"/host/dev/nvidia1 is not a character device") {
		t.Errorf("nobody knows of them: got %v", err)
	}
	node.Driver.HostDev = host
	access, err := node.Access(t.Context(), devices[1])
	if err != nil {
		t.Fatal(err)
	}
	if n := access.Nodes[0]; n.Path != "/dev/nvidia1" || n.HostPath != "/dev/nvidia1" {
		t.Errorf("got %s from %s, want /dev/nvidia1 from /dev/nvidia1", n.Path, n.HostPath)
	}
	common, err := node.DriverAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range common.Mounts {
		if !strings.HasPrefix(mount.HostPath, "/host/") {
			t.Errorf("a library of the driver is mounted from %s", mount.HostPath)
		}
	}
}

// What nvcdi leaves out without a word must be an error: a container would start and find no GPU.
func TestMissingDeviceNodes(t *testing.T) {
	m, node := machine(t, "t4-x2")
	look, err := node.Discover(t.Context())
	devices := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	dev := filepath.Join(m.DriverRoot(), "dev")
	for _, name := range []string{"nvidia1", "nvidia-uvm"} {
		if err := os.Remove(filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := node.Access(t.Context(), devices[1]); err == nil || !strings.Contains(err.Error(),
		"/host/dev/nvidia1 is not a character device") {
		t.Errorf("a GPU without its node: got %v", err)
	}
	if _, err := node.Access(t.Context(), devices[0]); err != nil {
		t.Errorf("the other GPU: %v", err)
	}
	if _, err := node.DriverAccess(t.Context()); err == nil || !strings.Contains(err.Error(),
		"/host/dev/nvidia-uvm is not a character device") {
		t.Errorf("a driver without nvidia-uvm: got %v", err)
	}
}

// A device node that the host lacks is made there, with the driver's number and for all users.
func TestDeviceNodesAreMade(t *testing.T) {
	m, node := machine(t, "t4-x2")
	look, err := node.Discover(t.Context())
	must(t, err)
	node.Driver.HostDev, node.Proc = m.DriverRoot(), t.TempDir()
	const majors = "Character devices:\n 61 nvidia-uvm\n 62 nvidia\n\nBlock devices:\n"
	must(t, os.WriteFile(filepath.Join(node.Proc, "devices"), []byte(majors), 0o644))
	for _, row := range []struct {
		name         string
		get          func() (gpu.Access, error)
		major, minor uint32
	}{
		{"nvidia1", func() (gpu.Access, error) { return node.Access(t.Context(), look.Devices[1]) }, 62, 1},
		{"nvidiactl", func() (gpu.Access, error) { return node.DriverAccess(t.Context()) }, 62, 255},
		{"nvidia-uvm", func() (gpu.Access, error) { return node.DriverAccess(t.Context()) }, 61, 0},
	} {
		path := filepath.Join(m.DriverRoot(), "dev", row.name)
		must(t, os.Remove(path))
		_, err = row.get()
		must(t, err)
		made, err := os.Stat(path)
		must(t, err)
		if got := made.Sys().(*syscall.Stat_t).Rdev; got != unix.Mkdev(row.major, row.minor) ||
			made.Mode().Perm() != 0o666 {
			t.Errorf("%s: got device %d:%d, mode %v, want %d:%d and 0666", row.name, unix.Major(got), unix.Minor(got),
				made.Mode().Perm(), row.major, row.minor)
		}
	}
}

// What was found is remembered until the driver changes: a library that comes or a device node that goes is seen at
// once.
func TestAccessFollowsTheDriver(t *testing.T) {
	m, node := machine(t, "t4-x2")
	look, err := node.Discover(t.Context())
	devices := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	first, err := node.DriverAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first.Env[0] = "CHANGED=1" // by a caller, in its own copy
	second, err := node.DriverAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(describe(second), "CHANGED") {
		t.Error("a caller's change is remembered")
	}
	libraries := filepath.Join(m.DriverRoot(), "usr/lib/x86_64-linux-gnu")
	if err := os.Link(filepath.Join(libraries, "libcuda.so.580.95.05"),
		filepath.Join(libraries, "libnew.so.580.95.05")); err != nil {
		t.Fatal(err)
	}
	third, err := node.DriverAccess(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(describe(third), "libnew.so.580.95.05") {
		t.Error("a new library is not seen")
	}
	if _, err := node.Access(t.Context(), devices[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.DriverRoot(), "dev/nvidia0")); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Access(t.Context(), devices[0]); err == nil {
		t.Error("a device node that is gone is still given out")
	}
}
