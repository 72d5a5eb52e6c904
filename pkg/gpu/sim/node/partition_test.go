// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

// TestTables looks for slips of the pen in the built-in tables.
func TestTables(t *testing.T) {
	used := map[string]bool{}
	for _, name := range node.Names() {
		p := profile(t, name)
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
		for _, table := range node.Tables() {
			used[table] = used[table] || strings.Contains(p.YAML(), "GetGpuInstanceProfileInfo: "+table)
		}
	}
	for _, table := range node.Tables() {
		if !used[table] && table != "a100-80gb" { // which no built-in machine has
			t.Errorf("no profile has the table %s", table)
		}
	}
	p, err := node.ParseProfile([]byte(strings.Replace(base, `GetSerial: "1"`, `GetMemoryInfo: {total: 85899345920}, GetNumGpuCores: 6912,
    GetGpuInstanceProfileInfo: a100-80gb, GetGpuInstancePossiblePlacements: a100-80gb, GpuInstanceGetComputeInstanceProfileInfo: a100-80gb`, 1)))
	must(t, err)
	profiles, _ := p.GPUs[0].Calls.GetGpuInstanceProfileInfo.Get()
	checkTable(t, "A100 80 GB", p.GPUs[0], profiles)
}

func checkTable(t *testing.T, machine string, g node.GPU, profiles node.GPUInstanceProfiles) {
	t.Helper()
	placements, _ := g.Calls.GetGpuInstancePossiblePlacements.Get()
	compute, _ := g.Calls.GpuInstanceGetComputeInstanceProfileInfo.Get()
	memory, _ := g.Calls.GetMemoryInfo.Get()
	cores, _ := g.Calls.GetNumGpuCores.Get()
	ids := map[int]bool{}
	for number, p := range profiles {
		var slices, gigabytes int
		if n, err := fmt.Sscanf(p.Name, "%dg.%dgb", &slices, &gigabytes); err != nil || n != 2 || slices != p.SliceCount {
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
		if strings.HasSuffix(p.Name, "-me") && p.DecoderCount+p.EncoderCount+p.JPEGCount+p.OFACount > 0 || strings.Contains(p.Name, "+me") && p.OFACount != 1 {
			t.Errorf("%s: %s has the wrong media engines: %+v", machine, p.Name, p)
		}
		if len(placements[number]) < p.InstanceCount {
			t.Errorf("%s: %d of %s in %d places", machine, p.InstanceCount, p.Name, len(placements[number]))
		}
		whole := false
		for _, c := range compute[number] {
			whole = whole || c.SliceCount == p.SliceCount && c.MultiprocessorCount == p.MultiprocessorCount && c.InstanceCount == 1
			if c.InstanceCount != p.SliceCount/c.SliceCount || c.InstanceCount*c.MultiprocessorCount > p.MultiprocessorCount+c.MultiprocessorCount {
				t.Errorf("%s: compute instances of %s: %+v", machine, p.Name, c)
			}
		}
		if !whole {
			t.Errorf("%s: no compute instance has all of %s", machine, p.Name)
		}
	}
}

func TestAsManyPartitionsFitAsTheTableSays(t *testing.T) {
	for _, name := range []string{"a30-x2", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl4", "rtxpro6000-x2"} {
		t.Run(name, func(t *testing.T) {
			n := open(t, t.TempDir(), profile(t, name))
			must(t, n.SwitchMIG("0", node.Enabled))
			v, err := n.View()
			must(t, err)
			profiles, _ := v.GPUs[0].Calls.GetGpuInstanceProfileInfo.Get()
			for _, p := range profiles {
				if got, err := v.GPUs[0].RemainingCapacity(p.ID); err != nil || got != p.InstanceCount {
					t.Errorf("%d of %s fit (%v), want %d", got, p.Name, err, p.InstanceCount)
				}
			}
		})
	}
}

func TestProfilesWithPartitions(t *testing.T) {
	const own = `GetSerial: "1", GetMigMode: {current: 1, pending: 1}, GetMaxMigDeviceCount: 1,
    GetGpuInstanceProfileInfo: {0: {id: 9, name: 1g.5gb, sliceCount: 1, instanceCount: 1, memorySizeMB: 4864}},
    GetGpuInstancePossiblePlacements: {0: [{start: 0, size: 1}]},
    GpuInstanceGetComputeInstanceProfileInfo: {0: {0: {id: 0, sliceCount: 1, instanceCount: 1, multiprocessorCount: 14}}}`
	for _, tt := range []struct{ name, calls, want string }{
		{"answers of its own", own, ""},
		{"a table", `GetSerial: "1", GetGpuInstanceProfileInfo: a30-24gb, GetGpuInstancePossiblePlacements: a30-24gb, GpuInstanceGetComputeInstanceProfileInfo: a30-24gb`, ""},
		{"a table that is none", "GetGpuInstanceProfileInfo: a31", `gpus[0].calls.GetGpuInstanceProfileInfo: no table "a31" of MIG profiles; built in are a100-40gb, a100-80gb, a30-24gb,`},
		{"no places", "GetGpuInstanceProfileInfo: a30-24gb", "gpus[0].calls.GetGpuInstancePossiblePlacements: profile 0 has no placement"},
		{"no compute instances", "GetGpuInstanceProfileInfo: a30-24gb", "gpus[0].calls.GpuInstanceGetComputeInstanceProfileInfo: profile 8 has no compute instance profile"},
		{"no such field", strings.Replace(own, "name:", "nmae:", 1), "GetGpuInstanceProfileInfo.0.nmae: unknown field"},
		{"a place of no size", strings.Replace(own, "size: 1", "size: 0", 1), "GetGpuInstancePossiblePlacements: profile 0: want a start of at least 0"},
		{"a mode that is none", strings.Replace(own, "current: 1", "current: 2", 1), "gpus[0].calls.GetMigMode: want 0 or 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := node.ParseProfile([]byte(strings.Replace(base, `GetSerial: "1"`, tt.calls, 1)))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error:\n%v\nwant it to contain:\n%s", err, tt.want)
			}
			if tt.calls == own {
				n := open(t, t.TempDir(), p)
				made, err := n.CreatePartition("0", "1g.5gb")
				if want := "gpu-3b-00-0/1g.5gb@0"; err != nil || made != want {
					t.Errorf("got %s, %v; want %s", made, err, want)
				}
			}
		})
	}
}

func TestAPartitionedStateHasFormat4AndABareOneFormat1(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dir, profile(t, "dgx-h100"))
	must(t, n.Fail("1", "GetName", "ERROR_UNKNOWN")) // as requireFormat wants it
	requireFormat(t, dir, 1)
	must(t, n.SwitchMIG("0", node.Enabled))
	requireFormat(t, dir, 4)
	_, err := n.CreatePartition("0", "1g.10gb@3")
	must(t, err)
	before := n.String()
	again, err := node.Attach(dir)
	must(t, err)
	if got := again.String(); got != before {
		t.Errorf("another process sees:\n%s\nwant:\n%s", got, before)
	}
	must(t, n.DeletePartition("0", ""))
	must(t, n.SwitchMIG("0", node.Disabled))
	requireFormat(t, dir, 1)
}

func TestEveryPartitionHasAUUIDOfItsOwn(t *testing.T) {
	n := open(t, t.TempDir(), profile(t, "dgx-h100"))
	must(t, n.SwitchMIG("0", node.Enabled))
	seen := map[string]bool{}
	for range 3 {
		_, err := n.CreatePartition("0", "1g.10gb@3")
		must(t, err)
		v, err := n.View()
		must(t, err)
		id := v.GPUs[0].Partitions()[0].Compute.UUID
		if seen[id] || len(id) != 40 {
			t.Errorf("UUID %s again", id)
		}
		seen[id] = true
		must(t, n.DeletePartition("0", "1g.10gb@3"))
	}
}

func TestProcessesOfAPartition(t *testing.T) {
	n := open(t, t.TempDir(), profile(t, "dgx-h100"))
	must(t, n.SwitchMIG("0", node.Enabled))
	_, err := n.CreatePartition("0", "1g.10gb@3")
	must(t, err)
	must(t, n.AddProcess("0/1g.10gb@3", "train", 1<<30))
	uuid := partitionUUID(t, n)
	two := []node.Process{{PID: 7, Name: "a", Memory: 2 << 30, Threads: 50}, {PID: 8, Name: "b", Memory: 3 << 30, Threads: 50}}
	must(t, n.SetProcesses(uuid, two))
	if err := n.SetProcesses(uuid, []node.Process{{PID: 7, Memory: 9 << 30}}); !errors.Is(err, node.ErrNoMemory) {
		t.Errorf("error %v, want %v", err, node.ErrNoMemory)
	}
	v, err := n.View()
	must(t, err)
	d, err := v.Device(uuid)
	must(t, err)
	m, _ := d.Memory().Get()
	if got, want := fmt.Sprint(m.Used>>20, m.Total>>20), "6144 9984"; got != want {
		t.Errorf("memory %s, want %s", got, want)
	}
	if name, ok := v.ProcessName(8); name != "b" || !ok {
		t.Errorf("process 8 is %q", name)
	}
	before := v.String()
	must(t, n.SetProcesses(uuid, nil))
	if got := v.String(); got != before {
		t.Errorf("a view has changed:\n%s\nwant:\n%s", got, before)
	}
	v, err = n.View()
	must(t, err)
	d, err = v.Device(uuid)
	must(t, err)
	if got := d.Processes(); len(got) != 1 || !slices.ContainsFunc(got, func(p node.Process) bool { return p.Name == "train" }) {
		t.Errorf("processes %v, want the one that somebody put there", got)
	}
	if _, err := v.Device("MIG-0"); err == nil || err.Error() != `no partition "MIG-0"` {
		t.Errorf("error %v", err)
	}
}

func partitionUUID(t *testing.T, n *node.Node) string {
	t.Helper()
	v, err := n.View()
	must(t, err)
	return v.GPUs[0].Partitions()[0].Compute.UUID
}

func TestMigMinors(t *testing.T) {
	n := open(t, t.TempDir(), profile(t, "mixed"))
	must(t, n.SwitchMIG("2", node.Enabled))
	_, err := n.CreatePartition("2", "2g.10gb@2")
	must(t, err)
	v, err := n.View()
	must(t, err)
	lines := strings.Split(strings.TrimSpace(v.MigMinors()), "\n")
	if got, want := len(lines), 2+2*15*9; got != want { // of two GPUs of four
		t.Errorf("%d lines, want %d", got, want)
	}
	minors := map[string]bool{}
	for _, line := range lines {
		_, minor, _ := strings.Cut(line, " ")
		if minors[minor] || len(minor) < 3 || minor < "256" && len(minor) == 3 {
			t.Errorf("%s: a minor number of another node", line)
		}
		minors[minor] = true
	}
	c := v.GPUs[2]
	caps := c.Capabilities(c.Partitions()[0])
	for i, want := range []string{fmt.Sprintf("gpu2/gi4/access %d", caps[0]), fmt.Sprintf("gpu2/gi4/ci0/access %d", caps[1])} {
		if !slices.Contains(lines, want) {
			t.Errorf("%d: no line %s", i, want)
		}
	}
	if got, want := lines[:4], []string{"config 257", "monitor 258", "gpu0/gi0/access 259", "gpu0/gi0/ci0/access 260"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
