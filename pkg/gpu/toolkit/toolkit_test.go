// SPDX-License-Identifier: Apache-2.0

package toolkit_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/toolkit"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// machine is a simulated machine, the driver's view of it, and what finds its devices for containers. It needs root.
func machine(t testing.TB, profile string) (*simulator.Node, *nvml.Machine, *toolkit.Toolkit) {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	return machineOf(t, p)
}

func machineOf(t testing.TB, p simulator.Profile) (*simulator.Node, *nvml.Machine, *toolkit.Toolkit) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	m, err := simulator.Open(tmpfs.Dir(t), p)
	must(t, err)
	must(t, m.LayOut(simulator.Programs{NvidiaSMI: os.DevNull}))
	root := driverroot.Root{Host: "/host", Here: m.DriverRoot()}
	gpus, err := nvml.Open(nvml.MachineConfig{Library: m.NVML(), Sysfs: filepath.Join(m.DriverRoot(), "sys"),
		Proc: m.Proc(), Driver: root, Timeout: simtest.Patience})
	must(t, err)
	t.Cleanup(func() { must(t, gpus.Close()) })
	return m, gpus, &toolkit.Toolkit{NVML: gpus, Driver: root, Proc: m.Proc(), HookPath: "/plugins/nvidia-cdi-hook"}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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
	_, gpus, kit := machine(t, "t4-x2")
	look, err := gpus.Discover(t.Context())
	devices := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	access, err := kit.Access(t.Context(), devices[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(access), "node /dev/nvidia1 from /host/dev/nvidia1"; got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
}

func TestDriverAccess(t *testing.T) {
	_, _, kit := machine(t, "t4-x2")
	access, err := kit.DriverAccess(t.Context())
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
	m, gpus, kit := machine(t, "t4-x2")
	host := tmpfs.Dir(t) // as the machine
	if err := os.Rename(filepath.Join(m.DriverRoot(), "dev"), filepath.Join(host, "dev")); err != nil {
		t.Fatal(err)
	}
	look, err := gpus.Discover(t.Context())
	devices := look.Devices
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kit.Access(t.Context(), devices[1]); err == nil || !strings.Contains(err.Error(),
		"/host/dev/nvidia1 is not a character device") {
		t.Errorf("nobody knows of them: got %v", err)
	}
	kit.Driver.HostDev = host
	access, err := kit.Access(t.Context(), devices[1])
	if err != nil {
		t.Fatal(err)
	}
	if n := access.Nodes[0]; n.Path != "/dev/nvidia1" || n.HostPath != "/dev/nvidia1" {
		t.Errorf("got %s from %s, want /dev/nvidia1 from /dev/nvidia1", n.Path, n.HostPath)
	}
	common, err := kit.DriverAccess(t.Context())
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
	m, gpus, kit := machine(t, "t4-x2")
	look, err := gpus.Discover(t.Context())
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
	if _, err := kit.Access(t.Context(), devices[1]); err == nil || !strings.Contains(err.Error(),
		"/host/dev/nvidia1 is not a character device") {
		t.Errorf("a GPU without its node: got %v", err)
	}
	if _, err := kit.Access(t.Context(), devices[0]); err != nil {
		t.Errorf("the other GPU: %v", err)
	}
	if _, err := kit.DriverAccess(t.Context()); err == nil || !strings.Contains(err.Error(),
		"/host/dev/nvidia-uvm is not a character device") {
		t.Errorf("a driver without nvidia-uvm: got %v", err)
	}
}

// A device node that the host lacks is made there, with the driver's number and for all users.
func TestDeviceNodesAreMade(t *testing.T) {
	m, gpus, kit := machine(t, "t4-x2")
	look, err := gpus.Discover(t.Context())
	must(t, err)
	kit.Driver.HostDev, kit.Proc = m.DriverRoot(), t.TempDir()
	const majors = "Character devices:\n 61 nvidia-uvm\n 62 nvidia\n\nBlock devices:\n"
	must(t, os.WriteFile(filepath.Join(kit.Proc, "devices"), []byte(majors), 0o644))
	for _, row := range []struct {
		name         string
		get          func() (gpu.Access, error)
		major, minor uint32
	}{
		{"nvidia1", func() (gpu.Access, error) { return kit.Access(t.Context(), look.Devices[1]) }, 62, 1},
		{"nvidiactl", func() (gpu.Access, error) { return kit.DriverAccess(t.Context()) }, 62, 255},
		{"nvidia-uvm", func() (gpu.Access, error) { return kit.DriverAccess(t.Context()) }, 61, 0},
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

// What a container needs of a partition: the GPU's node and those of the two capabilities, with numbers that make the
// nodes anywhere.
func TestAccessToAPartition(t *testing.T) {
	_, gpus, kit := machine(t, "dgx-h100")
	found, err := gpus.Discover(t.Context())
	must(t, err)
	d := found.Devices[0]
	at := gpu.Placement{Parent: d.UUID, Profile: "1g.10gb", Start: 4, Size: 1}
	if err := gpus.Set(t.Context(), d.UUID, gpu.DesiredState{MIG: gpu.MIGOn}); err != nil {
		t.Fatal(err)
	}
	id, err := gpus.CreatePartition(t.Context(), at, "")
	if err != nil {
		t.Fatal(err)
	}
	d.Name, d.Type, d.UUID, d.Partition = gpu.PartitionName(d.Name, at), gpu.TypeMIG, id, &gpu.Partition{Placement: at}
	d.Minor = 7 // as it may have been before the MIG mode was changed
	kit.Driver.HostDev = t.TempDir()
	access, err := kit.Access(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, n := range access.Nodes {
		if strings.Contains(n.Path, "caps") {
			requireNode(t, kit.Driver.HostDev, n)
		}
		paths = append(paths, n.Path)
	}
	// The kernel has given the driver another number since.
	stale := access.Nodes[len(access.Nodes)-1]
	file := filepath.Join(kit.Driver.HostDev, stale.Path)
	if err := errors.Join(os.Remove(file), unix.Mknod(file, unix.S_IFCHR|0o444, int(unix.Mkdev(1, 3)))); err != nil {
		t.Fatal(err)
	}
	if _, err := kit.Access(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	requireNode(t, kit.Driver.HostDev, stale)
	minors, err := os.ReadFile(filepath.Join(kit.Proc, "driver/nvidia-caps/mig-minors"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/dev/nvidia0"}
	for _, name := range []string{"gpu0/gi11/access", "gpu0/gi11/ci0/access"} {
		m := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindStringSubmatch(string(minors))
		if m == nil {
			t.Fatalf("mig-minors does not list %s", name)
		}
		want = append(want, "/dev/nvidia-caps/nvidia-cap"+m[1])
	}
	if !slices.Equal(paths, want) {
		t.Errorf("got %v, want %v", paths, want)
	}
	if err := gpus.DestroyPartition(t.Context(), at, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := kit.Access(t.Context(), d); err == nil {
		t.Error("a partition that is gone can still be had")
	}
}

// requireNode requires that a device node is also in the /dev of the host: runtimes mount it from there in containers
// with a user namespace.
func requireNode(t *testing.T, host string, n gpu.DeviceNode) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(host, n.Path), &st); err != nil || st.Mode != unix.S_IFCHR|0o444 ||
		st.Rdev != unix.Mkdev(uint32(n.Major), uint32(n.Minor)) || n.Type != "c" || n.Major == 0 {
		t.Errorf("%s: type %q, major %d; on the host mode %o, number %x, %v", n.Path, n.Type, n.Major, st.Mode, st.Rdev,
			err)
	}
}
