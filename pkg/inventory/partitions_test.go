// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// migProfile is a profile, and how many partitions of it NVIDIA lets a GPU have.
type migProfile struct {
	gpu.Profile
	Instances int
}

// migTables are what models can be partitioned into.
var migTables = func() map[string][]migProfile {
	text, err := os.ReadFile("testdata/mig/tables.yaml")
	if err != nil {
		panic(err)
	}
	var tables map[string][]migProfile
	if err := yaml.UnmarshalStrict(text, &tables); err != nil {
		panic(err)
	}
	return tables
}()

// partitionable are so many GPUs that can be partitioned as that model can.
func partitionable(model string, count int) []gpu.Device {
	var devices []gpu.Device
	for i := range count {
		pci := gpu.PCIAddress{Bus: uint8(0x10 + i)}
		d := gpu.Device{
			Name: pci.DeviceName(), Type: gpu.TypeGPU, UUID: gpu.UUID(fmt.Sprintf("GPU-%x", 0x10+i)), PCI: pci,
			PCIeRoot: "pci0000:0f", Index: i, Minor: i,
			Topology: gpu.Topology{NVLinkDomain: "all", FabricDomain: "all"},
			Memory:   80 << 30,
			Product:  gpu.Product{Name: model, Multiprocessors: 132, MemoryBandwidth: 3352, PeakCompute: 989},
			MIG:      gpu.MIG{Capable: true, Switchable: true},
			Use:      gpu.SharingMode{Partitions: gpu.PartitionsDynamic},
		}
		for _, p := range migTables[model] {
			d.MIG.Profiles = append(d.MIG.Profiles, p.Profile)
		}
		devices = append(devices, d)
	}
	return devices
}

// divided is what claims can get of these GPUs while nothing is in the way.
func divided(devices []gpu.Device) inventory.Inventory {
	return inventory.New(devices).WithPartitions(func(gpu.Placement) bool { return true })
}

func names(inv inventory.Inventory) string {
	var all []string
	for _, d := range inv {
		name := strings.NewReplacer("gpu-", "", "-00-0", "").Replace(d.Name)
		if d.Lost {
			name += "!"
		}
		if d.Blocked != "" {
			name += "#"
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestPartitionInventory(t *testing.T) {
	instance := func(profile string, start, size, number int) gpu.Partition {
		return gpu.Partition{Placement: gpu.Placement{Parent: "GPU-10", Profile: profile, Start: start, Size: size},
			Slices: int(profile[0] - '0'),
			UUID:   gpu.UUID(fmt.Sprintf("MIG-%d-%d", start, number)), ComputeInstance: number}
	}
	const everyPlace = "10-mig-1g6gb-3 10-mig-1g6gb-2 10-mig-1g6gb-1 10-mig-1g6gb-0 10-mig-1g6gb-me-3 " +
		"10-mig-1g6gb-me-2 10-mig-1g6gb-me-1 10-mig-1g6gb-me-0 " +
		"10-mig-2g12gb-2 10-mig-2g12gb-0 10-mig-2g12gb-me-2 10-mig-2g12gb-me-0 10-mig-4g24gb-0"
	const besideOneAt3 = "10-mig-1g6gb-3# 10-mig-1g6gb-2 10-mig-1g6gb-1 10-mig-1g6gb-0 10-mig-1g6gb-me-3# " +
		"10-mig-1g6gb-me-2 10-mig-1g6gb-me-1 10-mig-1g6gb-me-0 " +
		"10-mig-2g12gb-2# 10-mig-2g12gb-0 10-mig-2g12gb-me-2# 10-mig-2g12gb-me-0 10-mig-4g24gb-0#"
	flagged := func(s, mark string) string { return strings.ReplaceAll(s, " ", mark+" ") + mark }
	dynamic, static, none, auto := gpu.PartitionsDynamic, gpu.PartitionsStatic, gpu.PartitionsNone, gpu.PartitionsAuto
	for _, row := range []struct {
		name    string
		use     gpu.Partitions
		mig     gpu.MIG // without profiles
		lost    bool
		blocked string
		foreign bool
		want    string
	}{
		{"a GPU that is not partitioned", none, gpu.MIG{Switchable: true}, false, "", false, "10"},
		{"auto is none", auto, gpu.MIG{Switchable: true}, false, "", false, "10"},
		{"in MIG mode, which the driver may not disable", none, gpu.MIG{Switchable: true, Enabled: true}, false, "",
			false, ""},
		{"in MIG mode, which the driver disables", dynamic, gpu.MIG{Switchable: true, Enabled: true}, false, "", false,
			"10 " + everyPlace},
		{"in MIG mode, which the driver cannot disable now", dynamic,
			gpu.MIG{Switchable: true, Enabled: true}, false, "ollama", false, "10# " +
				everyPlace},
		{"in MIG mode, which takes a reset to disable", none, gpu.MIG{Enabled: true}, false, "", false, ""},
		{"all placements and the whole GPU", dynamic, gpu.MIG{Switchable: true}, false, "", false, "10 " + everyPlace},
		{"all placements and the whole GPU, with existing partitions", dynamic, gpu.MIG{Switchable: true, Enabled: true,
			Instances: []gpu.Partition{instance("1g.6gb", 3, 1, 0)}}, false, "", false, "10 " + everyPlace},
		{"no whole GPU if disabling MIG takes a reset", dynamic, gpu.MIG{Enabled: true}, false, "", false, everyPlace},
		{"a foreign partition keeps its place", dynamic, gpu.MIG{Switchable: true, Enabled: true,
			Instances: []gpu.Partition{instance("1g.6gb", 3, 1, 0)}}, false, "", true, besideOneAt3},
		{"a lost GPU", dynamic, gpu.MIG{Switchable: true}, true, "", false, flagged("10 "+everyPlace, "!")},
		{"a GPU that cannot be partitioned now", dynamic, gpu.MIG{Switchable: true}, false, "ollama", false,
			"10 " + flagged(everyPlace, "#")},
		{"static: existing partitions, no whole GPU", static, gpu.MIG{Switchable: true, Enabled: true,
			Instances: []gpu.Partition{instance("2g.12gb", 0, 2, 0), instance("1g.6gb", 3, 1, 0)}}, false, "busy", true,
			"10-mig-1g6gb-3 10-mig-2g12gb-0"},
		{"two compute instances in one GPU instance", static,
			gpu.MIG{Enabled: true, Instances: []gpu.Partition{instance("1c.2g.12gb", 0, 2,
				0), instance("1c.2g.12gb", 0, 2, 1)}}, false, "", true,
			"10-mig-1c2g12gb-0-0 10-mig-1c2g12gb-0-1"},
		{"static without partitions", static, gpu.MIG{Switchable: true}, false, "", false, "10"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := partitionable("A30", 1)[0]
			row.mig.Capable, row.mig.Profiles = true, d.MIG.Profiles
			d.MIG, d.Use.Partitions, d.Lost, d.Blocked = row.mig, row.use, row.lost, row.blocked
			got := names(inventory.New([]gpu.Device{d}).WithPartitions(
				func(gpu.Placement) bool { return !row.foreign }))
			if got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestPartitionDevice(t *testing.T) {
	d := partitionable("H100-80GB", 1)[0]
	d.MIG.Enabled = true
	d.MIG.Instances = []gpu.Partition{{Placement: gpu.Placement{Parent: d.UUID, Profile: "3g.40gb", Start: 4, Size: 4},
		UUID: "MIG-3"}}
	inv := inventory.New([]gpu.Device{d}).WithPartitions(func(gpu.Placement) bool { return false })
	got, ok := inv.Find("gpu-10-00-0-mig-2g20gb-4")
	if !ok {
		t.Fatal("there is no 2g.20gb at 4")
	}
	want := d
	want.Name, want.Type, want.UUID = got.Name, gpu.TypeMIG, gpu.UUID(got.Name)
	want.Memory, want.Product.Multiprocessors, want.Product.PeakCompute, want.Product.MemoryBandwidth = 20096<<20, 32,
		989*32/132, 3352*2/8
	want.Topology = gpu.Topology{NVLinkDomain: got.Name, FabricDomain: got.Name}
	want.MIG, want.Use = gpu.MIG{Capable: true}, gpu.SharingMode{Sharing: gpu.Exclusive, Isolation: gpu.IsolationNone,
		Partitions: gpu.PartitionsDynamic}
	want.Blocked = "partition 3g.40gb at 4 (MIG-3) is not the driver's"
	want.Partition = &gpu.Partition{Placement: gpu.Placement{Parent: "GPU-10", Profile: "2g.20gb", Start: 4, Size: 2},
		Slices:  2,
		Engines: gpu.Engines{Multiprocessors: 32, Copy: 2, Decoders: 2, JPEG: 2}, Memory: 20096 << 20}
	if got, want := fmt.Sprintf("%+v %+v", got, *got.Partition),
		fmt.Sprintf("%+v %+v", want, *want.Partition); withoutPointers(got) != withoutPointers(want) {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
}

// withoutPointers leaves out addresses, which are never the same.
func withoutPointers(s string) string {
	before, rest, _ := strings.Cut(s, "Partition:0x")
	_, after, _ := strings.Cut(rest, " ")
	return before + after
}

// Partitions come smallest first, so that nobody who does not name a profile takes a large one, and from the last GPU
// on: whole GPUs are taken from the first on.
func TestOrderOfPartitions(t *testing.T) {
	devices := append(partitionable("A30", 2), gpu.Device{Name: "gpu-99-00-0", PCI: gpu.PCIAddress{Bus: 0x99}})
	want := "10 11 99 " +
		"11-mig-1g6gb-3 11-mig-1g6gb-2 11-mig-1g6gb-1 11-mig-1g6gb-0 10-mig-1g6gb-3 10-mig-1g6gb-2 10-mig-1g6gb-1 " +
		"10-mig-1g6gb-0 " +
		"11-mig-1g6gb-me-3 11-mig-1g6gb-me-2 11-mig-1g6gb-me-1 11-mig-1g6gb-me-0 10-mig-1g6gb-me-3 10-mig-1g6gb-me-2 " +
		"10-mig-1g6gb-me-1 10-mig-1g6gb-me-0 " +
		"11-mig-2g12gb-2 11-mig-2g12gb-0 10-mig-2g12gb-2 10-mig-2g12gb-0 11-mig-2g12gb-me-2 11-mig-2g12gb-me-0 " +
		"10-mig-2g12gb-me-2 10-mig-2g12gb-me-0 " +
		"11-mig-4g24gb-0 10-mig-4g24gb-0"
	inv := divided(devices)
	if got := names(inv); got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	if got := names(inv.GPUs()); got != "10 11 99" {
		t.Errorf("whole GPUs: got %s", got)
	}
	var published []string
	for _, s := range inv.Pools(nodeName)[nodeName].Slices {
		for _, d := range s.Devices {
			published = append(published, d.Name)
		}
	}
	for i, d := range inv {
		if published[i] != d.Name {
			t.Fatalf("device %d: published %s, want %s", i, published[i], d.Name)
		}
	}
}

// The monitor is for physical GPUs, each once.
func TestPresentArePhysicalGPUs(t *testing.T) {
	devices := partitionable("A30", 4)
	devices[1].MIG.Enabled, devices[1].MIG.Switchable = true, false // it is there in parts only
	devices[2].Lost, devices[3].Lost = true, true
	devices[3].MIG.Enabled, devices[3].MIG.Switchable = true, false
	present := divided(devices).Present()
	if got := names(present); got != "10 11" {
		t.Errorf("got %s, want 10 11", got)
	}
	if d := present[1]; d.Type != gpu.TypeGPU || d.UUID != "GPU-11" || d.Minor != 1 || d.Partition != nil {
		t.Errorf("the GPU in parts: got %+v", d)
	}
}

func TestRetainPartitions(t *testing.T) {
	static := func(starts ...int) inventory.Inventory {
		d := partitionable("A30", 1)[0]
		d.Use.Partitions, d.MIG.Enabled = gpu.PartitionsStatic, true
		for _, start := range starts {
			at := gpu.Placement{Parent: d.UUID, Profile: "1g.6gb", Start: start, Size: 1}
			d.MIG.Instances = append(d.MIG.Instances, gpu.Partition{Placement: at,
				UUID: gpu.UUID(fmt.Sprint("MIG-", start))})
		}
		return divided([]gpu.Device{d})
	}
	const held = "gpu-10-00-0-mig-1g6gb-1"
	lost := static(0, 2, 3).Retain(static(0, 1, 2), func(name string) bool { return name == held })
	if got, want := names(lost), "10-mig-1g6gb-0 10-mig-1g6gb-1! 10-mig-1g6gb-2 10-mig-1g6gb-3"; got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	if got, want := names(static(0, 2, 3).Retain(lost, func(string) bool { return false })),
		"10-mig-1g6gb-0 10-mig-1g6gb-2 10-mig-1g6gb-3"; got != want {
		t.Errorf("given back\ngot  %s\nwant %s", got, want)
	}
}

// Eight and sixteen GPUs of every model keep to the limits of the API, and what happens to one of them moves no device
// of another.
func TestPoolOfPartitionsWithinLimits(t *testing.T) {
	for model := range migTables {
		for count, most := range map[int]int{8: 10, 16: 20} {
			devices := partitionable(model, count)
			pool := divided(devices).Pools(nodeName)[nodeName]
			if got := len(pool.Slices); got > most {
				t.Errorf("%d × %s: got %d slices, want at most %d", count, model, got, most)
			}
			sets := map[string]resourceapi.CounterSet{}
			for _, s := range pool.Slices {
				if len(s.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures ||
					len(s.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets ||
					len(s.Devices) > 0 && len(s.SharedCounters) > 0 {
					t.Errorf("%d × %s: a slice of %d devices and %d sets of counters", count, model, len(s.Devices),
						len(s.SharedCounters))
				}
				for _, set := range s.SharedCounters {
					sets[set.Name] = set
					if len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
						t.Errorf("%s: %s has %d counters", model, set.Name, len(set.Counters))
					}
				}
			}
			for _, s := range pool.Slices {
				for _, d := range s.Devices {
					checkLimits(t, d, sets)
				}
			}
			devices[3].Lost, devices[4].Blocked = true, "somebody"
			after := divided(devices).Pools(nodeName)[nodeName]
			if got, want := layout(after.Slices), layout(pool.Slices); got != want {
				t.Errorf("%d × %s: devices have moved", count, model)
			}
		}
	}
}

// TestPartitionTypes: no slice has a partitionTypeAttribute, because that promises that devices with one value of it
// consume the same counters. Placements of a profile consume different ones, and Kubernetes compares also the names of
// counter sets, of which each GPU has its own.
func TestPartitionTypes(t *testing.T) {
	for count, want := range map[int]int{1: 7, 2: 14} {
		costs := map[string]bool{}
		for _, s := range inAPI(divided(partitionable("H100-80GB", count)).Pools(nodeName)) {
			if s.Spec.PartitionTypeAttribute != nil {
				t.Errorf("got partition type %s, want none", *s.Spec.PartitionTypeAttribute)
			}
			for _, d := range s.Spec.Devices {
				if profile := d.Attributes["profile"].StringValue; profile != nil && *profile == "1g.10gb" {
					costs[fmt.Sprint(d.ConsumesCounters)] = true
				}
			}
		}
		if len(costs) != want {
			t.Errorf("%d GPUs: got %d costs of 1g.10gb, want %d: if it is one, set the attribute", count, len(costs),
				want)
		}
	}
}

// checkSize checks that the API takes as many attributes and capacities as the device has.
func checkSize(t *testing.T, d resourceapi.Device) {
	t.Helper()
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%s has %d attributes and capacities", d.Name, n)
	}
}

func checkLimits(t *testing.T, d resourceapi.Device, sets map[string]resourceapi.CounterSet) {
	t.Helper()
	checkSize(t, d)
	if len(d.ConsumesCounters) != 1 {
		t.Errorf("%s consumes of %d sets of counters", d.Name, len(d.ConsumesCounters))
	}
	for _, c := range d.ConsumesCounters {
		for name, amount := range c.Counters {
			if has, ok := sets[c.CounterSet].Counters[name]; !ok || amount.Value.Cmp(has.Value) > 0 {
				t.Errorf("%s takes %s of %s, which has %s", d.Name, amount.Value.String(), name, has.Value.String())
			}
		}
	}
}

// layout is which device or set of counters is in which slice.
func layout(all []inventory.Slice) string {
	var text strings.Builder
	for i, s := range all {
		for _, d := range s.Devices {
			fmt.Fprintln(&text, i, d.Name)
		}
		for _, c := range s.SharedCounters {
			fmt.Fprintln(&text, i, c.Name, len(c.Counters))
		}
	}
	return text.String()
}

// The counters allow what NVIDIA allows, and nothing else: partitions that do not overlap, of each profile as many as
// there can be, and the engines of "+me" once.
func TestCountersMatchNVIDIAsPlacements(t *testing.T) {
	for model, table := range migTables {
		t.Run(model, func(t *testing.T) {
			gpus := partitionable(model, 1)
			gpus[0].Memory = 1 << 30 // what NVML says of the whole must not keep partitions from each other
			inv := divided(gpus)
			instances := map[string]int{}
			for _, p := range table {
				instances[p.Name] = p.Instances
			}
			pool := inv.Pools(nodeName)[nodeName]
			set := pool.Slices[len(pool.Slices)-1].SharedCounters[0]
			consumed := map[string]map[string]resourceapi.Counter{}
			for _, s := range pool.Slices {
				for _, d := range s.Devices {
					for _, c := range d.ConsumesCounters {
						consumed[d.Name] = c.Counters
					}
				}
			}
			seen, largest := 0, map[string]int{}
			var try func(from int, chosen []gpu.Device, left map[string]int64)
			try = func(from int, chosen []gpu.Device, left map[string]int64) {
				for i := from; i < len(inv); i++ {
					d := inv[i]
					if d.Partition == nil {
						continue
					}
					rest := map[string]int64{}
					fits := true
					for name, n := range left {
						amount := consumed[d.Name][name]
						rest[name] = n - amount.Value.Value()
						fits = fits && rest[name] >= 0
					}
					if want := allowed(d, chosen, instances); fits != want {
						t.Fatalf("%s beside %s: got %v, want %v", d.Name, names(chosen), fits, want)
					}
					if fits {
						seen++
						next := append(slices.Clone(chosen), d)
						largest[d.Partition.Profile] = max(largest[d.Partition.Profile],
							count(next, d.Partition.Profile))
						try(i+1, next, rest)
					}
				}
			}
			all := map[string]int64{}
			for name, c := range set.Counters {
				all[name] = c.Value.Value()
			}
			try(0, nil, all)
			for profile, want := range instances {
				if got := largest[profile]; got != want {
					t.Errorf("got %d × %s, want %d", got, profile, want)
				}
			}
			t.Logf("%d combinations", seen)
		})
	}
}

// The counter memory is the capacity of the GPU and of each partition, so that a quota by it charges what a claim gets.
// That it never keeps partitions from each other, TestCountersMatchNVIDIAsPlacements says.
func TestTheCounterOfMemoryIsTheCapacity(t *testing.T) {
	partitions := 0
	for _, profile := range simulator.Profiles() {
		devices := simtest.Discover(t, profile)
		for i := range devices {
			devices[i].Use = gpu.SharingMode{Partitions: gpu.PartitionsDynamic}
		}
		sets := map[string]resourceapi.CounterSet{}
		pool := divided(devices).Pools(nodeName)[nodeName]
		for _, s := range pool.Slices {
			for _, set := range s.SharedCounters {
				sets[set.Name] = set
			}
		}
		for _, s := range pool.Slices {
			for _, d := range s.Devices {
				if c := d.ConsumesCounters; len(c) == 0 || len(sets[c[0].CounterSet].Counters) == 1 {
					continue // a GPU without partitions has only the counter of the whole
				}
				checkLimits(t, d, sets)
				counters := d.ConsumesCounters[0].Counters
				if n := len(sets[d.ConsumesCounters[0].CounterSet].Counters); n > 32 {
					t.Errorf("%s: %s: the GPU has %d counters", profile, d.Name, n)
				}
				if got, want := counters["memory"].Value, d.Capacity["memory"].Value; got.Cmp(want) != 0 {
					t.Errorf("%s: %s takes %s of the memory, and has %s", profile, d.Name, got.String(), want.String())
				}
				partitions++
			}
		}
	}
	if partitions == 0 {
		t.Error("no machine has partitions")
	}
}

// allowed reports whether NVIDIA lets the partition be made beside the others.
func allowed(d gpu.Device, others []gpu.Device, instances map[string]int) bool {
	media := func(o gpu.Device) bool { return strings.Contains(o.Partition.Profile, "+me") }
	for _, o := range others {
		if o.Partition.Overlaps(d.Partition.Placement) || media(o) && media(d) {
			return false
		}
	}
	return count(others, d.Partition.Profile) < instances[d.Partition.Profile]
}

func count(devices []gpu.Device, profile string) int {
	n := 0
	for _, d := range devices {
		if d.Partition.Profile == profile {
			n++
		}
	}
	return n
}

// What an A30 publishes that can be partitioned. Every device has the same attributes.
func TestPublishedPartitions(t *testing.T) {
	all := divided(partitionable("A30", 1)).Pools(nodeName)[nodeName].Slices
	out, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/mig/a30.yaml"
	if *update {
		if err := os.WriteFile(file, out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(out), string(want)); diff != "" {
		t.Errorf("got - want + (go test -update writes it anew)\n%s", diff)
	}
	whole := all[0].Devices[0]
	maps.DeleteFunc(whole.Attributes, func(name resourceapi.QualifiedName, _ resourceapi.DeviceAttribute) bool {
		return strings.HasPrefix(string(name), "vgpu") // there is no room for these
	})
	for _, d := range all[1].Devices {
		if diff := cmp.Diff(attributeNames(d), attributeNames(whole)); diff != "" {
			t.Errorf("%s - whole +\n%s", d.Name, diff)
		}
	}
}

// The partitions that an administrator made have nothing to tie them together.
func TestPublishedStaticPartitions(t *testing.T) {
	d := partitionable("A30", 1)[0]
	d.Use.Partitions, d.MIG.Enabled = gpu.PartitionsStatic, true
	d.MIG.Instances = []gpu.Partition{{Placement: gpu.Placement{Parent: d.UUID, Profile: "2g.12gb", Start: 2, Size: 2},
		UUID: "MIG-1", Slices: 2,
		Memory: 12 << 30, Engines: gpu.Engines{Multiprocessors: 28, Decoders: 2}}}
	pool := divided([]gpu.Device{d}).Pools(nodeName)[nodeName]
	if got, want := layout(pool.Slices), "0 gpu-10-00-0-mig-2g12gb-2\n"; got != want {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
	part := pool.Slices[0].Devices[0]
	text := func(name resourceapi.QualifiedName) string { return *part.Attributes[name].StringValue }
	got := fmt.Sprintln(len(part.ConsumesCounters), text("uuid"), text("parentUUID"), text("nvlinkDomain"),
		text("profile"), text("sharing"), text("isolation"))
	if want := "0 MIG-1 GPU-10 MIG-1 2g.12gb exclusive none\n"; got != want {
		t.Errorf("got %swant %s", got, want)
	}
}
