// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// partitioned returns the GPU with these partitions; "!" after one means that the driver has created it.
func partitioned(d gpu.Device, instances string) (gpu.Device, func(gpu.Placement) bool) {
	var own []gpu.Placement
	for i, name := range strings.Fields(instances) {
		name, ours := strings.CutSuffix(name, "!")
		at := gpu.Placement{Parent: d.UUID, Profile: name, Start: i, Size: 1}
		d.MIG.Instances = append(d.MIG.Instances, gpu.Partition{Placement: at, UUID: gpu.UUID(fmt.Sprint("MIG-", i))})
		if ours {
			own = append(own, at)
		}
	}
	d.MIG.Enabled = d.MIG.Enabled || len(d.MIG.Instances) > 0
	return d, func(at gpu.Placement) bool {
		for _, o := range own {
			if o == at {
				return true
			}
		}
		return false
	}
}

func TestPartitioning(t *testing.T) {
	hopper := gpu.Device{Name: "gpu-0", UUID: "GPU-0", MIG: gpu.MIG{Capable: true, Switchable: true}}
	ampere := gpu.Device{Name: "gpu-0", UUID: "GPU-0", MIG: gpu.MIG{Capable: true}}
	on := ampere
	on.MIG.Enabled = true
	const auto, none, static, dynamic = gpu.PartitionsAuto, gpu.PartitionsNone, gpu.PartitionsStatic,
		gpu.PartitionsDynamic
	for _, row := range []struct {
		name         string
		device       gpu.Device
		instances    string
		said, before gpu.Partitions
		want         gpu.Partitions
	}{
		{"a GPU without MIG has nothing to choose", gpu.Device{}, "", dynamic, auto, auto},
		{"one that needs no reset is partitioned by the driver", hopper, "", auto, auto, dynamic},
		{"one that needs a reset is not", ampere, "", auto, auto, none},
		{"unless it is in MIG mode", on, "", auto, auto, dynamic},
		{"one that somebody else has partitioned is his", hopper, "1g.10gb", auto, dynamic, static},
		{"not so while the driver has partitions of it", hopper, "1g.10gb 1g.10gb!", auto, dynamic, dynamic},
		{"it stays his while he makes other ones, if that takes a reset", on, "", auto, static, static},
		{"what the administrator says goes: none", hopper, "", none, auto, none},
		{"static", hopper, "", static, auto, static},
		{"dynamic", hopper, "1g.10gb", dynamic, static, dynamic},
		{"but where it takes a reset", ampere, "", dynamic, auto, none},
	} {
		t.Run(row.name, func(t *testing.T) {
			d, own := partitioned(row.device, row.instances)
			if got := inventory.Partitioning(d, row.said, row.before, own); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestBlockedGPUs(t *testing.T) {
	b, now := blockedGPUs{}, time.Now()
	exporter := fmt.Errorf("used by exporter: %w", gpu.ErrBusy)
	b.note(now, "GPU-0", exporter)
	b.note(now, "GPU-1", fmt.Errorf("in a virtual machine: %w", gpu.ErrMIGModeFixed))
	b.note(now, "GPU-2", errors.New("something else"))
	why := b.all(now)
	got := fmt.Sprint(why["GPU-0"], "; ", why["GPU-1"], "; ", why["GPU-2"])
	want := "used by exporter: the GPU is in use; in a virtual machine: the MIG mode cannot be changed from here; "
	if got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	b.note(now, "GPU-0", nil)
	if got := b.all(now)["GPU-0"]; got != "" {
		t.Errorf("after it could be partitioned: %s", got)
	}
}

// A partition is removed if it existed before the discovery and not at it, in the same boot.
func TestRemovedPartitions(t *testing.T) {
	d, _ := partitioned(gpu.Device{Name: "gpu-0", UUID: "GPU-0"}, "1g.10gb 1g.10gb")
	lost := d
	lost.Lost = true
	record := func(device, id string, phase checkpoint.Phase, boot string) checkpoint.PreparedClaim {
		return checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "a", UID: "a"}, Phase: phase,
			BootID: boot,
			Plan: sharing.Plan{Assignments: []sharing.Assignment{
				{Device: device, GPU: "GPU-0", Partition: &sharing.AssignedPartition{
					Placement: gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb"}, UUID: gpu.UUID(id)}}}}}
	}
	for _, row := range []struct {
		name          string
		before, after checkpoint.PreparedClaim
		device        gpu.Device
		want          int
	}{
		{"one that is there", record("gpu-0-mig-1g10gb-0", "MIG-0", checkpoint.Prepared, "now"),
			record("gpu-0-mig-1g10gb-0", "MIG-0", checkpoint.Prepared, "now"), d, 0},
		{"one that is gone", record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "now"),
			record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "now"), d, 1},
		{"another one in its place", record("gpu-0-mig-1g10gb-0", "MIG-7", checkpoint.Prepared, "now"),
			record("gpu-0-mig-1g10gb-0", "MIG-7", checkpoint.Prepared, "now"), d, 1},
		{"one that is being removed", record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "now"),
			record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Releasing, "now"), d, 0},
		{"one that is being made", record("gpu-0-mig-1g10gb-5", "", checkpoint.Preparing, "now"),
			record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "now"), d, 0},
		{"one of the last run of the machine", record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "then"),
			record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "then"), d, 0},
		{"a GPU that does not answer says nothing of its partitions", record("gpu-0-mig-1g10gb-5", "MIG-5",
			checkpoint.Prepared, "now"), record("gpu-0-mig-1g10gb-5", "MIG-5", checkpoint.Prepared, "now"), lost, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRecords("now", []checkpoint.PreparedClaim{row.before}, []checkpoint.PreparedClaim{row.after}, nil)
			if got := r.removed(inventory.Inventory{row.device}); len(got) != row.want {
				t.Errorf("got %v, want %d", got, row.want)
			}
		})
	}
}

// In MIG mode NVML reports less of a GPU, but its product is still known.
func TestProductInMIGMode(t *testing.T) {
	before := gpu.Device{Name: "gpu-0", UUID: "GPU-0", Product: gpu.Product{Multiprocessors: 132},
		Topology: gpu.Topology{NVLinkDomain: "all"}}
	now := gpu.Device{Name: "gpu-0", UUID: "GPU-0", MIG: gpu.MIG{Enabled: true},
		Topology: gpu.Topology{NVLinkDomain: "GPU-0"}}
	other := now
	other.UUID = "GPU-9"
	off := now
	off.MIG.Enabled = false
	now.Product = gpu.Product{Multiprocessors: 14}
	unknown := gpu.Device{Name: "gpu-0", UUID: "GPU-0", Lost: true}
	if got := withProduct(inventory.Inventory{now}, inventory.Inventory{unknown})[0]; got.Product != now.Product {
		t.Errorf("after a first discovery at which it was lost: got %+v", got)
	}
	got := withProduct(inventory.Inventory{now}, inventory.Inventory{before})[0]
	if got.Product != before.Product || got.Topology != before.Topology || !got.MIG.Enabled {
		t.Errorf("got %+v", got)
	}
	for _, d := range []gpu.Device{other, off} {
		if got := withProduct(inventory.Inventory{d}, inventory.Inventory{before})[0]; got.Product != d.Product {
			t.Errorf("%s, MIG mode %t: got %+v", d.UUID, d.MIG.Enabled, got)
		}
	}
}

// The partition of a claim that ends while its GPU is lost does not count as one that somebody else has made.
func TestClaimEndsWhileItsGPUIsLost(t *testing.T) {
	d := gpu.Device{Name: "gpu-0", UUID: "GPU-0", Use: gpu.SharingMode{Partitions: gpu.PartitionsDynamic},
		MIG: gpu.MIG{Capable: true, Switchable: true,
			Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Slices: 1, Starts: []int{0, 1}}}}}
	parted, _ := partitioned(d, "1g.10gb!")
	claim := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "a", UID: "a"}, BootID: "now",
		Phase: checkpoint.Prepared, Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-0-mig-1g10gb-0",
			GPU: "GPU-0", Partition: &sharing.AssignedPartition{Placement: parted.MIG.Instances[0].Placement,
				UUID: "MIG-0"}}}}}
	var s state
	look := func(found gpu.Device, claims ...checkpoint.PreparedClaim) {
		gpus := inventory.Inventory{found}.Retain(s.known.GPUs(), func(string) bool { return len(claims) > 0 })
		s.basis = basis{gpus: gpus, known: s.known, records: newRecords("now", claims, claims, nil)}
		s.derive()
	}
	look(parted, claim)
	parted.Lost = true
	look(parted)
	var got []string
	for _, d := range *s.devices {
		got = append(got, strings.TrimSpace(d.Name+" "+d.Blocked))
	}
	if want := "gpu-0, gpu-0-mig-1g10gb-1, gpu-0-mig-1g10gb-0"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}
