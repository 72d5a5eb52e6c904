// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

const vmClass = "vfio." + driver

// passable returns GPUs that virtual machines can have.
func passable(count int, partitions bool) []gpu.Device {
	gpus := partitionable(card, count)
	for i := range gpus {
		gpus[i].VFIO = &gpu.VFIO{Group: 40 + i, Vendor: "10de", Device: "2330",
			Functions: []gpu.PCIFunction{{PCI: gpus[i].PCI, Driver: "nvidia"}}}
		if !partitions {
			gpus[i].MIG, gpus[i].Use.Partitions = gpu.MIG{}, gpu.PartitionsAuto
		}
	}
	return gpus
}

// A GPU is used in one shape: whole, in shares, in partitions, or by a virtual machine.
func TestAllocationForVirtualMachines(t *testing.T) {
	for _, row := range []struct {
		partitions          bool
		first, second, want string
	}{
		{false, vmClass, "gpu", "does not fit"},
		{false, vmClass, "30Gi", "does not fit"},
		{false, vmClass, vmClass, "does not fit"},
		{false, "gpu", vmClass, "does not fit"},
		{false, "30Gi", vmClass, "does not fit"},
		{false, "30Gi", "30Gi", "-1"},
		{true, vmClass, "gpu", "does not fit"},
		{true, vmClass, "30Gi", "does not fit"},
		{true, vmClass, "1g.10gb", "does not fit"},
		{true, "1g.10gb", vmClass, "does not fit"},
		{true, "30Gi", vmClass, "does not fit"},
	} {
		inv := divided(passable(1, row.partitions))
		n := &node{cards: 1, inv: inv, published: inAPI(inv.Pools(nodeName)), held: nothingAllocated()}
		if got, _, _ := n.allocate(t, row.first); got != "-1" && got != "-1/1g.10gb@6" {
			t.Errorf("%s: got %s, want the GPU", row.first, got)
		}
		if got, _, _ := n.allocate(t, row.second); got != row.want {
			t.Errorf("%s after %s, with partitions %t: got %s, want %s", row.second, row.first, row.partitions, got,
				row.want)
		}
	}
}

func TestWhoGetsGPUsForVirtualMachines(t *testing.T) {
	published := inAPI(divided(passable(2, false)).Pools(nodeName))
	for _, row := range []struct{ name, requests, want string }{
		{"all whole GPUs", "{name: a, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}",
			"a=gpu-10-00-0 a=gpu-11-00-0"},
		{"the strongest one", "{name: a, exactly: {deviceClassName: strongest.gpu.nvidia.com}}", "a=gpu-10-00-0"},
		{"all of virtual machines", "{name: a, exactly: {deviceClassName: vfio.gpu.nvidia.com, allocationMode: All}}",
			"a=gpu-11-00-0-vfio a=gpu-10-00-0-vfio"},
		{"by IOMMU group", "{name: a, exactly: {deviceClassName: vfio.gpu.nvidia.com, selectors: [{cel: {expression: " +
			`"device.attributes['gpu.nvidia.com'].iommuGroup == 40"}}]}}`, "a=gpu-10-00-0-vfio"},
		{"by PCI IDs", "{name: a, exactly: {deviceClassName: vfio.gpu.nvidia.com, selectors: [{cel: {expression: " +
			`"device.attributes['gpu.nvidia.com'].pciVendorID == '10de' && ` +
			`device.attributes['gpu.nvidia.com'].pciDeviceID == '2331'"}}]}}`, "does not fit"},
	} {
		if got := allocate(t, published, "["+row.requests+"]", nil); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

// What is published for virtual machines: which devices, and the counters that each of them consumes.
func TestDevicesForVirtualMachines(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*gpu.Device)
		want   string
	}{
		{"a GPU", func(*gpu.Device) {}, "gpu-10-00-0:gpu=1 gpu-10-00-0-vfio:gpu=1"},
		{"the machine has no vfio-pci", func(d *gpu.Device) { d.VFIO = nil }, "gpu-10-00-0:"},
		{"something is in the way", func(d *gpu.Device) { d.VFIO.Refusal = "an NVSwitch" }, "gpu-10-00-0:"},
		{"the administrator keeps it", func(d *gpu.Device) { d.Use.NoPassthrough = true }, "gpu-10-00-0:"},
		{"it is only for shares", func(d *gpu.Device) {
			d.Use = gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2, SharedOnly: true}
		}, "gpu-10-00-0:"},
		{"it is in a virtual machine", func(d *gpu.Device) { d.VFIO.Bound = true },
			"gpu-10-00-0:gpu=1 gpu-10-00-0-vfio:gpu=1"},
		{"somebody else has bound it", func(d *gpu.Device) { d.VFIO = &gpu.VFIO{Bound: true} }, "gpu-10-00-0-vfio:"},
		{"a program keeps it from virtual machines", func(d *gpu.Device) { d.VFIO.Blocked = "exporter" },
			"gpu-10-00-0:gpu=1 gpu-10-00-0-vfio:gpu=1gpu.nvidia.com/vfio-blocked!"},
		{"a program keeps its MIG mode off", func(d *gpu.Device) { d.Blocked = "exporter" },
			"gpu-10-00-0:gpu=1 gpu-10-00-0-vfio:gpu=1"},
		{"others have partitioned it", func(d *gpu.Device) { d.MIG = gpu.MIG{Capable: true, Enabled: true} }, ""},
		{"it is lost", func(d *gpu.Device) { d.Lost = true }, "gpu-10-00-0:gpu=1! gpu-10-00-0-vfio:gpu=1!"},
	} {
		gpus := passable(1, false)
		row.change(&gpus[0])
		inv := inventory.New(gpus).WithPartitions(func(gpu.Placement) bool { return false })
		var got []string
		for _, slice := range inAPI(inv.Pools(nodeName)) {
			for _, d := range slice.Spec.Devices {
				if d.Name == inventory.Monitor {
					continue
				}
				text := d.Name + ":" + consumption(d)
				for _, taint := range d.Taints {
					text += strings.TrimPrefix(taint.Key, inventory.TaintLost) + "!"
				}
				got = append(got, text)
				checkSize(t, d)
			}
		}
		if got := strings.Join(got, " "); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

func consumption(d resourceapi.Device) (text string) {
	for _, c := range d.ConsumesCounters {
		for name, amount := range c.Counters {
			text += fmt.Sprintf("%s=%s", name, amount.Value.String())
		}
	}
	return text
}

// GPUs in virtual machines answer nobody.
func TestPresentWithoutVirtualMachines(t *testing.T) {
	gpus := passable(2, false)
	gpus[0].VFIO.Bound = true
	inv := divided(gpus)
	if got := names(inv.Present()); got != "11" {
		t.Errorf("present: got %s, want 11", got)
	}
	if got := names(inv.GPUs()); got != "10 11" {
		t.Errorf("GPUs: got %s, want 10 11", got)
	}
}
