// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bufio"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

func setHealth(n *node.Node, which string, settings ...string) error {
	change, err := node.ParseHealth(settings)
	if err != nil {
		return err
	}
	return n.ChangeHealth(which, change)
}

// health is the lines of the node about health, and about what a reset changes.
func health(n *node.Node) string {
	var out strings.Builder
	for line := range strings.Lines(n.String()) {
		if strings.Contains(line, " health ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestHealth(t *testing.T) {
	for _, tt := range []struct {
		name, profile string
		settings      []string // a line each
		want          string
	}{
		{"nothing", "dgx-h100", nil, ""},
		{"everything", "dgx-h100",
			[]string{"recovery-action=reset remapped-rows=pending nvlink-down=7,3,7 fabric=unhealthy slowdown=thermal"},
			"gpu-1b-00-0 health recovery-action=reset remapped-rows=pending nvlink-down=3,7 fabric=unhealthy " +
				"slowdown=thermal\n"},
		{"one after another", "dgx-h100", []string{"recovery-action=drain-p2p", "remapped-rows=failed"},
			"gpu-1b-00-0 health recovery-action=drain-p2p remapped-rows=failed\n"},
		{"and back", "dgx-h100", []string{
			"recovery-action=reboot remapped-rows=pending nvlink-down=0 fabric=unhealthy slowdown=power-brake",
			"recovery-action=none remapped-rows=none nvlink-down=none fabric=healthy slowdown=none"}, ""},
		{"silent faults", "dgx-h100", []string{"pcie=x8g3 ecc=off performance=P8"},
			"gpu-1b-00-0 health pcie=x8g3 ecc=off performance=P8\n"},
		{"and none any more", "dgx-h100", []string{"pcie=x8g3 ecc=off performance=P8",
			"pcie=profile ecc=profile performance=profile"}, ""},
		{"no ECC to switch off", "rtx2080ti-x4", []string{"ecc=off"},
			"gpu-18-00-0 has no ECC (ERROR_NOT_SUPPORTED)"},
		{"a vGPU has no PCIe link", "vgpu-guest", []string{"pcie=x8g3"},
			"gpu-06-00-0 has no PCIe link of its own (ERROR_NOT_SUPPORTED)"},
		{"pages", "dgx1-v100", []string{"retired-pages=pending"}, "gpu-06-00-0 health retired-pages=pending\n"},
		{"no pages from Ampere on", "dgx-h100", []string{"retired-pages=pending"},
			"gpu-1b-00-0 retires no pages: that takes ECC and a compute capability below 8.0 (ERROR_NOT_SUPPORTED)"},
		{"no rows before", "dgx1-v100", []string{"remapped-rows=pending"},
			"gpu-06-00-0 remaps no rows: that came with compute capability 8.0 and takes ECC (ERROR_NOT_SUPPORTED)"},
		{"neither without ECC", "rtx2080ti-x4", []string{"retired-pages=pending"},
			"gpu-18-00-0 retires no pages: that takes"},
		{"no such link", "dgx-h100", []string{"nvlink-down=18"},
			"gpu-1b-00-0 has no NVLink 18; it has 18 (ERROR_NOT_SUPPORTED)"},
		{"no fabric", "dgx-a100", []string{"fabric=unhealthy"},
			"gpu-07-00-0 is in no NVLink fabric (ERROR_NOT_SUPPORTED)"},
		{"nothing if one is wrong", "dgx-h100", []string{"recovery-action=reset nvlink-down=-1"},
			`health "nvlink-down=-1": want recovery-action=none|reset|reboot|drain-p2p|drain-and-reset|`},
		{"an unknown name", "dgx-h100", []string{"colour=red"}, `health "colour=red": want recovery-action=none|`},
		{"an unknown value", "dgx-h100", []string{"fabric=none"}, `health "fabric=none": want recovery-action=none|`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := open(t, tmpfs.Dir(t), profile(t, tt.profile))
			got := ""
			for _, line := range tt.settings {
				if err := setHealth(n, "0", strings.Fields(line)...); err != nil {
					got = err.Error()
				}
			}
			if got += health(n); got != tt.want && (tt.want == "" || !strings.HasPrefix(got, tt.want)) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestBoot: a program that starts in another boot of the machine finds its GPUs as after a reboot.
func TestBoot(t *testing.T) {
	dir := tmpfs.Dir(t)
	for _, tt := range []struct {
		name, boot string
		lost       bool
	}{
		{"the first start of the simulation", "a", false},
		{"another start in the same boot", "a", false},
		{"after a power cut", "b", true},
		{"another start after it", "b", false},
	} {
		n := open(t, dir, profile(t, "t4-x2"))
		must(t, n.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess))
		must(t, open(t, dir, profile(t, "t4-x2")).Boot(tt.boot))
		v, err := n.View()
		must(t, err)
		if mode, _ := v.GPUs[0].ComputeMode().Get(); (mode != hwprofile.ComputeModeExclusiveProcess) != tt.lost {
			t.Errorf("%s: compute mode %s, lost: want %t", tt.name, mode, tt.lost)
		}
	}
}

// TestResetAndUnload are allowed and refused, and what is left afterwards.
func TestResetAndUnload(t *testing.T) {
	open1 := func(n *node.Node) func() { return n.Use() }
	unload := func(n *node.Node) error { return n.Unload() }
	reset := func(n *node.Node) error { return n.Reset("0") }
	const busy = "in use by another client: a process has NVML open (ERROR_IN_USE)"
	const sick = "recovery-action=reset remapped-rows=pending nvlink-down=3"
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, n *node.Node)
		do     func(n *node.Node) error
		want   string // the error, or what the node prints of the first GPU after "mode="
	}{
		{"a reset of a GPU that is well", nil, reset, "Default"},
		{"what is pending and set", func(t *testing.T, n *node.Node) {
			must(t, setHealth(n, "0", strings.Fields(sick)...))
			must(t, n.SetComputeMode("0", hwprofile.ComputeModeExclusiveProcess))
			must(t, n.SetTimeSlice("0", 3))
			must(t, n.Fail("0", "GetName", "ERROR_UNKNOWN"))
		}, reset, "Default\nhealth nvlink-down=3\nfails GetName ERROR_UNKNOWN"},
		{"rows that failed", func(t *testing.T, n *node.Node) { must(t, setHealth(n, "0", "remapped-rows=failed")) },
			reset, "Default\nhealth remapped-rows=failed"},
		{"partitions", func(t *testing.T, n *node.Node) {
			must(t, n.SwitchMIG("0", 1))
			_, err := n.CreatePartition("0", "1g.5gb")
			must(t, err)
		}, reset, "Default mig=on"},
		{"NVML is open", func(t *testing.T, n *node.Node) { t.Cleanup(open1(n)) }, reset, busy},
		{"NVML was open", func(_ *testing.T, n *node.Node) { open1(n)() }, reset, "Default"},
		{"a process", func(t *testing.T, n *node.Node) { must(t, n.AddProcess("0", "train", 0)) }, reset,
			"gpu-07-00-0 is in use by another client: process 4194305 train (ERROR_IN_USE)"},
		{"a process on another GPU", func(t *testing.T, n *node.Node) { must(t, n.AddProcess("1", "train", 0)) }, reset,
			"Default"},
		{"an unplugged GPU", func(t *testing.T, n *node.Node) { must(t, n.Unplug("0")) }, reset,
			"gpu-07-00-0 is off the bus (ERROR_GPU_IS_LOST)"},
		{"a reset without the driver", func(t *testing.T, n *node.Node) { must(t, n.Unload()) }, reset,
			"gpu-07-00-0 cannot be reset: the driver is not loaded (ERROR_DRIVER_NOT_LOADED)"},
		{"a GPU that is plugged back", func(t *testing.T, n *node.Node) {
			must(t, setHealth(n, "0", strings.Fields(sick)...))
			must(t, n.Unplug("0"))
		}, func(n *node.Node) error { return n.Plug("0") }, "Default\nhealth nvlink-down=3"},
		{"unload", func(t *testing.T, n *node.Node) { must(t, setHealth(n, "0", strings.Fields(sick)...)) }, unload,
			"unloaded Default\nhealth nvlink-down=3"},
		{"unload twice, load", nil, func(n *node.Node) error {
			for _, f := range []func() error{n.Unload, n.Unload, n.Load, n.Load} {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		}, "Default"},
		{"unload, reload", func(t *testing.T, n *node.Node) { must(t, n.Unload()) },
			func(n *node.Node) error { return n.ReloadDriver("", nil) }, "Default"},
		{"unload while NVML is open", func(t *testing.T, n *node.Node) { t.Cleanup(open1(n)) }, unload, busy},
		{"unload with a process", func(t *testing.T, n *node.Node) { must(t, n.AddProcess("1", "train", 0)) }, unload,
			"gpu-0f-00-0 is in use by another client: process 4194305 train (ERROR_IN_USE)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			n := open(t, dir, profile(t, "dgx-a100"))
			if tt.before != nil {
				tt.before(t, n)
			}
			other, err := node.Attach(dir)
			must(t, err)
			err = tt.do(other)
			got := firstGPU(n)
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// firstGPU is what the node prints of the driver and of the first GPU after "mode=", without the GPU's name.
func firstGPU(n *node.Node) string {
	lines := strings.Split(n.String(), "\n")
	name, _, _ := strings.Cut(lines[1], " ")
	_, state, _ := strings.Cut(lines[1], "mode=")
	out := []string{state}
	for _, line := range lines[2:] {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			out = append(out, rest)
		}
	}
	text := strings.Join(out, "\n")
	if strings.HasSuffix(lines[0], " unloaded") {
		text = "unloaded " + text
	}
	return text
}

// A process that ends, however it does, has NVML no longer open.
func TestKilledProcessReleasesNVML(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	holder := process(t, "use", dir)
	in, err := holder.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	if line := bufio.NewScanner(out); !line.Scan() || line.Text() != "using" {
		t.Fatalf("got %q", line.Text())
	}
	if err := n.Reset("0"); node.CodeOf(err) != hwprofile.InUse {
		t.Errorf("while it runs: got %v, want %s", err, hwprofile.InUse)
	}
	must(t, holder.Process.Kill())
	_ = holder.Wait() // it was killed
	if err := n.Reset("0"); err != nil {
		t.Errorf("after its death: %v", err)
	}
}
