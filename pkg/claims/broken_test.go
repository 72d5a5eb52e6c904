// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/simulator"
	simnode "github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

// TestMain lets the test program be the nvidia-smi of the machines that it makes.
func TestMain(m *testing.M) {
	if self, err := os.Readlink("/proc/self/exe"); err == nil && filepath.Base(self) == "nvidia-smi" {
		os.Exit(smi.Run(smi.Here(), os.Args[1:], time.Now(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// brokenGPU is the driver on a simulated machine, with the first GPU of which something goes wrong.
type brokenGPU struct {
	*fixture
	machine *simulator.Node
	use     gpu.SharingMode
	inv     inventory.Inventory // as the last discovery has found it
	nvml    *nvml.Machine       // of this process
	claims  *claims.Preparer
	told    []gpu.UUID // GPUs on which a claim has left something
	// patience is how long a call may take until the kubelet calls again. Only a GPU that hangs may exhaust it.
	patience time.Duration
}

func newBrokenGPU(t *testing.T, profile string, use gpu.SharingMode) *brokenGPU {
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	b := &brokenGPU{fixture: newFixture(t), use: use, patience: time.Hour}
	b.machine, err = simulator.Open(b.dir+"/machine", p)
	must(t, err)
	must(t, b.machine.LayOut(simulator.Programs{NvidiaSMI: os.Args[0]}))
	must(t, b.restart(time.Hour))
	return b
}

// restart begins a new process, which discovers the GPUs and resumes the claims. Devices that are missing stay, as
// those of claims do.
func (b *brokenGPU) restart(timeout time.Duration) error {
	b.t.Helper()
	if b.nvml != nil {
		_ = b.nvml.Close()
	}
	root := b.machine.DriverRoot()
	b.nvml = nvml.New(nvml.MachineConfig{Library: b.machine.NVML(), Sysfs: root + "/sys",
		WriteSysfs: b.machine.WriteSysfs, Dev: root + "/dev", Proc: b.machine.Proc(),
		Driver: driverroot.Root{Host: root, Here: root}, Timeout: timeout})
	b.claims = b.preparer()
	b.claims.Devices = func() (inventory.Inventory, error) { return b.inv, nil }
	b.claims.Hardware, b.claims.Passthrough, b.claims.Toolkit = b.nvml, b.nvml, devicesOnly{}
	b.claims.NotRestored = func(id gpu.UUID) { b.told = append(b.told, id) }
	found, err := b.nvml.Discover(b.t.Context())
	must(b.t, err)
	now := inventory.Unclaimed(found.Devices, func(gpu.Device) gpu.SharingMode { return b.use })
	b.inv = now.Retain(b.inv, func(string) bool { return true })
	return b.call(b.claims.Resume)
}

// devicesOnly is a toolkit that asks nothing of the GPUs.
type devicesOnly struct{}

func (devicesOnly) DriverAccess(context.Context) (gpu.Access, error) {
	return gpu.Access{Env: []string{"COMMON=1"}}, nil
}

func (devicesOnly) Access(_ context.Context, d gpu.Device) (gpu.Access, error) {
	return gpu.Access{Nodes: []gpu.DeviceNode{{Path: "/dev/nvidia0", HostPath: "/dev/nvidia0", Type: "c"}}}, nil
}

func (devicesOnly) MemoryLimit(gpu.Device) (gpu.Access, error) { return gpu.Access{}, nil }

// call calls do as the kubelet does: again while the call takes too long.
func (b *brokenGPU) call(do func(context.Context) error) error {
	for {
		ctx, cancel := context.WithTimeout(b.context(), b.patience)
		err := do(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

func (b *brokenGPU) prepare(name, allocated string) error {
	return b.call(func(ctx context.Context) error {
		_, err := b.claims.Prepare(ctx, claim(name, allocated))
		return err
	})
}

// unprepare releases the claim, and fails the test if its pod does not end.
func (b *brokenGPU) unprepare(name string) (restored bool) {
	b.t.Helper()
	err := b.call(func(ctx context.Context) error {
		return b.claims.Unprepare(ctx, sharing.Claim{Name: name, UID: claim(name, "").UID})
	})
	if err != nil && !errors.Is(err, claims.ErrNotRestored) {
		b.t.Errorf("the pod of claim %s does not end: %v", name, err)
	}
	specs, _ := filepath.Glob(filepath.Join(b.cdiDir(), "*claim_"+name+"*"))
	if len(specs) > 0 {
		b.t.Errorf("released: got the CDI specs %q", specs)
	}
	return err == nil
}

// records are the claims with a record, and their phases.
func (b *brokenGPU) records() (all []string) {
	records, err := b.claims.Records.List()
	must(b.t, err)
	for _, r := range records {
		all = append(all, string(r.Claim.UID)+" "+string(r.Phase))
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A pod on a broken GPU ends, whatever it has of the GPU and whatever is wrong with it: what cannot be undone stays
// recorded, and is undone when the GPU is back.
func TestBrokenGPUs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making simulated device nodes needs root")
	}
	exclusive := gpu.SharingMode{Sharing: gpu.Exclusive}
	shapes := []struct {
		name, profile string
		use           gpu.SharingMode
		is            gpu.Type
		suffix        string // of the allocated device: see claim
		undo          string // the call of NVML that undoes what it changes; empty: none does
	}{
		{"a whole GPU", "rtxpro6000-x2", exclusive, gpu.TypeGPU, "", ""},
		{"a share", "rtxpro6000-x2", gpu.SharingMode{}, gpu.TypeGPU, "#s:5Gi/30", "SetComputeMode"},
		{"a time slice", "rtxpro6000-x2", exclusive, gpu.TypeGPU, " Long", simnode.AllCalls},
		{"a partition", "rtxpro6000-x2", exclusive, gpu.TypeMIG, "", "SetMigMode"},
		{"a GPU for a virtual machine", "l40s-x4", exclusive, gpu.TypeVFIO, "", ""},
		{"a vGPU", "a16-x4", exclusive, gpu.TypeVGPU, "", ""},
	}
	all := func(e hwprofile.Error) func(*simnode.Node, string, string) error {
		return func(n *simnode.Node, name, _ string) error { return n.Fail(name, simnode.AllCalls, e) }
	}
	states := []struct {
		name   string
		breaks func(n *simnode.Node, name, undo string) error
		mends  func(*simnode.Node, string) error // nil: it never comes back
		ends   bool                              // with it, what a claim has changed: nothing is left to undo
	}{
		{"lost", func(n *simnode.Node, name, _ string) error { return n.Unplug(name) },
			(*simnode.Node).Plug, true},
		{"reset required", all("ERROR_RESET_REQUIRED"), func(n *simnode.Node, name string) error {
			return errors.Join(n.Heal(name), n.Reset(name))
		}, true},
		{"unknown error", all("ERROR_UNKNOWN"), (*simnode.Node).Heal, false},
		{"hanging", func(n *simnode.Node, name, _ string) error {
			return n.Slow(name, simnode.AllCalls, time.Hour)
		}, (*simnode.Node).Heal, false},
		{"off the bus", func(n *simnode.Node, name, _ string) error { return n.RemoveGPU(name) }, nil, true},
		{"it answers, and cannot be set back", func(n *simnode.Node, name, undo string) error {
			if undo == "" {
				return nil
			}
			return n.Fail(name, undo, "ERROR_UNKNOWN")
		}, (*simnode.Node).Heal, false},
		{"one call fails", func(n *simnode.Node, name, undo string) error {
			if undo == "" {
				return nil
			}
			return n.Inject(name, undo, simnode.Fault{Error: "ERROR_UNKNOWN", Times: 1})
		}, (*simnode.Node).Heal, true},
	}
	for _, shape := range shapes {
		for _, state := range states {
			t.Run(shape.name+", "+state.name, func(t *testing.T) {
				t.Parallel()
				b := newBrokenGPU(t, shape.profile, shape.use)
				before := b.machine.String()
				d := b.inv[slices.IndexFunc(b.inv, func(d gpu.Device) bool { return d.Type == shape.is })]
				allocated := d.Name + shape.suffix
				must(t, b.prepare("a", allocated))

				must(t, state.breaks(b.machine.Node, gpu.ParentName(d.Name), shape.undo))
				must(t, b.machine.LayOut(simulator.Programs{}))
				timeout := time.Hour
				if state.name == "hanging" {
					timeout, b.patience = 10*time.Second, time.Second
				}
				_ = b.restart(timeout) // the claim may have lost its GPU
				want := state.ends || shape.undo == ""
				got := b.unprepare("a")
				if shape.is == gpu.TypeVFIO { // if it comes back, its persistence mode may be left to restore
					want = got
				}
				if got != want || got != (len(b.told) == 0) || got != (len(b.records()) == 0) {
					t.Errorf("restored: got %t, told of GPUs %q, records %q; want %t", got, b.told, b.records(), want)
				}
				short, cancel := context.WithTimeout(b.context(), time.Second)
				_, _ = b.claims.Prepare(short, claim("b", allocated)) // which returns
				cancel()
				b.unprepare("b")
				if state.mends == nil {
					return
				}

				must(t, b.nvml.Close())
				must(t, state.mends(b.machine.Node, gpu.ParentName(d.Name)))
				must(t, b.machine.LayOut(simulator.Programs{}))
				b.patience = time.Hour
				must(t, b.restart(time.Hour))
				for _, name := range []string{"a", "b"} {
					if !b.unprepare(name) {
						t.Errorf("the GPU is back: claim %s is not restored", name)
					}
				}
				if got := b.machine.String(); got != before || len(b.records()) > 0 {
					t.Errorf("the GPU is back: got records %q and\n%s\nwant\n%s", b.records(), got, before)
				}
				must(t, b.prepare("c", allocated))
				b.unprepare("c")
			})
		}
	}
}
