// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

func TestPartitionsFit(t *testing.T) {
	for _, name := range []string{"a30-x2", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl4",
		"rtxpro6000-x2"} {
		t.Run(name, func(t *testing.T) {
			n := open(t, tmpfs.Dir(t), profile(t, name))
			must(t, n.SwitchMIG("0", hwprofile.Enabled))
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

func TestFormatOfPartitions(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "dgx-h100"))
	must(t, n.Fail("1", "GetName", "ERROR_UNKNOWN")) // as requireFormat wants it
	requireFormat(t, dir, 1)
	must(t, n.SwitchMIG("0", hwprofile.Enabled))
	requireFormat(t, dir, 10)
	_, err := n.CreatePartition("0", "1g.10gb@3")
	must(t, err)
	before := n.String()
	again, err := node.Attach(dir)
	must(t, err)
	if got := again.String(); got != before {
		t.Errorf("another process sees:\n%s\nwant:\n%s", got, before)
	}
	must(t, n.DeletePartition("0", ""))
	must(t, n.SwitchMIG("0", hwprofile.Disabled))
	requireFormat(t, dir, 1)
}

func TestPartitionUUIDsAreUnique(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "dgx-h100"))
	must(t, n.SwitchMIG("0", hwprofile.Enabled))
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
	n := open(t, tmpfs.Dir(t), profile(t, "dgx-h100"))
	must(t, n.SwitchMIG("0", hwprofile.Enabled))
	_, err := n.CreatePartition("0", "1g.10gb@3")
	must(t, err)
	must(t, n.AddProcess("0/1g.10gb@3", "train", 1<<30))
	uuid := partitionUUID(t, n)
	two := []node.Process{{PID: 7, Name: "a", Memory: 2 << 30, Threads: 50}, {PID: 8, Name: "b", Memory: 3 << 30,
		Threads: 50}}
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
	if got := d.Processes(); len(got) != 1 || !slices.ContainsFunc(got,
		func(p node.Process) bool { return p.Name == "train" }) {
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
	n := open(t, tmpfs.Dir(t), profile(t, "mixed"))
	must(t, n.SwitchMIG("2", hwprofile.Enabled))
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
	for i, want := range []string{fmt.Sprintf("gpu2/gi4/access %d", caps[0]), fmt.Sprintf("gpu2/gi4/ci0/access %d",
		caps[1])} {
		if !slices.Contains(lines, want) {
			t.Errorf("%d: no line %s", i, want)
		}
	}
	if got, want := lines[:4], []string{"config 257", "monitor 258", "gpu0/gi0/access 259",
		"gpu0/gi0/ci0/access 260"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
