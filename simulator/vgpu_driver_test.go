// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	gputypes "github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

const (
	typesOf3D = "bus/pci/devices/0000:3d:00.0/mdev_supported_types/"
	one       = "11111111-0000-4000-8000-000000000001"
	two       = "22222222-0000-4000-8000-000000000002"
	removeOne = "bus/mdev/devices/" + one + "/remove"
)

// The kernel refuses what is not possible, and a GPU has vGPUs of one type at a time.
func TestMediatedDevices(t *testing.T) {
	n := closed(t, "a16-x4")
	must(t, n.LayOut(simulator.Programs{}))
	sys := filepath.Join(n.DriverRoot(), "sys")
	for _, row := range []struct {
		name, file, text string
		err              error
		want             string // UUIDs on the machine, and how many more of 8Q the GPU can have
	}{
		{"no UUID", typesOf3D + "nvidia-704/create", "vm-1", syscall.EINVAL, "2"},
		{"no such type", typesOf3D + "nvidia-1/create", one, syscall.ENOENT, "2"},
		{"the first", typesOf3D + "nvidia-704/create", one + "\n", nil, one + " 1"},
		{"its UUID on another GPU", strings.Replace(typesOf3D, "3d", "3e", 1) + "nvidia-704/create", one,
			syscall.EEXIST, one + " 1"},
		{"another type", typesOf3D + "nvidia-703/create", two, syscall.ENOSPC, one + " 1"},
		{"the second", typesOf3D + "nvidia-704/create", two, nil, one + " " + two + " 0"},
		{"no room", typesOf3D + "nvidia-704/create", strings.Replace(two, "2", "3", 1), syscall.ENOSPC,
			one + " " + two + " 0"},
		{"a program has it open", removeOne, "1", syscall.EBUSY, one + " " + two + " 0"},
		{"not any more", removeOne, "1", nil, two + " 1"},
		{"removed already", removeOne, "1", syscall.ENOENT, two + " 1"},
	} {
		if errors.Is(row.err, syscall.EBUSY) {
			must(t, n.OpenVGPU(one, true))
		}
		if err := n.WriteSysfs(filepath.Join(sys, row.file), row.text); !errors.Is(err, row.err) {
			t.Errorf("%s: got %v, want %v", row.name, err, row.err)
		}
		if errors.Is(row.err, syscall.EBUSY) {
			must(t, n.OpenVGPU(one, false))
		}
		var got []string
		dirs, _ := filepath.Glob(filepath.Join(sys, "bus/mdev/devices/*"))
		for _, dir := range dirs {
			got = append(got, filepath.Base(dir))
		}
		got = append(got, readFile(t, filepath.Join(sys, typesOf3D, "nvidia-704/available_instances")))
		if got := strings.Join(got, " "); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
	again, err := simulator.Attach(n.Dir()) // another process, or after a restart
	must(t, err)
	if got := again.String(); !strings.Contains(got, "gpu-3d-00-0 vgpu nvidia-704\n") {
		t.Errorf("after a restart: got %s", got)
	}
}

func TestCrashesOfVGPUs(t *testing.T) {
	open := func() *vmDriver { return newVMDriverOf(t, "a16-x4", "0000:3d:00") }
	crashWith(t, open, "gpu-3d-00-0-vgpu-a16-4q-0", func(prepared string) bool {
		return strings.Contains(prepared, "\"path\": \"/dev/vfio/60\",\n      \"hostPath\": \"<root>/dev/vfio/60\"") &&
			strings.Contains(prepared, " NVIDIA A16-4Q ")
	})
}

// A vGPU that somebody else has made is neither made nor removed, and takes the place of the whole GPU.
func TestExistingVGPU(t *testing.T) {
	d := newVMDriverOf(t, "a16-x4", "0000:3d:00")
	create := filepath.Join(d.node.DriverRoot(), "sys", typesOf3D, "nvidia-704/create")
	must(t, d.node.WriteSysfs(create, one))
	found, err := d.machine().Discover(t.Context())
	must(t, err)
	d.inv = inventory.Defaults(found.Devices)
	for _, name := range []string{"gpu-3d-00-0", "gpu-3d-00-0-vfio"} {
		if _, ok := d.inv.Find(name); ok {
			t.Errorf("%s is offered", name)
		}
	}
	device := "gpu-3d-00-0-vgpu-" + one
	v, _ := d.inv.Find(device)
	if v.VGPU == nil || v.VGPU.Type != (gputypes.VGPUType{Name: "A16-8Q", Memory: 8 << 30, Max: 2}) ||
		v.VGPU.Group != 60 || v.Physical() != v.VGPU.Parent {
		t.Fatalf("got %+v", v.VGPU)
	}
	must(t, d.serve(t.Context(), device))
	if got := d.String(); !strings.Contains(got, "/dev/vfio/60") || !strings.HasSuffix(got, ", 1 records") {
		t.Errorf("prepared: got %s", got)
	}
	must(t, d.serve(t.Context(), ""))
	if got := d.String(); !strings.Contains(got, one) || !strings.HasSuffix(got, ", 0 records") {
		t.Errorf("released: got %s, want the vGPU to stay", got)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return strings.TrimSpace(string(text))
}
