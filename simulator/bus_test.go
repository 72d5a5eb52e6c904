// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"errors"
	"os"
	"path/filepath"
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
		{"bound already", toVFIO, at38, syscall.EBUSY, "nvidia", 4},
		{"not of this driver", fromVFIO, at38, syscall.ENODEV, "nvidia", 4},
		{"unbound", from, at38 + "\n", nil, "", 3},
		{"unbound already", from, at38, syscall.ENODEV, "", 3},
		{"vfio-pci takes what is given to it only", toVFIO, at38, syscall.ENODEV, "", 3},
		{"given to it", override, "vfio-pci", nil, "", 3},
		{"not for another driver then", toNVIDIA, at38, syscall.ENODEV, "", 3},
		{"bound to it", toVFIO, at38, nil, "vfio-pci", 3},
		{"returned", fromVFIO, at38, nil, "", 3},
		{"reset", busGPU + "reset", "1", nil, "", 3},
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

// NVIDIA's driver waits until nobody has the GPU open.
func TestUnbindWaits(t *testing.T) {
	n := closed(t, "l40s-x4")
	must(t, n.LayOut(simulator.Programs{}))
	release := n.Use()
	unbound := make(chan error, 1)
	go func() { unbound <- n.WriteSysfs(filepath.Join(n.DriverRoot(), "sys", from), at38) }()
	select {
	case err := <-unbound:
		t.Fatalf("got %v while a process has NVML open", err)
	case <-time.After(50 * time.Millisecond): // it would have ended by now
	}
	release()
	must(t, <-unbound)
}
