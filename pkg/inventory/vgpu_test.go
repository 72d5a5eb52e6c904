// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// a16 returns a GPU with vGPU types, on which somebody has made vGPUs of these types.
func a16(t *testing.T, existing ...string) gpu.Device {
	t.Helper()
	d := simtest.Discover(t, "a16-x4")[0]
	for i, name := range existing {
		at := slices.IndexFunc(d.VGPUs.Types, func(t gpu.VGPUType) bool { return t.Name == name })
		d.VGPUs.Existing = append(d.VGPUs.Existing, gpu.VGPU{Parent: d.UUID, Type: d.VGPUs.Types[at], Function: d.PCI,
			Group: 60 + i, MDev: fmt.Sprint("mdev-", i)})
	}
	return d
}

// The scheduler gives a GPU in one shape, and never more than its frame buffer.
func TestAllocationOfVGPUs(t *testing.T) {
	exactly := func(class, more string) string {
		return "[{name: a, exactly: {deviceClassName: " + class + more + "}}]"
	}
	for _, row := range []struct {
		existing     []string
		claims, want string // one after the other; "-" does not fit
	}{
		{nil, "4Q 4Q 4Q 4Q 4Q", "a16-4q-0 a16-4q-1 a16-4q-2 a16-4q-3 -"},
		{nil, "16Q 1Q", "a16-16q-0 -"},
		{nil, "8Q 4Q 4Q 1Q", "a16-8q-0 a16-4q-0 a16-4q-1 -"}, // Prepare refuses the second type
		{nil, "4Q whole vfio 5Gi", "a16-4q-0 - - -"},
		{nil, "whole 1Q", "gpu-3d-00-0 -"},
		{nil, "vfio 1Q", "gpu-3d-00-0-vfio -"},
		{nil, "5Gi 5Gi 1Q", "gpu-3d-00-0 gpu-3d-00-0 -"},
		{[]string{"A16-8Q"}, "8Q 8Q 8Q", "mdev-0 a16-8q-0 -"},
		{[]string{"A16-8Q"}, "4Q whole vfio 5Gi", "- - - -"},
		{[]string{"A16-4Q", "A16-4Q"}, "4Q 4Q 4Q 4Q 4Q", "mdev-0 mdev-1 a16-4q-0 a16-4q-1 -"},
		{[]string{"A16-4Q", "A16-8Q"}, "4Q 4Q 8Q 8Q", "mdev-0 - mdev-1 -"},
	} {
		published := inAPI(inventory.Defaults([]gpu.Device{a16(t, row.existing...)}).Pools(nodeName))
		held := nothingAllocated()
		var got []string
		for c := range strings.FieldsSeq(row.claims) {
			requests := exactly("vgpu.nvidia.com", ", selectors: [{cel: {expression: "+
				`"device.attributes['gpu.nvidia.com'].profile == 'A16-`+c+`'"}}]`)
			switch c {
			case "whole":
				requests = exactly(driver, "")
			case "vfio":
				requests = exactly(vmClass, "")
			case "5Gi":
				requests = exactly(driver, ", capacity: {requests: {memory: 5Gi}}")
			}
			results, problem := allocateIn(t, held, published, newClaim(t, requests))
			name := "-"
			for _, r := range results {
				held.Add(r)
				name = strings.TrimPrefix(r.Device, "gpu-3d-00-0-vgpu-")
			}
			if problem != "" && problem != "does not fit" {
				t.Fatal(problem)
			}
			got = append(got, name)
		}
		if got := strings.Join(got, " "); got != row.want {
			t.Errorf("%s with %v: got %s, want %s", row.claims, row.existing, got, row.want)
		}
	}
}

// What is published of a GPU with vGPUs, the largest types only, and what each device consumes.
func TestDevicesOfVGPUs(t *testing.T) {
	for _, row := range []struct {
		name     string
		existing []string
		change   func(*gpu.Device)
		want     string
	}{
		{"nobody has one", nil, func(*gpu.Device) {}, "gpu-3d-00-0:frame-buffer=16Gi,gpu=1 " +
			"gpu-3d-00-0-vfio:frame-buffer=16Gi,gpu=1 a16-8q-0:frame-buffer=8Gi a16-8q-1:frame-buffer=8Gi " +
			"a16-16q-0:frame-buffer=16Gi"},
		{"a claim has one", []string{"A16-8Q"}, func(d *gpu.Device) { d.VGPUs.Existing[0].Made = true },
			"gpu-3d-00-0:frame-buffer=16Gi,gpu=1 gpu-3d-00-0-vfio:frame-buffer=16Gi,gpu=1 " +
				"a16-8q-0:frame-buffer=8Gi a16-8q-1:frame-buffer=8Gi a16-16q-0:frame-buffer=16Gi vgpu-type!"},
		{"somebody else has made one", []string{"A16-8Q"}, func(*gpu.Device) {},
			"mdev-0: a16-8q-0:frame-buffer=8Gi a16-8q-1:frame-buffer=8Gi a16-16q-0:frame-buffer=16Gi vgpu-type!"},
		{"a virtual function", []string{"A16-16Q"}, func(d *gpu.Device) {
			d.VGPUs.Existing[0].MDev, d.VGPUs.Existing[0].Number, d.VGPUs.Types = "", 3, nil
		}, "vf3:"},
		{"the administrator keeps it", nil, func(d *gpu.Device) { d.Use.NoPassthrough = true }, "gpu-3d-00-0:"},
		{"and somebody has made one", []string{"A16-8Q"}, func(d *gpu.Device) { d.Use.NoPassthrough = true }, ""},
		{"it is only for shares", nil, func(d *gpu.Device) {
			d.Use = gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2, SharedOnly: true}
		}, "gpu-3d-00-0:"},
		{"partitions are made on it", nil, func(d *gpu.Device) {
			d.Use.Partitions, d.VFIO = gpu.PartitionsDynamic, nil
		}, "gpu-3d-00-0:"},
	} {
		d := a16(t, row.existing...)
		d.VGPUs.Types = d.VGPUs.Types[len(d.VGPUs.Types)-2:]
		row.change(&d)
		inv := inventory.New([]gpu.Device{d}).WithPartitions(func(gpu.Placement) bool { return false })
		var got []string
		for _, slice := range inAPI(inv.Pools(nodeName)) {
			for _, d := range slice.Spec.Devices {
				if d.Name == inventory.Monitor {
					continue
				}
				var all []string
				for name, amount := range consumptionOf(d) {
					all = append(all, name+"="+amount)
				}
				slices.Sort(all)
				text := strings.TrimPrefix(d.Name, "gpu-3d-00-0-vgpu-") + ":" + strings.Join(all, ",")
				for _, taint := range d.Taints {
					text += " " + strings.TrimPrefix(taint.Key, "gpu.nvidia.com/") + "!"
				}
				got = append(got, text)
				checkSize(t, d)
			}
		}
		if got := strings.Join(got, " "); got != row.want {
			t.Errorf("%s:\ngot  %s\nwant %s", row.name, got, row.want)
		}
	}
}

func consumptionOf(d resourceapi.Device) map[string]string {
	all := map[string]string{}
	for _, c := range d.ConsumesCounters {
		for name, amount := range c.Counters {
			all[name] = amount.Value.String()
		}
	}
	return all
}

// A GPU of which only vGPUs are offered is there for those who look at all GPUs of the machine.
func TestPresentWithVGPUs(t *testing.T) {
	d := a16(t, "A16-8Q")
	present := inventory.Defaults([]gpu.Device{d}).Present()
	if len(present) != 1 || present[0].Name != d.Name || present[0].UUID != d.UUID || present[0].Type != gpu.TypeGPU {
		t.Errorf("got %v, want %s", present, d.Name)
	}
}
