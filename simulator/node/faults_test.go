// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// calls makes that many calls and returns a letter for each: "." no fault, "E" an error, "s" slow, "S" both.
func calls(t *testing.T, n *node.Node, call string, count int) string {
	t.Helper()
	v, err := n.View()
	must(t, err)
	var b strings.Builder
	for range count {
		delay, e, err := n.TakeFault(v.GPUs[0].UUID, call)
		must(t, err)
		switch {
		case delay > 0 && e != "":
			b.WriteString("S")
		case delay > 0:
			b.WriteString("s")
		case e != "":
			b.WriteString("E")
		default:
			b.WriteString(".")
		}
	}
	return b.String()
}

func TestFaultsThatCount(t *testing.T) {
	const e = hwprofile.Error("ERROR_UNKNOWN")
	for _, tt := range []struct {
		name   string
		faults map[string][]node.Fault // by call
		want   string                  // of eight calls of GetName
		left   string
	}{
		{"none", nil, "........", ""},
		{"every call", map[string][]node.Fault{"GetName": {{Error: e}}}, "EEEEEEEE", "fails GetName ERROR_UNKNOWN"},
		{"another call", map[string][]node.Fault{"GetUUID": {{Error: e, Times: 1}}}, "........",
			"fails GetUUID ERROR_UNKNOWN times=1"},
		{"after some", map[string][]node.Fault{"GetName": {{Error: e, After: 3}}}, "...EEEEE",
			"fails GetName ERROR_UNKNOWN"},
		{"some", map[string][]node.Fault{"GetName": {{Error: e, Times: 2}}}, "EE......",
			"fails GetName ERROR_UNKNOWN spent"},
		{"some after some", map[string][]node.Fault{"all": {{Error: e, After: 3, Times: 2}}}, "...EE...",
			"fails all ERROR_UNKNOWN spent"},
		{"not yet", map[string][]node.Fault{"GetName": {{Error: e, After: 10, Times: 2}}}, "........",
			"fails GetName ERROR_UNKNOWN after=2 times=2"},
		{"slow", map[string][]node.Fault{"GetName": {{Delay: 1, After: 1, Times: 3}}}, ".sss....",
			"slow GetName 1ns spent"},
		{"slow and failing", map[string][]node.Fault{"GetName": {{Delay: 1, Times: 3}, {Error: e, After: 2, Times: 2}}},
			"ssSE....",
			"fails GetName ERROR_UNKNOWN spent, slow GetName 1ns spent"},
		{"one call, then all", map[string][]node.Fault{"GetName": {{Error: e, Times: 1}},
			"all": {{Error: e, After: 3}}}, "E..EEEEE",
			"fails GetName ERROR_UNKNOWN spent, fails all ERROR_UNKNOWN"},
		{"the later order", map[string][]node.Fault{"GetName": {{Error: e}, {Error: e, Times: 1}}}, "E.......",
			"fails GetName ERROR_UNKNOWN spent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			n := open(t, dir, profile(t, "t4-x2"))
			for call, faults := range tt.faults {
				for _, f := range faults {
					must(t, n.Inject("0", call, f))
				}
			}
			if got := calls(t, open(t, dir, profile(t, "t4-x2")), "GetName", 8); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			var left []string
			for _, line := range strings.Split(n.String(), "\n") {
				if text, ok := strings.CutPrefix(line, "gpu-3b-00-0 "); ok && !strings.HasPrefix(text, "Tesla") {
					left = append(left, text)
				}
			}
			if got := strings.Join(left, ", "); got != tt.left {
				t.Errorf("left: %s, want %s", got, tt.left)
			}
			must(t, n.Heal("0"))
			if got, want := calls(t, n, "GetName", 1), "."; got != want {
				t.Errorf("healed: got %s, want %s", got, want)
			}
		})
	}
}

func TestInvalidFaults(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	for _, tt := range []struct {
		name  string
		fault node.Fault
		want  string
	}{
		{"nothing", node.Fault{}, "neither an error nor a delay"},
		{"less than nothing", node.Fault{Delay: -1}, "neither an error nor a delay"},
		{"both", node.Fault{Error: "ERROR_UNKNOWN", Delay: 1}, "an error and a delay are two faults"},
		{"a negative number of calls", node.Fault{Delay: 1, Times: -1},
			"a fault is for so many calls after so many others"},
		{"an unknown error", node.Fault{Error: "ERROR_X"}, `error "ERROR_X" is not one of`},
	} {
		if err := n.Inject("0", "GetName", tt.fault); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %s", tt.name, err, tt.want)
		}
	}
	if got := n.String(); strings.Contains(got, "fails") || strings.Contains(got, "slow") {
		t.Errorf("got:\n%s", got)
	}
}

func TestFaultsCountCallsOfAllProcesses(t *testing.T) {
	const processes, each = 4, 50
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	must(t, n.Inject("0", node.AllCalls, node.Fault{Error: "ERROR_UNKNOWN", After: 70, Times: 60}))
	type result struct {
		failed int
		err    error
	}
	results := make(chan result)
	for range processes {
		c := process(t, fmt.Sprintf("call %d", each), dir)
		go func() {
			out, err := c.Output()
			results <- result{strings.Count(string(out), "E"), err}
		}()
	}
	total := 0
	for range processes {
		r := <-results
		total += r.failed
		if r.err != nil {
			t.Error(r.err)
		}
	}
	if total != 60 {
		t.Errorf("%d calls failed, want 60", total)
	}
}

func TestReadOnlyNodeCountsNoCalls(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	must(t, n.Inject("0", "GetName", node.Fault{Error: "ERROR_UNKNOWN", Times: 2}))
	reader, err := node.AttachLibrary(node.LibraryPath(dir, "580.95.05"))
	must(t, err)
	if got, want := calls(t, reader, "GetName", 4), "EEEE"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := calls(t, n, "GetName", 4), "EE.."; got != want {
		t.Errorf("afterwards: got %s, want %s", got, want)
	}
}

func TestUnpluggedGPUWithFaults(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	must(t, n.Slow("0", node.AllCalls, time.Nanosecond))
	v, err := n.View()
	must(t, err)
	must(t, n.Unplug("0"))
	if _, e, err := n.TakeFault(v.GPUs[0].UUID, "GetName"); e != hwprofile.LostGPU || err != nil {
		t.Errorf("unplugged: %s, %v", e, err)
	}
	must(t, n.RemoveGPU("0"))
	if _, e, err := n.TakeFault(v.GPUs[0].UUID, "GetName"); e != hwprofile.LostGPU || err != nil {
		t.Errorf("removed: %s, %v", e, err)
	}
}

// A virtual machine may have the GPU when faults begin and end.
func TestFaultsOfAGPUWithAnotherDriver(t *testing.T) {
	n := open(t, tmpfs.Dir(t), profile(t, "l40s-x4"))
	v, err := n.View()
	must(t, err)
	gpu := v.GPUs[0]
	drive := func(what string) {
		t.Helper()
		must(t, n.WriteSysfs("bus/pci/drivers/nvidia/"+what, gpu.PCI.Address.String()))
	}
	for _, healed := range []bool{false, true} {
		drive("unbind")
		must(t, n.Fail(gpu.Name, "GetName", "ERROR_UNKNOWN"))
		if healed {
			must(t, n.Heal(gpu.Name))
		}
		drive("bind")
		if _, e, err := n.TakeFault(gpu.UUID, "GetName"); (e == "") != healed || err != nil {
			t.Errorf("healed %v: back with NVIDIA's driver: error %q, %v", healed, e, err)
		}
	}
}
