// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/simulator"
)

const (
	busGPU   = "bus/pci/devices/0000:38:00.0/"
	override = busGPU + "driver_override"
	toVFIO   = "bus/pci/drivers/vfio-pci/bind"
	fromVFIO = "bus/pci/drivers/vfio-pci/unbind"
	toNVIDIA = "bus/pci/drivers/nvidia/bind"
	from     = "bus/pci/drivers/nvidia/unbind"
	at38     = "0000:38:00.0"
)

// The kernel refuses what is not possible, and NVML counts the GPUs that NVIDIA's driver has.
func TestBindings(t *testing.T) {
	n := closed(t, "l40s-x4")
	lib := n.NVML()
	sys := filepath.Join(n.DriverRoot(), "sys")
	must(t, n.LayOut(simulator.Programs{}))
	uuid := func() string { // of the first GPU
		success(t, lib.Init())
		defer lib.Shutdown() // it keeps NVIDIA's driver from letting GPUs go
		id, ret := gpu(t, n, 0).GetUUID()
		success(t, ret)
		return id
	}
	first := uuid()
	for _, row := range []struct {
		name, file, text string
		err              error
		driver           string // empty: none
		count            int
	}{
		{"a file that cannot be written", busGPU + "vendor", "1", syscall.EACCES, "nvidia", 4},
		{"no such GPU", from, "0000:39:00.0", syscall.ENODEV, "nvidia", 4},
		{"vfio-pci takes what is given to it only", toVFIO, at38, syscall.ENODEV, "nvidia", 4},
		{"given to it", override, "vfio-pci", nil, "nvidia", 4},
		{"bound already", toVFIO, at38, syscall.EBUSY, "nvidia", 4},
		{"not of this driver", fromVFIO, at38, syscall.ENODEV, "nvidia", 4},
		{"unbound", from, at38 + "\n", nil, "", 3},
		{"unbound already", from, at38, syscall.ENODEV, "", 3},
		{"not for another driver then", toNVIDIA, at38, syscall.ENODEV, "", 3},
		{"bound to it", toVFIO, at38, nil, "vfio-pci", 3},
		{"returned", fromVFIO, at38, nil, "", 3},
		{"reset", busGPU + "reset", "1", nil, "", 3},
		{"no reset", busGPU + "reset", "0", syscall.EINVAL, "", 3},
		{"no number", busGPU + "reset", "yes", syscall.EINVAL, "", 3},
		{"given to any", override, "\n", nil, "", 3},
		{"bound to its driver", toNVIDIA, at38, nil, "nvidia", 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := n.WriteSysfs(filepath.Join(sys, row.file), row.text); !errors.Is(err, row.err) {
				t.Errorf("got %v, want %v", err, row.err)
			}
			link, _ := os.Readlink(filepath.Join(sys, busGPU, "driver"))
			if got := filepath.Base(link); got != row.driver && (row.driver != "" || link != "") {
				t.Errorf("got the driver %s, want %s", got, row.driver)
			}
			if _, err := os.Stat(filepath.Join(sys, busGPU, "iommu_group/devices", at38)); err != nil {
				t.Error(err)
			}
			_, err := os.Stat(filepath.Join(n.DriverRoot(), "dev/vfio/17"))
			if (err == nil) != (row.driver == "vfio-pci") {
				t.Errorf("the node of its group: got %v with the driver %q", err, row.driver)
			}
			if got := uuid(); (got == first) != (row.count == 4) {
				t.Errorf("the first GPU is %s", got)
			}
			success(t, lib.Init())
			defer lib.Shutdown()
			if count, ret := lib.DeviceGetCount(); ret != nvml.SUCCESS || count != row.count {
				t.Errorf("got %d GPUs (%v), want %d", count, ret, row.count)
			}
		})
	}
}

// A driver lets no GPU go while somebody has it open.
func TestUnbindWaits(t *testing.T) {
	n := closed(t, "l40s-x4")
	must(t, n.LayOut(simulator.Programs{}))
	sys := filepath.Join(n.DriverRoot(), "sys")
	must(t, n.WriteSysfs(filepath.Join(sys, override), "vfio-pci"))
	for _, row := range []struct {
		use        func() (release func())
		from, then string
	}{
		{n.Use, from, toVFIO},
		{func() func() { return n.UseVFIO(at38) }, fromVFIO, override},
	} {
		release := row.use()
		unbound := make(chan error, 1)
		go func() { unbound <- n.WriteSysfs(filepath.Join(sys, row.from), at38) }()
		select {
		case err := <-unbound:
			t.Fatalf("%s: got %v while a process has it open", row.from, err)
		case <-time.After(50 * time.Millisecond): // it would have ended by now
		}
		release()
		must(t, <-unbound)
		must(t, n.WriteSysfs(filepath.Join(sys, row.then), at38))
	}
}

// A GPU vanishes while vfio-pci has it, and comes back with NVIDIA's driver; others are removed for good.
func TestVanishedFromVFIO(t *testing.T) {
	n := closed(t, "l40s-x4")
	lay := func() { t.Helper(); must(t, n.LayOut(simulator.Programs{})) }
	lay()
	factory := n.String()
	sys := filepath.Join(n.DriverRoot(), "sys")
	give := func() {
		t.Helper()
		for _, w := range [][2]string{{override, "vfio-pci"}, {from, at38}, {toVFIO, at38}} {
			must(t, n.WriteSysfs(filepath.Join(sys, w[0]), w[1]))
		}
	}
	there := func(want bool) {
		t.Helper()
		for _, file := range []string{"sys/bus/pci/devices/" + at38, "sys/kernel/iommu_groups/17", "dev/vfio/17"} {
			_, err := os.Lstat(filepath.Join(n.DriverRoot(), file))
			if got := err == nil; got != want {
				t.Errorf("%s exists: got %t, want %t", file, got, want)
			}
		}
	}
	give()
	there(true)
	must(t, n.Unplug("gpu-38-00-0"))
	lay()
	there(false)
	if got := n.String(); !strings.Contains(got, "gpu-38-00-0 driver=vfio-pci unplugged\n") {
		t.Errorf("unplugged: got %s", got)
	}
	if err := n.WriteSysfs(filepath.Join(sys, fromVFIO), at38); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("unbind: got %v, want %v", err, syscall.ENODEV)
	}
	must(t, n.Plug(at38))
	lay()
	if got := n.String(); got != factory {
		t.Errorf("plugged: got %s, want %s", got, factory)
	}
	give()
	must(t, n.Reboot())
	lay()
	if got := n.String(); got != factory {
		t.Errorf("rebooted: got %s, want %s", got, factory)
	}
	give()
	for _, which := range []string{"gpu-38-00-0", "0", "0", "0"} {
		must(t, n.Remove(which))
		there(false)
	}
	if left, _ := filepath.Glob(filepath.Join(sys, "kernel/iommu_groups/*")); len(left) != 0 {
		t.Errorf("without GPUs: got the groups %q", left)
	}
}
