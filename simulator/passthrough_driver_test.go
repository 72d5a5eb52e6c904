// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	gputypes "github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// vmDriver is the driver on a simulated machine with an IOMMU. Every call is one of a new process.
type vmDriver struct {
	*testing.T
	dir  string
	node *simulator.Node
	inv  inventory.Inventory // of the first discovery
	boot string              // the machine's boot ID
	card string              // the PCI address without the function

	writes func(file string) // called before each write to sysfs, if there is one
}

// newVMDriver is about the first GPU of an L40S server, whose cards have one function.
func newVMDriver(t *testing.T) *vmDriver { return newVMDriverOf(t, "l40s-x4", "0000:38:00") }

// newVMDriverOf is about the GPU on the card of the profile.
func newVMDriverOf(t *testing.T, profile, card string) *vmDriver {
	n := closed(t, profile)
	must(t, n.LayOut(simulator.Programs{}))
	d := &vmDriver{T: t, dir: t.TempDir(), node: n, boot: "boot", card: card}
	m := d.machine()
	found, err := m.Discover(t.Context())
	must(t, err)
	must(t, m.Close()) // without persistence mode, it stays open
	d.inv = inventory.Defaults(found.Devices)
	return d
}

func (d *vmDriver) machine() *nvml.Machine {
	root := d.node.DriverRoot()
	write := func(file, text string) error {
		if d.writes != nil {
			d.writes(file)
		}
		return d.node.WriteSysfs(file, text)
	}
	return nvml.New(nvml.MachineConfig{Library: d.node.NVML(), Sysfs: root + "/sys", WriteSysfs: write,
		Dev: root + "/dev", Proc: d.node.Proc(), Driver: driverroot.Root{Host: root, Here: root}})
}

// serve prepares a claim with the device, or releases it without one.
func (d *vmDriver) serve(ctx context.Context, device string) error {
	p := d.preparer()
	defer p.Hardware.(*nvml.Machine).Close()
	if device == "" {
		return p.Unprepare(ctx, sharing.Claim{Namespace: "ns", Name: "a", UID: "a"})
	}
	return prepare(ctx, p, "a", device)
}

func (d *vmDriver) preparer() *claims.Preparer {
	records, err := checkpoint.Open(filepath.Join(d.dir, "plugin"))
	must(d.T, err)
	specs, err := cdi.NewSpecs("gpu.nvidia.com", filepath.Join(d.dir, "cdi"))
	must(d.T, err)
	m := d.machine()
	return &claims.Preparer{Driver: "gpu.nvidia.com", BootID: d.boot, Daemons: mps.Dir(filepath.Join(d.dir, "mps")),
		Specs: specs, Records: records, Hardware: m, Passthrough: m, Timeout: time.Nanosecond,
		Devices: func() (inventory.Inventory, error) { return d.inv, nil }}
}

func prepare(ctx context.Context, p *claims.Preparer, name, device string) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID: types.UID(name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.nvidia.com", Pool: "n",
			Device: device}}}}
	_, err := p.Prepare(ctx, claim)
	return err
}

// String is the drivers of the card's functions, the GPU's persistence mode, the vGPUs of the machine, and what a
// container gets.
func (d *vmDriver) String() string {
	functions, _ := filepath.Glob(filepath.Join(d.node.DriverRoot(), "sys/bus/pci/devices", d.card+".*"))
	text := ""
	for _, dir := range functions {
		link, _ := os.Readlink(filepath.Join(dir, "driver"))
		override, _ := os.ReadFile(filepath.Join(dir, "driver_override"))
		text += filepath.Base(link) + " " + strings.TrimSpace(string(override)) + " "
	}
	v, err := d.node.View()
	must(d.T, err)
	for _, c := range v.OnBus() {
		if mode, _ := c.Persistence().Get(); c.PCI.Address.String() == d.card+".0" {
			text += fmt.Sprintf("persistence=%v", mode)
		}
	}
	vgpus, _ := filepath.Glob(filepath.Join(d.node.DriverRoot(), "sys/bus/mdev/devices/*"))
	for _, dir := range vgpus {
		name, err := os.ReadFile(filepath.Join(dir, "mdev_type/name"))
		must(d.T, err)
		text += " " + filepath.Base(dir) + " " + strings.TrimSpace(string(name))
	}
	records, _ := filepath.Glob(filepath.Join(d.dir, "plugin/claims/*.json"))
	specs, _ := filepath.Glob(filepath.Join(d.dir, "cdi/*"))
	for _, file := range specs {
		spec, _ := os.ReadFile(file)
		text += " " + strings.ReplaceAll(string(spec), d.node.DriverRoot(), "<root>")
	}
	return fmt.Sprintf("%s, %d records", text, len(records))
}

const vmDevice = "gpu-38-00-0-vfio"

// The card has a sound function.
func TestCrashesOfPassthrough(t *testing.T) {
	open := func() *vmDriver { return newVMDriverOf(t, "workstation", "0000:1a:00") }
	if is := open().String(); !strings.HasPrefix(is, "nvidia (null) snd_hda_intel (null) ") {
		t.Fatalf("got %s", is)
	}
	crashWith(t, open, "gpu-1a-00-0-vfio", func(prepared string) bool {
		return strings.Contains(prepared, "\"path\": \"/dev/vfio/14\",\n      \"hostPath\": \"<root>/dev/vfio/14\"") &&
			strings.HasPrefix(prepared, "vfio-pci vfio-pci vfio-pci vfio-pci ")
	})
}

// crashWith lets the driver crash before and after any step of a claim with the device. Then the same call leads to the
// same state, and so does the opposite one.
func crashWith(t *testing.T, open func() *vmDriver, device string, isPrepared func(string) bool) {
	errCrash := errors.New("cut off")
	for _, row := range []struct {
		name          string
		before, verb  string // "": a release
		hasBefore     bool
		then, thenAll string
	}{
		{"prepare, prepare", "", device, false, device, "prepared"},
		{"prepare, unprepare", "", device, false, "", "released"},
		{"unprepare, unprepare", device, "", true, "", "released"},
	} {
		clean := open()
		before := clean.String()
		must(t, clean.serve(t.Context(), device))
		want := clean.String()
		if !isPrepared(want) || strings.Contains(want, "nvidia0") {
			t.Fatalf("prepared: got %s", want)
		}
		if row.thenAll == "released" {
			must(t, clean.serve(t.Context(), ""))
			if want = clean.String(); want != before {
				t.Fatalf("released: got %s, want %s", want, before)
			}
		}
		crashed := 0
		for n, passes := 1, true; passes; n++ {
			for _, after := range []bool{false, true} {
				d := open()
				if row.hasBefore {
					must(t, d.serve(t.Context(), row.before))
				}
				passed := 0
				ctx := steps.With(t.Context(), func(ctx context.Context, _ string,
					do func(context.Context) error) error {
					if passed++; passed < n {
						return do(ctx)
					}
					if passed == n && after {
						return errors.Join(do(ctx), errCrash)
					}
					return errCrash
				})
				if err := d.serve(ctx, row.verb); err == nil {
					passes = false
					continue
				}
				crashed++
				if err := d.serve(t.Context(), row.then); err != nil {
					t.Errorf("%s, cut off at step %d (done: %t): %v", row.name, n, after, err)
				}
				if got := d.String(); got != want {
					t.Errorf("%s, cut off at step %d (done: %t):\ngot  %s\nwant %s", row.name, n, after, got, want)
				}
			}
		}
		if crashed < 14 {
			t.Errorf("%s: only %d crashes", row.name, crashed)
		}
	}
}

// A GPU that is bound by hand is left as it is.
func TestPassthroughOfAGPUBoundByHand(t *testing.T) {
	d := newVMDriver(t)
	if got := d.inv.GPUs(); len(got) != 4 || got[0].VFIO == nil || got[0].VFIO.Group == 0 {
		t.Errorf("GPUs: got %+v, want 4 with IOMMU groups", got)
	}
	m := d.machine()
	sys := filepath.Join(d.node.DriverRoot(), "sys")
	for _, write := range [][2]string{{override, "vfio-pci"}, {from, at38}, {toVFIO, at38}} {
		must(t, d.node.WriteSysfs(filepath.Join(sys, write[0]), write[1]))
	}
	found, err := m.Discover(t.Context())
	must(t, err)
	if len(found.Devices) != 3 || len(found.Unlisted) != 1 || !found.Unlisted[0].VFIO.External() {
		t.Fatalf("bound by hand: got %d GPUs, unlisted %+v", len(found.Devices), found.Unlisted)
	}
	external := found.Unlisted[0]
	external.UUID = gputypes.UUID(vmDevice)
	d.inv = inventory.Defaults(append(found.Devices, external))
	must(t, d.serve(t.Context(), vmDevice))
	prepared := d.String()
	if !strings.Contains(prepared, "/dev/vfio/17") {
		t.Errorf("prepared: got %s", prepared)
	}
	must(t, d.serve(t.Context(), ""))
	if got := d.String(); !strings.HasPrefix(got, "vfio-pci vfio-pci ") || !strings.HasSuffix(got, ", 0 records") {
		t.Errorf("released: got %s, want it still bound", got)
	}
}

// The pod of a virtual machine was deleted by force: its claim is released while the hypervisor still has the GPU.
func TestReleaseOfAGPUInUse(t *testing.T) {
	d := newVMDriver(t)
	before := d.String()
	must(t, d.serve(t.Context(), vmDevice))
	stop := d.node.UseVFIO(at38)
	ctx, cancel := context.WithCancel(t.Context())
	d.writes = func(file string) {
		if strings.HasSuffix(file, fromVFIO) {
			cancel()
		}
	}
	if err := d.serve(ctx, ""); !errors.Is(err, gputypes.ErrBusy) || !strings.Contains(err.Error(), fromVFIO) {
		t.Errorf("while it is in use: got %v", err)
	}
	if got := d.String(); !strings.HasPrefix(got, "vfio-pci vfio-pci ") || !strings.HasSuffix(got, ", 1 records") {
		t.Errorf("while it is in use: got %s", got)
	}
	stop()
	must(t, d.serve(t.Context(), ""))
	if got := d.String(); got != before {
		t.Errorf("released: got %s, want %s", got, before)
	}
}

// A reboot returns all GPUs to their drivers. The record of the claim is still there.
func TestRebootOfPassthrough(t *testing.T) {
	for _, then := range []string{vmDevice, ""} {
		d := newVMDriver(t)
		want := d.String()
		must(t, d.serve(t.Context(), vmDevice))
		if then != "" {
			want = d.String()
		}
		must(t, d.node.Reboot())
		must(t, d.node.LayOut(simulator.Programs{}))
		d.boot = "next"
		must(t, d.serve(t.Context(), then))
		if got := d.String(); got != want {
			t.Errorf("device %q: got %s, want %s", then, got, want)
		}
	}
}

// A GPU vanishes from the bus while a virtual machine has it. Its claim can be released, and it can come back.
func TestVanishedUnderPassthrough(t *testing.T) {
	d := newVMDriver(t)
	before := d.String()
	must(t, d.serve(t.Context(), vmDevice))
	must(t, d.node.Unplug("gpu-38-00-0"))
	must(t, d.node.LayOut(simulator.Programs{}))
	found, err := d.machine().Discover(t.Context())
	must(t, err)
	if len(found.Devices) != 3 || len(found.Unlisted) != 0 {
		t.Errorf("vanished: got %d GPUs and %d that NVML does not list", len(found.Devices), len(found.Unlisted))
	}
	must(t, d.serve(t.Context(), ""))
	if got := d.String(); !strings.HasSuffix(got, ", 0 records") || strings.Contains(got, "/dev/vfio") {
		t.Errorf("released: got %s", got)
	}
	must(t, d.node.Plug("gpu-38-00-0"))
	must(t, d.node.LayOut(simulator.Programs{}))
	if got := d.String(); got != before {
		t.Errorf("back: got %s, want %s", got, before)
	}
	must(t, d.serve(t.Context(), vmDevice))
	must(t, d.serve(t.Context(), ""))
}

// Two claims ask for one GPU at once: one gets it, and the other when the first is released.
func TestRaceForPassthrough(t *testing.T) {
	d := newVMDriver(t)
	before := d.String()
	p := d.preparer()
	errs := map[string]error{}
	var mu sync.Mutex
	var both sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		both.Go(func() {
			err := prepare(t.Context(), p, name, vmDevice)
			mu.Lock()
			defer mu.Unlock()
			errs[name] = err
		})
	}
	both.Wait()
	first, second := "a", "b"
	if errs[first] != nil {
		first, second = second, first
	}
	must(t, errs[first])
	if !errors.Is(errs[second], sharing.ErrInUse) {
		t.Errorf("the other claim: got %v", errs[second])
	}
	if got := d.String(); !strings.HasPrefix(got, "vfio-pci vfio-pci ") || !strings.HasSuffix(got, ", 1 records") {
		t.Errorf("got %s", got)
	}
	release := func(name string) {
		must(t, p.Unprepare(t.Context(), sharing.Claim{Namespace: "ns", Name: name, UID: types.UID(name)}))
	}
	both.Go(func() { release(first) })
	for errors.Is(errs[second], sharing.ErrInUse) { // as the kubelet tries again
		errs[second] = prepare(t.Context(), p, second, vmDevice)
	}
	both.Wait()
	must(t, errs[second])
	release(second)
	must(t, p.Hardware.(*nvml.Machine).Close())
	if got := d.String(); got != before {
		t.Errorf("released: got %s, want %s", got, before)
	}
}
