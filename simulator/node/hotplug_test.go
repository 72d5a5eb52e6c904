// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// anyway is a machine that needs nothing before a new GPU is seen.
func anyway(*node.View) error { return nil }

// do runs one verb on the node: "unplug G", "plug G", "remove G", "add G [ADDRESS]".
func do(n *node.Node, verb string) error {
	words := strings.Fields(verb)
	switch words[0] {
	case "unplug":
		return n.Unplug(words[1])
	case "plug":
		return n.Plug(words[1])
	case "remove":
		return n.RemoveGPU(words[1])
	case "prohibit":
		return n.SetComputeMode(words[1], 2)
	case "break":
		return n.Fail(words[1], "GetName", "ERROR_UNKNOWN")
	}
	var at hwprofile.Address
	if len(words) > 2 {
		var err error
		if at, err = hwprofile.ParseAddress(words[2]); err != nil {
			return err
		}
	}
	_, err := n.AddGPU(words[1], at, anyway)
	return err
}

// cards is a line for each GPU: index, name, minor number, UUID as the number it had first, place, what is wrong with
// it.
func cards(t *testing.T, n *node.Node, seen map[string]int) string {
	t.Helper()
	v, err := n.View()
	must(t, err)
	var b strings.Builder
	for _, c := range v.GPUs {
		if _, known := seen[c.UUID]; !known {
			seen[c.UUID] = len(seen)
		}
		fmt.Fprintf(&b, "%d %s minor=%d uuid=%d below %v", c.Index, c.Name, c.Minor, seen[c.UUID], c.PCI.Bridges)
		if c.State.Unplugged {
			b.WriteString(" unplugged")
		}
		if c.State.ComputeMode != 0 {
			fmt.Fprintf(&b, " %s", c.State.ComputeMode)
		}
		if e := c.Fault("GetName"); e != "" {
			fmt.Fprintf(&b, " %s", e)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestAddAndRemoveGPUs(t *testing.T) {
	const first, second = "gpu-3b-00-0 minor=0 uuid=0 below [0000:3a:00.0]",
		"gpu-af-00-0 minor=1 uuid=1 below [0000:ae:00.0]"
	for _, tt := range []struct{ name, verbs, want string }{
		{"none", "", "0 " + first + "\n1 " + second + "\n"},
		{"one falls off the bus", "unplug gpu-3b-00-0", "0 " + first + " unplugged ERROR_GPU_IS_LOST\n1 " + second +
			"\n"},
		{"and again", "unplug 0; unplug 0", "0 " + first + " unplugged ERROR_GPU_IS_LOST\n1 " + second + "\n"},
		{"it comes back", "unplug 0; plug 0; plug 0", "0 " + first + "\n1 " + second + "\n"},
		{"it comes back without its settings", "prohibit 0; unplug 0; plug 0", "0 " + first + "\n1 " + second + "\n"},
		{"one that was never gone keeps its settings", "prohibit 0; plug 0", "0 " + first + " Prohibited\n1 " + second +
			"\n"},
		{"it comes back with its faults", "break 0; unplug 0; plug 0", "0 " + first + " ERROR_UNKNOWN\n1 " + second +
			"\n"},
		{"one is removed", "unplug 0; remove 0", "0 " + second + "\n"},
		{"one is removed while it works", "remove gpu-af-00-0", "0 " + first + "\n"},
		{"all are removed", "remove 0; remove 0", ""},
		{"one is added beside another", "add gpu-3b-00-0",
			"0 " + first + "\n1 gpu-3c-00-0 minor=2 uuid=2 below [0000:3a:01.0]\n2 " + second + "\n"},
		{"one is added at a place", "add 0 0000:01:00.0",
			"0 gpu-01-00-0 minor=2 uuid=2 below [0000:3a:01.0]\n1 " + first + "\n2 " + second + "\n"},
		{"one is added in the place of another", "remove 0; add 0 0000:3b:00.0",
			"0 gpu-3b-00-0 minor=2 uuid=2 below [0000:ae:01.0]\n1 " + second + "\n"},
		{"one is added like one that was added", "add 0; add gpu-3c-00-0",
			"0 " + first + "\n1 gpu-3c-00-0 minor=2 uuid=2 below [0000:3a:01.0]\n2 gpu-3d-00-0 minor=3 uuid=3 below " +
				"[0000:3a:02.0]\n3 " + second + "\n"},
		{"the first is removed and another added", "add 0; remove 0; add 0",
			"0 gpu-3c-00-0 minor=2 uuid=2 below [0000:3a:01.0]\n1 gpu-3d-00-0 minor=3 uuid=3 below [0000:3a:02.0]\n2 " +
				second + "\n"},
		{"one is added, removed and added again", "add 0; remove 1; add 0",
			"0 " + first + "\n1 gpu-3c-00-0 minor=3 uuid=2 below [0000:3a:01.0]\n2 " + second + "\n"},
		{"an added one falls off the bus and comes back", "add 0; unplug 1; plug gpu-3c-00-0",
			"0 " + first + "\n1 gpu-3c-00-0 minor=2 uuid=2 below [0000:3a:01.0]\n2 " + second + "\n"},
		{"one like another that is off the bus and broken", "break 1; unplug 1; add 1",
			"0 " + first + "\n1 " + second + " unplugged ERROR_GPU_IS_LOST\n2 gpu-b0-00-0 minor=2 uuid=2 below " +
				"[0000:ae:01.0]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			n := open(t, dir, profile(t, "t4-x2"))
			seen := map[string]int{}
			cards(t, n, seen)
			for _, verb := range strings.Split(tt.verbs, "; ") {
				if verb != "" {
					must(t, do(n, verb))
				}
			}
			if got := cards(t, open(t, dir, profile(t, "t4-x2")), seen); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

func TestAddAndRemoveGPUsRefused(t *testing.T) {
	for _, tt := range []struct{ name, verb, want string }{
		{"unplug one that is not there", "unplug gpu-00-00-0",
			`no GPU "gpu-00-00-0"; this node has gpu-3b-00-0, gpu-af-00-0`},
		{"plug in one that was removed", "plug gpu-5e-00-0", `no GPU "gpu-5e-00-0"`},
		{"remove one that was removed", "remove gpu-5e-00-0", `no GPU "gpu-5e-00-0"`},
		{"like one that was removed", "add gpu-5e-00-0", `no GPU "gpu-5e-00-0"`},
		{"the place of another", "add 0 0000:af:00.0", "add a GPU like gpu-3b-00-0: there is something at " +
			"0000:af:00.0 already"},
		{"the place of a bridge", "add 0 0000:ae:00.0", "add a GPU like gpu-3b-00-0: there is something at " +
			"0000:ae:00.0 already"},
		{"another domain", "add 0 0001:3c:00.0", "add a GPU like gpu-3b-00-0: 0001:3c:00.0 is in another PCI domain"},
		{"no place at all", "add 0 3c:00.0", `"3c:00.0" is no PCI address such as 0000:1b:00.0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
			must(t, do(n, "add 0 0000:5e:00.0"))
			must(t, do(n, "remove gpu-5e-00-0"))
			before := n.String()
			if err := do(n, tt.verb); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if got := n.String(); got != before {
				t.Errorf("got:\n%s\nwant:\n%s", got, before)
			}
		})
	}
}

func TestMaxGPUs(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	for range hwprofile.MaxGPUs - 2 {
		must(t, do(n, "add 0"))
	}
	if err := do(n, "add 0"); err == nil || !strings.Contains(err.Error(), "the machine has 64 GPUs, as many as fit") {
		t.Errorf("error %v, want one about the number of GPUs", err)
	}
}

// Minor numbers are reused only after all have been used, and are always unique.
func TestMinorNumbersAreReused(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	var last node.GPU
	for i := range 300 {
		var err error
		if last, err = n.AddGPU("gpu-3b-00-0", hwprofile.Address{}, anyway); err != nil {
			t.Fatal(err)
		}
		if want := i + 2; last.Minor != want && want <= 247 {
			t.Fatalf("minor number %d, want %d", last.Minor, want)
		}
		must(t, n.RemoveGPU(last.Name))
	}
	if want := 2; last.Minor != want {
		t.Errorf("minor number %d, want %d", last.Minor, want)
	}
}

// The minor number of a removed GPU is not given to the next one, also if a reload of the driver had changed it.
func TestMinorNumberOfRemovedGPU(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	must(t, n.ReloadDriver("", []string{"0", "1"}))
	must(t, n.RemoveGPU("gpu-3b-00-0"))
	added, err := n.AddGPU("gpu-af-00-0", hwprofile.Address{}, anyway)
	must(t, err)
	if added.Minor != 2 {
		t.Errorf("minor number %d, want 2: a container may have the device node of the removed GPU, 1", added.Minor)
	}
}

func TestAddGPUCallsReadyFirst(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	other, err := node.Attach(dir)
	must(t, err)
	before := n.String()
	_, err = n.AddGPU("0", hwprofile.Address{}, func(next *node.View) error {
		if len(next.GPUs) != 3 || other.String() != before {
			t.Errorf("ready sees %d GPUs, others see:\n%s", len(next.GPUs), other)
		}
		return fmt.Errorf("not ready")
	})
	if err == nil || err.Error() != "not ready" || n.String() != before {
		t.Errorf("error %v, then:\n%s", err, n)
	}
}

func TestOtherProfileDropsAddedGPUsAndCrash(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	must(t, do(n, "add 0"))
	must(t, do(n, "remove gpu-af-00-0"))
	must(t, n.OrderCrash(node.Crash{At: 1}))
	golden(t, "l40s-x4.txt", open(t, dir, profile(t, "l40s-x4")).String())
	golden(t, "t4-x2.txt", open(t, dir, profile(t, "t4-x2")).String())
}
