// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// partitions is the first GPU of the machine as its text has it: the mode, and a line for each partition.
func partitions(m *simulator.Node) string {
	var lines []string
	first := ""
	for line := range strings.Lines(m.String()) {
		line = strings.TrimSpace(line)
		name, _, _ := strings.Cut(line, " ")
		switch {
		case first == "" && strings.HasPrefix(name, "gpu-"):
			first = name
			if strings.Contains(line, " mig=on") {
				lines = append(lines, "on")
			}
		case first != "" && strings.HasPrefix(name, first+"/"):
			lines = append(lines, strings.TrimPrefix(line, first+"/"))
		}
	}
	return strings.Join(lines, "; ")
}

// first is the first GPU of the machine.
func first(t *testing.T, n *nvml.Machine) gpu.Device {
	t.Helper()
	look, err := n.Discover(t.Context())
	devices, broken := look.Devices, look.Broken
	if err != nil || len(broken) > 0 || len(devices) == 0 {
		t.Fatal(devices, broken, err)
	}
	return devices[0]
}

// place is where a partition of that profile sits when it starts there.
func place(t *testing.T, d gpu.Device, profile string, start int) gpu.Placement {
	t.Helper()
	for _, p := range d.MIG.Profiles {
		if p.Name == profile && slices.Contains(p.Starts, start) {
			return gpu.Placement{Parent: d.UUID, Profile: profile, Start: start, Size: p.Size}
		}
	}
	t.Fatalf("%s has no %s at %d", d.Name, profile, start)
	return gpu.Placement{}
}

func TestPartitions(t *testing.T) {
	process := func(m *simulator.Node) error {
		return errors.Join(m.AddProcess("0", "nvidia-persistenced", 1<<20), m.AddProcess("0", "dcgm-exporter", 1<<20))
	}
	for _, row := range []struct {
		name    string
		profile string
		before  func(m *simulator.Node) error
		script  string // "+" makes and "-" removes a partition, "?" asks whether there is room, "=" makes the GPU whole
		want    string // the GPU then, and after " | " the error of the last verb
		errorIs error
	}{
		{"the first one", "dgx-h100", nil, "+1g.10gb@4", "on; 1g.10gb@4 gi=11 ci=0", nil},
		{"made twice", "dgx-h100", nil, "+1g.10gb@4 +1g.10gb@4", "on; 1g.10gb@4 gi=11 ci=0", nil},
		{"two side by side", "dgx-h100", nil, "+3g.40gb@4 +1g.10gb+me@0",
			"on; 3g.40gb@4 gi=2 ci=0; 1g.10gb+me@0 gi=7 ci=0", nil},
		{"the largest", "dgx-h100", nil, "+7g.80gb@0", "on; 7g.80gb@0 gi=0 ci=0", nil},
		{"the mode goes with the last one", "dgx-h100", nil, "+1g.10gb@4 +3g.40gb@0 -1g.10gb@4 -3g.40gb@0", "", nil},
		{"removed twice", "dgx-h100", nil, "+1g.10gb@4 -1g.10gb@4 -1g.10gb@4", "", nil},
		{"the others stay", "dgx-h100", nil, "+1g.10gb@4 +3g.40gb@0 -1g.10gb@4", "on; 3g.40gb@0 gi=1 ci=0", nil},
		{"a card with twelve memory slices", "rtxpro6000-x2", nil, "+1g.24gb-me@0 +1g.24gb-me@3 +2g.48gb+me.all@6",
			"on; 2g.48gb+me.all@6 gi=2 ci=0; 1g.24gb-me@0 gi=3 ci=0; 1g.24gb-me@3 gi=4 ci=0", nil},
		{"there is room", "dgx-h100", nil, "+1g.10gb@4 ?3g.40gb@0", "on; 1g.10gb@4 gi=11 ci=0", nil},
		{"there is none", "dgx-h100", nil, "+1g.10gb@4 ?3g.40gb@4", "on; 1g.10gb@4 gi=11 ci=0 | 1g.10gb at 4 (GPU " +
			"instance 11, MIG-…): " +
			"remove it (nvidia-smi mig -dci, -dgi), or offer the GPU with partitions: static: a partition that is " +
			"not the driver's is in the way", gpu.ErrForeignPartition},
		{"what is in the way is named", "dgx-h100", nil, "+1g.10gb@4 +3g.40gb@4",
			"on; 1g.10gb@4 gi=11 ci=0 | 1g.10gb at 4 (GPU instance 11, MIG-…): " +
				"remove it (nvidia-smi mig -dci, -dgi), or offer the GPU with partitions: static: a partition that " +
				"is not the driver's is in the way", gpu.ErrForeignPartition},
		{"engines that are all taken", "dgx-h100", nil, "+1g.10gb+me@4 +1g.10gb+me@0",
			"on; 1g.10gb+me@4 gi=11 ci=0 | create GPU instance: ERROR_INSUFFICIENT_RESOURCES", nil},
		{"a half that is all there is", "dgx-h100", func(m *simulator.Node) error {
			return m.Fail("0", "GpuInstanceCreateComputeInstance", "ERROR_UNKNOWN")
		}, "+1g.10gb@4", "on; 1g.10gb@4 gi=11 | create compute instance: ERROR_UNKNOWN", nil},
		{"and is removed again", "dgx-h100", func(m *simulator.Node) error {
			return m.Fail("0", "GpuInstanceCreateComputeInstance", "ERROR_UNKNOWN")
		}, "+1g.10gb@4 -1g.10gb@4", "", nil},
		{"a program on the GPU", "dgx-h100", process, "+1g.10gb@4", " | switch MIG mode on: used by process 4194306 " +
			"(dcgm-exporter): the GPU is in use", gpu.ErrBusy},
		{"removing where there never was one", "dgx-h100", process, "-1g.10gb@4", "", nil},
		{"a card that needs a reset", "dgx-a100", nil, "+1g.5gb@4",
			" | switch MIG mode on: this takes a reset of the GPU, which is the administrator's to do while " +
				"no program has it open (nvidia-smi -mig, nvidia-smi --gpu-reset): the MIG mode cannot be changed " +
				"from here", gpu.ErrMIGModeFixed},
		{"a card that does not say whether it does", "dgx-h100", func(m *simulator.Node) error {
			return m.Fail("0", "GetCudaComputeCapability", "ERROR_UNKNOWN")
		}, "+1g.10gb@4", " | switch MIG mode on: get compute capability: ERROR_UNKNOWN", nil},
		{"unless it is in the mode", "dgx-a100", func(m *simulator.Node) error { return m.SwitchMIG("0", 1) },
			"+1g.5gb@4", "on; 1g.5gb@4 gi=11 ci=0", nil},
		{"in which it stays", "dgx-a100", func(m *simulator.Node) error { return m.SwitchMIG("0", 1) },
			"+1g.5gb@4 -1g.5gb@4", "on", nil},
		{"a virtual machine that cannot switch the mode", "dgx-h100",
			func(m *simulator.Node) error { return m.Fail("0", "SetMigMode", "ERROR_RESET_REQUIRED") },
			"+1g.10gb@4", " | switch MIG mode on: ERROR_RESET_REQUIRED: offer the GPU with partitions: none or " +
				"static: the MIG mode cannot be changed from here", gpu.ErrMIGModeFixed},
		{"a whole one made whole", "dgx-h100", nil, "=", "", nil},
		{"one without MIG", "t4-x2", nil, "=", "", nil},
		{"one left in the mode made whole", "dgx-h100", func(m *simulator.Node) error { return m.SwitchMIG("0", 1) },
			"=", "", nil},
		{"one with partitions stays as it is", "dgx-h100", nil, "+1g.10gb@4 =",
			"on; 1g.10gb@4 gi=11 ci=0 | GPU instance 11 (MIG-…): a partition that is not the driver's is in the way",
			gpu.ErrForeignPartition},
		{"a GPU that is lost has no partitions", "dgx-h100", func(m *simulator.Node) error { return m.Unplug("0") },
			"-1g.10gb@4", "", nil},
		{"and gets none", "dgx-h100", func(m *simulator.Node) error { return m.Unplug("0") }, "+1g.10gb@4",
			" | switch MIG mode on: ERROR_GPU_IS_LOST", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, node := machine(t, row.profile)
			d := first(t, node)
			if row.before != nil {
				if err := row.before(m); err != nil {
					t.Fatal(err)
				}
			}
			var last error
			for verb := range strings.FieldsSeq(row.script) {
				last = do(t.Context(), t, node, d, verb)
			}
			got := partitions(m)
			if last != nil {
				got += " | " + uuids.ReplaceAllString(last.Error(), "$1-…")
			}
			if got != row.want {
				t.Errorf("\ngot  %s\nwant %s", got, row.want)
			}
			if row.errorIs != nil && !errors.Is(last, row.errorIs) {
				t.Errorf("got %v, want %v", last, row.errorIs)
			}
		})
	}
}

// A record may speak of a partition that the machine cannot have: its claim can still be released.
func TestDestroyWithoutMIG(t *testing.T) {
	_, node := machine(t, "t4-x2")
	if err := node.DestroyPartition(t.Context(), gpu.Placement{Parent: first(t, node).UUID, Profile: "1g.10gb",
		Size: 1}, ""); err != nil {
		t.Error(err)
	}
}

var uuids = regexp.MustCompile(`(MIG|GPU)-[0-9a-f-]+`)

func do(ctx context.Context, t *testing.T, node *nvml.Machine, d gpu.Device, verb string) error {
	t.Helper()
	if verb == "=" {
		return node.Set(ctx, d.UUID, gpu.DesiredState{MIG: gpu.MIGOff})
	}
	profile, start, _ := strings.Cut(verb[1:], "@")
	var n int
	if _, err := fmt.Sscan(start, &n); err != nil {
		t.Fatal(err)
	}
	at := place(t, d, profile, n)
	switch verb[0] {
	case '?':
		return node.CheckPlacement(ctx, at)
	case '+':
		if err := node.Set(ctx, d.UUID, gpu.DesiredState{MIG: gpu.MIGOn}); err != nil {
			return err
		}
		_, err := node.CreatePartition(ctx, at, "")
		return err
	}
	if err := node.DestroyPartition(ctx, at, ""); err != nil {
		return err
	}
	return node.Set(ctx, d.UUID, gpu.DesiredState{MIG: gpu.MIGOffIfUnused})
}

// Whatever step fails, before or after it has done its work, the same verb repeated ends as if nothing had happened;
// and so does the opposite verb.
func TestPartitionsInterrupted(t *testing.T) {
	for _, row := range []struct{ before, verb, again, want string }{
		{"", "+3g.40gb@4", "+3g.40gb@4", "on; 3g.40gb@4 gi=2 ci=0"},
		{"", "+3g.40gb@4", "-3g.40gb@4", ""},
		{"+3g.40gb@4", "-3g.40gb@4", "-3g.40gb@4", ""},
		{"+3g.40gb@4", "-3g.40gb@4", "+3g.40gb@4", "on; 3g.40gb@4 gi=2 ci=0"},
		{"+1g.10gb@0", "+3g.40gb@4", "-3g.40gb@4", "on; 1g.10gb@0 gi=7 ci=0"},
	} {
		for at := 1; ; at++ {
			passed := 0
			for _, after := range []bool{false, true} {
				m, node := machine(t, "dgx-h100")
				d := first(t, node)
				if row.before != "" {
					if err := do(t.Context(), t, node, d, row.before); err != nil {
						t.Fatal(err)
					}
				}
				passed = 0
				err := do(steps.With(t.Context(), interrupt(&passed, at, after)), t, node, d, row.verb)
				if interrupted := errors.Is(err, errInterrupted); interrupted != (passed >= at) {
					t.Fatalf("%s, interrupted at step %d: got %v", row.verb, at, err)
				}
				if err := do(t.Context(), t, node, d, row.again); err != nil {
					t.Errorf("%s, interrupted at step %d (done: %t), %s: %v", row.verb, at, after, row.again, err)
				}
				if got := partitions(m); got != row.want {
					t.Errorf("%s, interrupted at step %d (done: %t), %s: got %q, want %q", row.verb, at, after,
						row.again, got, row.want)
				}
			}
			if passed < at {
				if passed < 3 {
					t.Errorf("%s: %d steps, want 3 or more", row.verb, passed)
				}
				break
			}
		}
	}
}

var errInterrupted = errors.New("interrupted")

// interrupt lets a step fail, and all after it: before or after it has done its work.
func interrupt(passed *int, at int, after bool) steps.Observer {
	return func(ctx context.Context, _ string, do func(context.Context) error) error {
		*passed++
		switch number := *passed; {
		case number < at:
			return do(ctx)
		case number == at && after:
			return errors.Join(do(ctx), errInterrupted)
		}
		return errInterrupted
	}
}

// A call that fails for a moment does not take partitions away.
func TestPartitionsWithTransientError(t *testing.T) {
	for _, call := range []string{"GetMigMode", "GetGpuInstances"} {
		m, node := machine(t, "dgx-h100")
		d := first(t, node)
		if err := do(t.Context(), t, node, d, "+3g.40gb@4"); err != nil {
			t.Fatal(err)
		}
		before := first(t, node).MIG
		if err := m.Fail("0", call, "ERROR_UNKNOWN"); err != nil {
			t.Fatal(err)
		}
		got := first(t, node).MIG
		if len(got.Problems) == 0 {
			t.Errorf("%s: the problem is not told", call)
		}
		got.Problems = nil
		if len(got.Instances) != 1 || !reflect.DeepEqual(got, before) {
			t.Errorf("%s: got %+v, want %+v", call, got, before)
		}
	}
}

// NVML does not tell the cores of a GPU in MIG mode: then its largest profile does, and its peak compute is that of its
// model.
func TestProductInMIGMode(t *testing.T) {
	m, node := machine(t, "dgx-h100")
	before := first(t, node).Product
	if err := m.SwitchMIG("0", 1); err != nil {
		t.Fatal(err)
	}
	if got := first(t, node).Product; got != before {
		t.Errorf("got  %+v\nwant %+v", got, before)
	}
}

// Also the peak of a model that the driver does not know is that of all multiprocessors.
func TestUnknownProductInMIGMode(t *testing.T) {
	p, err := simulator.BuiltIn("dgx-h100")
	must(t, err)
	for i := range p.GPUs {
		p.GPUs[i].Calls.GetName = hwprofile.Value("NVIDIA H800")
	}
	m, node := followingProfile(t, p)
	before := first(t, node).Product
	must(t, m.SwitchMIG("0", 1))
	if got := first(t, node).Product; got != before || got.PeakCompute == 0 {
		t.Errorf("got  %+v\nwant %+v", got, before)
	}
}

// Partitions that somebody else makes are noticed by the next look, also a part of a GPU instance.
func TestDiscoverPartitions(t *testing.T) {
	m, node := machine(t, "dgx-h100")
	if d := first(t, node); d.MIG.Enabled || len(d.MIG.Instances) > 0 {
		t.Fatalf("got %+v", d.MIG)
	}
	text := func() string {
		d := first(t, node)
		var lines []string
		for _, p := range d.MIG.Instances {
			lines = append(lines, fmt.Sprintf("%s@%d+%d of %d", p.Profile, p.Start, p.Size, p.Engines.Multiprocessors))
			if !strings.HasPrefix(string(p.UUID), "MIG-") || p.Parent != d.UUID {
				t.Errorf("%s: %s of %s", p.Profile, p.UUID, p.Parent)
			}
		}
		return strings.Join(lines, ", ")
	}
	if err := m.SwitchMIG("0", 1); err != nil {
		t.Fatal(err)
	}
	for _, profile := range []string{"3g.40gb@4", "1g.10gb@0"} {
		if _, err := m.CreatePartition("0", profile); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := text(), "1g.10gb@0+1 of 16, 3g.40gb@4+4 of 60"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := m.DeletePartition("0", "1g.10gb@0"); err != nil {
		t.Fatal(err)
	}
	if got, want := text(), "3g.40gb@4+4 of 60"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// While a call waits for a GPU, the files that the whole machine has open are looked through once in a while.
func TestFindUsersOfBusyGPU(t *testing.T) {
	m, node := machine(t, "dgx-h100")
	d := first(t, node)
	must(t, m.Fail("0", "SetMigMode", "ERROR_IN_USE"))
	fd := filepath.Join(m.Proc(), "7", "fd")
	must(t, os.MkdirAll(fd, 0o755))
	must(t, os.Symlink(fmt.Sprintf("/dev/nvidia%d", d.Minor), filepath.Join(fd, "3")))
	var said [2]string
	for i := range said {
		err := do(t.Context(), t, node, d, "+1g.10gb@4")
		if !errors.Is(err, gpu.ErrBusy) {
			t.Fatalf("got %v, want %v", err, gpu.ErrBusy)
		}
		said[i] = err.Error()
		must(t, os.RemoveAll(fd))
	}
	if want := "used by process 7 (unknown)"; !strings.Contains(said[0], want) || said[1] != said[0] {
		t.Errorf("got %q, want %q in both", said, want)
	}
}
