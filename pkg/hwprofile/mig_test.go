// SPDX-License-Identifier: Apache-2.0

package hwprofile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// TestTables looks for slips of the pen in the built-in tables.
func TestTables(t *testing.T) {
	used := map[string]bool{}
	for _, name := range node.Names() {
		p := builtIn(t, name)
		for _, g := range p.GPUs {
			most, _ := g.Calls.GetMaxMigDeviceCount.Get()
			profiles, e := g.Calls.GetGpuInstanceProfileInfo.Get()
			if (most > 0) != (e == "") {
				t.Errorf("%s: a GPU with up to %d partitions has profiles: %v", name, most, e)
			}
			if most > 0 {
				checkTable(t, name, g, profiles)
			}
		}
		for _, table := range hwprofile.Tables() {
			used[table] = used[table] || strings.Contains(p.YAML(), "GetGpuInstanceProfileInfo: "+table)
		}
	}
	for _, table := range hwprofile.Tables() {
		if !used[table] && table != "a100-80gb" { // which no built-in machine has
			t.Errorf("no profile has the table %s", table)
		}
	}
	p, err := hwprofile.ParseProfile([]byte(strings.Replace(base, `GetSerial: "1"`, `GetMemoryInfo: {total: 85899345920}, GetNumGpuCores: 6912,
    GetGpuInstanceProfileInfo: a100-80gb, GetGpuInstancePossiblePlacements: a100-80gb, GpuInstanceGetComputeInstanceProfileInfo: a100-80gb`, 1)))
	must(t, err)
	profiles, _ := p.GPUs[0].Calls.GetGpuInstanceProfileInfo.Get()
	checkTable(t, "A100 80 GB", p.GPUs[0], profiles)
}

func checkTable(t *testing.T, machine string, g hwprofile.GPU, profiles hwprofile.GPUInstanceProfiles) {
	t.Helper()
	placements, _ := g.Calls.GetGpuInstancePossiblePlacements.Get()
	compute, _ := g.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	memory, _ := g.Calls.GetMemoryInfo.Get()
	cores, _ := g.Calls.GetNumGpuCores.Get()
	ids := map[int]bool{}
	for number, p := range profiles {
		var slices, gigabytes int
		if n, err := fmt.Sscanf(p.Name, "%dg.%dgb", &slices, &gigabytes); err != nil || n != 2 ||
			slices != p.SliceCount {
			t.Errorf("%s: %s has %d slices", machine, p.Name, p.SliceCount)
		}
		if ids[p.ID] {
			t.Errorf("%s: the ID of %s is that of another", machine, p.Name)
		}
		ids[p.ID] = true
		if share := float64(p.MemorySizeMB) / 1024; share > float64(gigabytes) || share < float64(gigabytes)*0.85 {
			t.Errorf("%s: %s has %.2f GiB", machine, p.Name, share)
		}
		if p.MemorySizeMB<<20 > memory.Total || p.MultiprocessorCount*64 > cores {
			t.Errorf("%s: %s has more than the GPU", machine, p.Name)
		}
		if strings.HasSuffix(p.Name, "-me") && p.DecoderCount+p.EncoderCount+p.JPEGCount+p.OFACount > 0 ||
			strings.Contains(p.Name, "+me") && p.OFACount != 1 {
			t.Errorf("%s: %s has the wrong media engines: %+v", machine, p.Name, p)
		}
		if len(placements[number]) < p.InstanceCount {
			t.Errorf("%s: %d of %s in %d places", machine, p.InstanceCount, p.Name, len(placements[number]))
		}
		whole := false
		for _, c := range compute[number] {
			whole = whole || c.SliceCount == p.SliceCount && c.MultiprocessorCount == p.MultiprocessorCount &&
				c.InstanceCount == 1
			if c.InstanceCount != p.SliceCount/c.SliceCount ||
				c.InstanceCount*c.MultiprocessorCount > p.MultiprocessorCount+c.MultiprocessorCount {
				t.Errorf("%s: compute instances of %s: %+v", machine, p.Name, c)
			}
		}
		if !whole {
			t.Errorf("%s: no compute instance has all of %s", machine, p.Name)
		}
	}
}

func TestProfilesWithPartitions(t *testing.T) {
	const own = `GetSerial: "1", GetMigMode: {current: 1, pending: 1}, GetMaxMigDeviceCount: 1,
    GetGpuInstanceProfileInfo: {0: {id: 9, name: 1g.5gb, sliceCount: 1, instanceCount: 1, memorySizeMB: 4864}},
    GetGpuInstancePossiblePlacements: {0: [{start: 0, size: 1}]},
    GpuInstanceGetComputeInstanceProfileInfo: {0: {0: {id: 0, sliceCount: 1, instanceCount: 1, multiprocessorCount: 14}}}`
	for _, tt := range []struct{ name, calls, want string }{
		{"answers of its own", own, ""},
		{"a table",
			`GetSerial: "1", GetGpuInstanceProfileInfo: a30-24gb, GetGpuInstancePossiblePlacements: a30-24gb, GpuInstanceGetComputeInstanceProfileInfo: a30-24gb`, ""},
		{"a table that is none", "GetGpuInstanceProfileInfo: a31",
			`gpus[0].calls.GetGpuInstanceProfileInfo: no table "a31" of MIG profiles; built in are a100-40gb, a100-80gb, a30-24gb,`},
		{"no places", "GetGpuInstanceProfileInfo: a30-24gb", "gpus[0].calls.GetGpuInstancePossiblePlacements: " +
			"profile 0 has no placement"},
		{"no compute instances", "GetGpuInstanceProfileInfo: a30-24gb",
			"gpus[0].calls.GpuInstanceGetComputeInstanceProfileInfo: profile 8 has no compute instance profile"},
		{"no such field", strings.Replace(own, "name:", "nmae:", 1), "GetGpuInstanceProfileInfo.0.nmae: unknown field"},
		{"a place of no size", strings.Replace(own, "size: 1", "size: 0", 1),
			"GetGpuInstancePossiblePlacements: profile 0: want a start of at least 0"},
		{"a mode that is none", strings.Replace(own, "current: 1", "current: 2", 1),
			"gpus[0].calls.GetMigMode: want 0 or 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := hwprofile.ParseProfile([]byte(strings.Replace(base, `GetSerial: "1"`, tt.calls, 1)))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error:\n%v\nwant it to contain:\n%s", err, tt.want)
			}
			if tt.calls == own {
				n := open(t, p)
				made, err := n.CreatePartition("0", "1g.5gb")
				if want := "gpu-3b-00-0/1g.5gb@0"; err != nil || made != want {
					t.Errorf("got %s, %v; want %s", made, err, want)
				}
			}
		})
	}
}
