// SPDX-License-Identifier: Apache-2.0

package toolkit_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/toolkit"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// counted counts the questions to NVIDIA's toolkit.
type counted struct {
	toolkit.NVML
	asked int
}

func (c *counted) Query(ctx context.Context, about gpu.UUID,
	find func(nvmllib.Interface) (gpu.Access, error)) (gpu.Access, error) {
	c.asked++
	return c.NVML.Query(ctx, about, find)
}

// longAgo is before any change that a test makes.
var longAgo = time.Now().Add(-time.Hour)

// age makes all files below root look as if nothing had changed since longAgo.
func age(t testing.TB, root string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chtimes(path, longAgo, longAgo)
	}))
}

// add creates a file below root and its directories.
func add(path ...string) func(*simulator.Node) error {
	return func(m *simulator.Node) error {
		file := filepath.Join(append([]string{m.DriverRoot()}, path...)...)
		return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o755))
	}
}

// replace renames a new file to one below root.
func replace(path string) func(*simulator.Node) error {
	return func(m *simulator.Node) error {
		file := filepath.Join(m.DriverRoot(), path)
		return errors.Join(os.WriteFile(file+".new", nil, 0o755), os.Rename(file+".new", file))
	}
}

func take(path string) func(*simulator.Node) error {
	return func(m *simulator.Node) error { return os.Remove(filepath.Join(m.DriverRoot(), path)) }
}

// mknod replaces a device node by one with another number.
func mknod(path string, minor uint32) func(*simulator.Node) error {
	return func(m *simulator.Node) error {
		file := filepath.Join(m.DriverRoot(), path)
		_ = os.Remove(file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return unix.Mknod(file, unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor)))
	}
}

const libraryDir = "usr/lib/x86_64-linux-gnu"

// After each change the next answer is the right one, and without a change that matters nothing is asked again.
func TestAnswersFollowTheDriver(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*simulator.Node) error
		want   string // in the description, or in the error
		asked  int    // by the driver and the GPU
	}{
		{"nothing changes", func(*simulator.Node) error { return nil }, "", 0},
		{"another version is installed and loaded", func(m *simulator.Node) error {
			return m.ReloadDriver("590.44.01", nil)
		}, "mount /usr/lib/x86_64-linux-gnu/libcuda.so.590.44.01", 1},
		{"another module is loaded", func(m *simulator.Node) error {
			return os.WriteFile(filepath.Join(m.Proc(), "driver/nvidia/version"), []byte("NVRM version: 590"), 0o644)
		}, "", 1},
		{"another root is mounted", func(m *simulator.Node) error {
			other := filepath.Join(m.DriverRoot(), "../other")
			if err := errors.Join(os.CopyFS(other+"/usr", os.DirFS(filepath.Join(m.DriverRoot(), "usr"))),
				os.Rename(filepath.Join(other, libraryDir, "libcuda.so.580.95.05"),
					filepath.Join(other, libraryDir, "libother.so.580.95.05"))); err != nil {
				return err
			}
			age(t, other)
			usr := filepath.Join(m.DriverRoot(), "usr")
			return errors.Join(os.Rename(usr, other+"/old"), os.Rename(other+"/usr", usr),
				os.Chtimes(m.DriverRoot(), longAgo, longAgo))
		}, "libother.so.580.95.05", 1},
		{"a library is added", add(libraryDir, "libnew.so.580.95.05"), "libnew.so.580.95.05", 1},
		{"a library is replaced by another file", replace(libraryDir + "/libcuda.so.580.95.05"), "", 1},
		{"a library is written in place: its path is the same", add(libraryDir, "libcuda.so.580.95.05"), "", 0},
		{"a library of vdpau is added", add(libraryDir, "vdpau/libvdpau_nvidia.so.580.95.05"),
			"vdpau/libvdpau_nvidia.so.580.95.05", 1},
		{"a module of X.Org is added", add(libraryDir, "nvidia/xorg/nvidia_drv.so"), "xorg/nvidia_drv.so", 1},
		{"ldconfig runs", replace("etc/ld.so.cache"), "", 1},
		{"firmware is added", add("lib/firmware/nvidia/580.95.05/gsp_tu10x.bin"), "580.95.05/gsp_tu10x.bin", 1},
		{"Vulkan's file is added", add("usr/share/vulkan/icd.d/nvidia_icd.json"), "icd.d/nvidia_icd.json", 1},
		{"EGL's file is added", add("usr/share/glvnd/egl_vendor.d/10_nvidia.json"), "10_nvidia.json", 1},
		{"a program is added", add("usr/bin/nvidia-debugdump"), "mount /usr/bin/nvidia-debugdump", 1},
		{"nvidia-persistenced starts", add("run/nvidia-persistenced/socket"), "nvidia-persistenced/socket", 1},
		{"a control device node is gone", take("dev/nvidia-uvm"), "/host/dev/nvidia-uvm is not a character device", 1},
		{"device nodes are made anew", mknod("dev/nvidia0", 7), "", 1},
		{"the device node of the GPU gets another group", func(m *simulator.Node) error {
			return os.Chown(filepath.Join(m.DriverRoot(), "dev/nvidia0"), -1, 44)
		}, "", 1},
		{"the device node of the GPU is gone", take("dev/nvidia0"),
			"/host/dev/nvidia0 is not a character device", 1},
		{"the kernel shows the GPU to displays", mknod("dev/dri/card0", 0), "", 2},
		{"minor numbers are swapped", func(m *simulator.Node) error {
			return m.ReloadDriver("", []string{"0", "1"})
		}, "node /dev/nvidia1 from", 1},
		{"the GPU is removed", func(m *simulator.Node) error { return m.Remove("0") },
			"find the device node of gpu-", 0},
		{"another GPU is removed", func(m *simulator.Node) error { return m.Remove("1") }, "node /dev/nvidia0 from", 0},
		{"a GPU is added", func(m *simulator.Node) error {
			_, err := m.Add("0", hwprofile.Address{})
			return err
		}, "node /dev/nvidia0 from", 0},
		{"another device is made", add("dev/loop7"), "", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, gpus, kit := machine(t, "t4-x2")
			look, err := gpus.Discover(t.Context())
			must(t, err)
			count := &counted{NVML: gpus}
			kit.NVML = count
			all := func() string {
				common, err := kit.DriverAccess(t.Context())
				device, err2 := kit.Access(t.Context(), look.Devices[0])
				common.Append(device)
				if err := errors.Join(err, err2); err != nil {
					return err.Error()
				}
				return describe(common)
			}
			for _, name := range []string{"etc/ld.so.cache", "lib/firmware/nvidia/580.95.05/gsp_ga10x.bin",
				"usr/share/vulkan/icd.d/other.json", "dev/dri/by-path/other", libraryDir + "/vdpau/other"} {
				must(t, add(name)(m))
			}
			age(t, m.DriverRoot())
			first := all()
			if second := all(); second != first || count.asked != 2 {
				t.Fatalf("asked %d times, want 2:\n%s\n\n%s", count.asked, first, second)
			}
			must(t, row.change(m))
			got := all()
			if !strings.Contains(got, row.want) || row.want != "" && !strings.Contains(row.want, "nvidia0 from") &&
				strings.Contains(first, row.want) {
				t.Errorf("want %q in\n%s", row.want, got)
			}
			if asked := count.asked - 2; asked != row.asked {
				t.Errorf("asked %d times, want %d", asked, row.asked)
			}
		})
	}
}

// A directory can change twice within the resolution of its time. What is found just after a change is not kept.
func TestAnswersWaitForTheClock(t *testing.T) {
	m, gpus, kit := machine(t, "t4-x2")
	count := &counted{NVML: gpus}
	kit.NVML = count
	age(t, m.DriverRoot())
	libraries := filepath.Join(m.DriverRoot(), libraryDir)
	now := time.Now()
	must(t, os.Chtimes(libraries, now, now))
	_, err := kit.DriverAccess(t.Context())
	must(t, err)
	must(t, add(libraryDir, "libnew.so.580.95.05")(m))
	must(t, os.Chtimes(libraries, now, now))
	access, err := kit.DriverAccess(t.Context())
	must(t, err)
	if !strings.Contains(describe(access), "libnew.so") {
		t.Error("a library that came in the same tick is not seen")
	}
}

// A driver root that gets device nodes of its own: they count then, and no longer those of the host.
func TestAnswersFollowDev(t *testing.T) {
	m, gpus, kit := machine(t, "t4-x2")
	look, err := gpus.Discover(t.Context())
	must(t, err)
	host := tmpfs.Dir(t)
	kit.Driver.HostDev = host
	must(t, os.Rename(filepath.Join(m.DriverRoot(), "dev"), filepath.Join(host, "dev")))
	must(t, os.MkdirAll(filepath.Join(m.DriverRoot(), "dev/dri"), 0o755))
	age(t, host)
	age(t, m.DriverRoot())
	want := "/dev/nvidia1"
	for range 2 {
		access, err := kit.Access(t.Context(), look.Devices[1])
		must(t, err)
		if got := access.Nodes[0].HostPath; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		must(t, errors.Join(mknod("dev/nvidiactl", 255)(m), mknod("dev/nvidia1", 1)(m)))
		want = "/host/dev/nvidia1"
	}
}

// A caller that changes its answer does not change the next one.
func TestAnswersAreCopies(t *testing.T) {
	m, _, kit := machine(t, "t4-x2")
	age(t, m.DriverRoot())
	for range 3 {
		access, err := kit.DriverAccess(t.Context())
		must(t, err)
		if strings.Contains(describe(access), "CHANGED") {
			t.Error("a caller's change is remembered")
		}
		access.Env[0] = "CHANGED=1"
	}
}

// partitioned is a machine whose first GPU has two partitions of the profile.
func partitioned(t testing.TB) (*simulator.Node, *nvml.Machine, *toolkit.Toolkit, []gpu.Device) {
	t.Helper()
	m, gpus, kit := machine(t, "dgx-h100")
	look, err := gpus.Discover(t.Context())
	must(t, err)
	whole := look.Devices[0]
	must(t, gpus.Set(t.Context(), whole.UUID, gpu.DesiredState{MIG: gpu.MIGOn}))
	var devices []gpu.Device
	for _, start := range []int{0, 4} {
		at := gpu.Placement{Parent: whole.UUID, Profile: "1g.10gb", Start: start, Size: 1}
		id, err := gpus.CreatePartition(t.Context(), at, "")
		must(t, err)
		d := whole
		d.Name, d.Type, d.UUID = gpu.PartitionName(whole.Name, at), gpu.TypeMIG, id
		d.Partition = &gpu.Partition{Placement: at}
		devices = append(devices, d)
	}
	age(t, m.DriverRoot())
	return m, gpus, kit, append(devices, whole)
}

// Partitions share what is known of their GPU. Their own device nodes are read each time.
func TestAnswersOfPartitions(t *testing.T) {
	m, gpus, kit, devices := partitioned(t)
	count := &counted{NVML: gpus}
	kit.NVML = count
	nodes := map[string]bool{}
	for _, d := range devices[:2] {
		access, err := kit.Access(t.Context(), d)
		must(t, err)
		nodes[access.Nodes[1].Path] = true
	}
	if count.asked != 1 || len(nodes) != 2 {
		t.Errorf("asked %d times, want 1; device nodes %v, want two", count.asked, nodes)
	}
	d := devices[0]
	must(t, gpus.DestroyPartition(t.Context(), d.Partition.Placement, ""))
	if _, err := kit.Access(t.Context(), d); err == nil {
		t.Error("a partition that is gone can still be had")
	}
	at := gpu.Placement{Parent: d.Partition.Parent, Profile: "2g.20gb", Size: 2}
	id, err := gpus.CreatePartition(t.Context(), at, "")
	must(t, err)
	d.UUID = id
	access, err := kit.Access(t.Context(), d)
	must(t, err)
	if nodes[access.Nodes[1].Path] {
		t.Errorf("another partition has the device node of an earlier one, %s", access.Nodes[1].Path)
	}
	must(t, m.ReloadDriver("", []string{"0", "1"}))
	access, err = kit.Access(t.Context(), d)
	must(t, err)
	if access.Nodes[0].Path != "/dev/nvidia1" {
		t.Errorf("got %s after the minor numbers were swapped, want /dev/nvidia1", access.Nodes[0].Path)
	}
}

// What one claim costs: of a GPU, of a partition, and the driver's files, while nothing changes and after a change.
func BenchmarkAccess(b *testing.B) {
	m, _, kit, devices := partitioned(b)
	for _, row := range []struct {
		name string
		get  func() (gpu.Access, error)
	}{
		{"driver", func() (gpu.Access, error) { return kit.DriverAccess(b.Context()) }},
		{"gpu", func() (gpu.Access, error) { return kit.Access(b.Context(), devices[2]) }},
		{"partition", func() (gpu.Access, error) { return kit.Access(b.Context(), devices[0]) }},
		{"driver changed", func() (gpu.Access, error) {
			now := time.Now()
			must(b, os.Chtimes(filepath.Join(m.DriverRoot(), libraryDir), now, now))
			return kit.DriverAccess(b.Context())
		}},
	} {
		b.Run(row.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := row.get(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
