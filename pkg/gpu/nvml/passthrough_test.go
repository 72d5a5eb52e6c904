// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// vmMachine is a machine whose kernel binds its first GPU to other drivers. A session of NVML lists the GPUs that its
// driver has when the session begins, and keeps the kernel from unbinding them.
type vmMachine struct {
	*testing.T
	*nvml.Machine
	nvmllib.Interface
	simulated *simulator.Node
	other     gpu.Device
	gpu       gpu.Device
	functions []gpu.PCIFunction

	mu         sync.Mutex
	sessions   int
	begun      int  // sessions
	hidden     bool // from the session
	persistent nvmllib.EnableState
	refuses    string        // the end of a file of sysfs that cannot be written
	blocks     chan struct{} // a write to sysfs does, until it is closed
	blocked    chan struct{} // closed when it does
}

func newVMMachine(t *testing.T) *vmMachine {
	simulated, m := following(t, "t4-x2")
	found, err := m.Discover(t.Context())
	must(t, err)
	must(t, m.Close())
	v := &vmMachine{T: t, Interface: simulated.NVML(), gpu: found.Devices[0], persistent: nvmllib.FEATURE_ENABLED,
		simulated: simulated, other: found.Devices[1]}
	sound := v.gpu.PCI
	sound.Function = 1
	v.functions = []gpu.PCIFunction{{PCI: v.gpu.PCI, Driver: "nvidia"}, {PCI: sound, Driver: "snd_hda_intel"}}
	c := m.MachineConfig
	c.Library, c.Sysfs, c.WriteSysfs, c.EventWait = v, t.TempDir(), v.write, 100*time.Millisecond
	v.Machine = nvml.New(c)
	for _, driver := range []string{"nvidia", "snd_hda_intel", "vfio-pci"} {
		must(t, os.MkdirAll(filepath.Join(c.Sysfs, "bus/pci/drivers", driver), 0o755))
	}
	for i, f := range v.functions {
		class := []string{"0x030200", "0x040300"}[i]
		for name, text := range map[string]string{"vendor": "0x10de", "device": "0x1eb8", "class": class,
			"driver_override": "(null)"} {
			must(t, os.MkdirAll(v.file(f.PCI, ""), 0o755))
			must(t, os.WriteFile(v.file(f.PCI, name), []byte(text+"\n"), 0o600))
		}
		must(t, os.Symlink("../../../../kernel/iommu_groups/42", v.file(f.PCI, "iommu_group")))
		v.link(f.PCI, f.Driver)
	}
	return v
}

func (v *vmMachine) file(at gpu.PCIAddress, name string) string {
	return filepath.Join(v.Sysfs, "bus/pci/devices", at.String(), name)
}

// link makes the function have the driver; empty: none.
func (v *vmMachine) link(at gpu.PCIAddress, driver string) {
	_ = os.Remove(v.file(at, "driver"))
	if driver != "" {
		must(v.T, os.Symlink("../../../../bus/pci/drivers/"+driver, v.file(at, "driver")))
	}
}

// drivers are those of the functions.
func (v *vmMachine) drivers() (all string) {
	for _, f := range v.functions {
		link, _ := os.Readlink(v.file(f.PCI, "driver"))
		all += filepath.Base(link) + " "
	}
	return strings.TrimSpace(all)
}

// write is the kernel's answer to a write to sysfs.
func (v *vmMachine) write(file, text string) error {
	driver, what := filepath.Base(filepath.Dir(file)), filepath.Base(file)
	v.mu.Lock()
	open, blocks := v.sessions > 0, v.blocks
	v.mu.Unlock()
	if what == "unbind" && driver == "nvidia" {
		if open {
			return syscall.EBUSY
		}
		if blocks != nil {
			close(v.blocked)
			<-blocks
		}
	}
	if v.refuses != "" && strings.HasSuffix(file, v.refuses) {
		return syscall.EIO
	}
	switch at, _ := gpu.ParsePCIAddress(text); what {
	case "unbind":
		v.link(at, "")
		_ = os.Remove(filepath.Join(filepath.Dir(file), text))
	case "bind":
		v.link(at, driver)
		return os.Symlink("../../devices/"+text, filepath.Join(filepath.Dir(file), text))
	default:
		return os.WriteFile(file, []byte(text), 0o600)
	}
	return nil
}

func (v *vmMachine) InitWithFlags(flags uint32) nvmllib.Return {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begun++
	if v.sessions++; v.sessions == 1 {
		v.hidden = !strings.HasPrefix(v.drivers(), "nvidia")
	}
	return v.Interface.InitWithFlags(flags)
}

func (v *vmMachine) Shutdown() nvmllib.Return {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sessions--
	return v.Interface.Shutdown()
}

func (v *vmMachine) skip() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.hidden {
		return 1
	}
	return 0
}

func (v *vmMachine) DeviceGetCount() (int, nvmllib.Return) {
	n, ret := v.Interface.DeviceGetCount()
	return n - v.skip(), ret
}

func (v *vmMachine) DeviceGetHandleByIndex(i int) (nvmllib.Device, nvmllib.Return) {
	d, ret := v.Interface.DeviceGetHandleByIndex(i + v.skip())
	return vmDevice{d, v}, ret
}

func (v *vmMachine) DeviceGetHandleByUUID(id string) (nvmllib.Device, nvmllib.Return) {
	if v.skip() > 0 && gpu.UUID(id) == v.gpu.UUID {
		return nil, nvmllib.ERROR_NOT_FOUND
	}
	d, ret := v.Interface.DeviceGetHandleByUUID(id)
	return vmDevice{d, v}, ret
}

// vmDevice has a persistence mode that can be set.
type vmDevice struct {
	nvmllib.Device
	v *vmMachine
}

func (d vmDevice) GetPersistenceMode() (nvmllib.EnableState, nvmllib.Return) {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	return d.v.persistent, nvmllib.SUCCESS
}

func (d vmDevice) SetPersistenceMode(mode nvmllib.EnableState) nvmllib.Return {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	d.v.persistent = mode
	return nvmllib.SUCCESS
}

func (v *vmMachine) bind(ctx context.Context) error { return v.BindVFIO(ctx, v.gpu.UUID, v.functions) }

// look returns the names of the GPUs that NVML lists, and of those that it does not.
func (v *vmMachine) look() (listed, unlisted []string) {
	v.Helper()
	found, err := v.Discover(v.Context())
	must(v.T, err)
	for _, d := range found.Devices {
		listed = append(listed, d.Name)
	}
	for _, d := range found.Unlisted {
		if d.InVM() {
			unlisted = append(unlisted, d.Name)
		}
	}
	return listed, unlisted
}

// A GPU goes into a virtual machine and comes back, while its events are watched.
func TestBindAndReturn(t *testing.T) {
	v := newVMMachine(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); v.Watch(ctx, func(gpu.Event) {}) }()
	t.Cleanup(func() { cancel(); <-ended })
	for end := time.Now().Add(hangs); !v.Watching() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		v.look()
	}
	var passed []string
	ctx = steps.With(ctx, func(ctx context.Context, name string, do func(context.Context) error) error {
		passed = append(passed, name)
		return do(ctx)
	})
	for range 2 { // the second time changes nothing
		if err := v.bind(ctx); err != nil {
			t.Fatal(err)
		}
		if got := v.drivers(); got != "vfio-pci vfio-pci" || v.persistent != nvmllib.FEATURE_DISABLED {
			t.Errorf("bound: got %s, persistence mode %d", got, v.persistent)
		}
	}
	if listed, unlisted := v.look(); len(listed) != 1 || !slices.Equal(unlisted, []string{v.gpu.Name}) {
		t.Errorf("bound: NVML lists %v, and not %v", listed, unlisted)
	}
	for range 2 {
		if err := v.ReturnVFIO(ctx, v.gpu.UUID, v.functions, true); err != nil {
			t.Fatal(err)
		}
		if got := v.drivers(); got != "nvidia snd_hda_intel" || v.persistent != nvmllib.FEATURE_ENABLED {
			t.Errorf("returned: got %s, persistence mode %d", got, v.persistent)
		}
	}
	if listed, unlisted := v.look(); len(listed) != 2 || len(unlisted) > 0 {
		t.Errorf("returned: NVML lists %v, and not %v", listed, unlisted)
	}
	want := []string{steps.DisableMIG, steps.DisablePersistence, steps.BindVFIO, steps.BindVFIO, steps.ReturnVFIO,
		steps.EnablePersistence, steps.ReturnVFIO, steps.EnablePersistence}
	if !slices.Equal(passed, want) {
		t.Errorf("steps: got %v, want %v", passed, want)
	}
}

// While the kernel does not finish a write for one GPU, others answer, and so do claims for them. The call ends, so
// that somebody is told, and the next one leaves NVML open.
func TestBindThatBlocks(t *testing.T) {
	v := newVMMachine(t)
	v.blocks, v.blocked = make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	go func() { result <- v.bind(t.Context()) }()
	<-v.blocked
	if listed, _ := v.look(); len(listed) == 0 { // waits until NVML may be opened again
		t.Error("no GPU is listed")
	}
	if err := <-result; !errors.Is(err, gpu.ErrBusy) || !strings.Contains(err.Error(), "unbind") {
		t.Errorf("got %v, want that the GPU is in use", err)
	}
	v.look()
	before := v.begun
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := v.bind(ctx); !errors.Is(err, gpu.ErrBusy) || !strings.Contains(err.Error(), "unbind") {
		t.Errorf("again: got %v, want that the GPU is in use", err)
	}
	if v.look(); v.begun != before {
		t.Errorf("NVML was opened %d times, want %d", v.begun, before)
	}
	close(v.blocks)
	v.mu.Lock()
	v.blocks = nil
	v.mu.Unlock()
	if err := v.ReturnVFIO(t.Context(), v.gpu.UUID, v.functions, true); err != nil {
		t.Error(err)
	}
	if got := v.drivers(); got != "nvidia snd_hda_intel" {
		t.Errorf("returned: got %s", got)
	}
}

// A function that its driver does not take keeps the GPU itself from nobody.
func TestReturnThatFailsInPart(t *testing.T) {
	v := newVMMachine(t)
	must(t, v.bind(t.Context()))
	if listed, _ := v.look(); len(listed) != 1 {
		t.Fatalf("bound: NVML lists %v", listed)
	}
	v.refuses = "snd_hda_intel/bind"
	err := v.ReturnVFIO(t.Context(), v.gpu.UUID, v.functions, false)
	if err == nil || errors.Is(err, gpu.ErrBusy) || !strings.Contains(err.Error(), v.refuses) {
		t.Errorf("got %v, want what cannot be written", err)
	}
	if listed, _ := v.look(); len(listed) != 2 {
		t.Errorf("returned: NVML lists %v", listed)
	}
}

// A GPU that has vanished from the bus needs no return.
func TestReturnOfAGPUThatIsGone(t *testing.T) {
	v := newVMMachine(t)
	must(t, os.RemoveAll(filepath.Join(v.Sysfs, "bus/pci/devices")))
	if err := v.ReturnVFIO(t.Context(), v.gpu.UUID, v.functions, true); err != nil {
		t.Errorf("got %v, want nothing to do", err)
	}
}

// A call about another GPU hangs, and keeps NVML open: also the second attempt does not begin to bind.
func TestBindWhileACallHangs(t *testing.T) {
	v := newVMMachine(t)
	must(t, v.simulated.Slow(v.other.Name, node.AllCalls, time.Hour))
	defer func() { must(t, v.simulated.Heal(v.other.Name)) }()
	v.Timeout = 2 * time.Second
	_, err := v.Discover(t.Context())
	must(t, err)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := v.bind(ctx)
		cancel()
		if !errors.Is(err, gpu.ErrBusy) || !strings.Contains(err.Error(), "a call of NVML does not return") {
			t.Errorf("got %v, want that a call keeps NVML open", err)
		}
	}
	override, err := os.ReadFile(v.file(v.gpu.PCI, "driver_override"))
	if got := string(override); err != nil || got != "(null)\n" {
		t.Errorf("got the override %q (%v), want none", got, err)
	}
}

// Calls that give up while NVML is closed for a bind have asked nobody. The GPUs that they are about are well, and
// nothing is asked of them later.
func TestCallsWhileNVMLIsClosed(t *testing.T) {
	v := newVMMachine(t)
	must(t, os.MkdirAll(v.file(v.other.PCI, ""), 0o755)) // it is on the bus
	v.look()
	v.blocks, v.blocked = make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	go func() { result <- v.bind(t.Context()) }()
	<-v.blocked
	must(t, v.simulated.Slow(v.other.Name, "GetComputeRunningProcesses", time.Hour))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	exclusive := gpu.DesiredState{Settings: &gpu.Settings{Mode: gpu.ExclusiveProcess}}
	for range 2 {
		_, err := v.Processes(ended, v.other)
		if !errors.Is(err, context.Canceled) || errors.Is(err, nvml.ErrNoAnswer) {
			t.Errorf("processes: got %v, want no word about the GPU", err)
		}
		if err := v.Set(ended, v.other.UUID, exclusive); !errors.Is(err, context.Canceled) ||
			errors.Is(err, nvml.ErrNoAnswer) {
			t.Errorf("set: got %v, want no word about the GPU", err)
		}
	}
	close(v.blocks)
	must(t, <-result)
	found, err := v.Discover(t.Context())
	must(t, err)
	if len(found.Broken) > 0 || len(found.Devices) != 1 || found.Devices[0].ComputeMode != "" {
		t.Errorf("got %+v, broken %v; want the other GPU as it was", found.Devices, found.Broken)
	}
	must(t, v.Set(t.Context(), v.other.UUID, exclusive))
	must(t, v.simulated.Heal(v.other.Name))
}

// slowInit is a library whose start takes until ready is closed.
type slowInit struct {
	nvmllib.Interface
	begun, ready chan struct{}
}

func (l slowInit) InitWithFlags(flags uint32) nvmllib.Return {
	close(l.begun)
	<-l.ready
	return l.Interface.InitWithFlags(flags)
}

// A start of NVML that hangs is no GPU that hangs.
func TestCallWhileNVMLStarts(t *testing.T) {
	m, n := following(t, "t4-x2")
	found, err := n.Discover(t.Context())
	must(t, err)
	c, slow := n.MachineConfig, slowInit{m.NVML(), make(chan struct{}), make(chan struct{})}
	c.Library = slow
	n = nvml.New(c)
	set := func(ctx context.Context) error {
		return n.Set(ctx, found.Devices[0].UUID, gpu.DesiredState{Settings: &gpu.Settings{}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-slow.begun; cancel() }()
	for range 2 {
		if err := set(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, nvml.ErrNoAnswer) {
			t.Errorf("got %v, want no word about the GPU", err)
		}
	}
	if _, err := n.Discover(ctx); !errors.Is(err, nvml.ErrNoAnswer) {
		t.Errorf("a discovery meanwhile: got %v, want that NVML does not answer", err)
	}
	close(slow.ready)
	must(t, set(t.Context()))
}

// A GPU that a program has open is not unbound, and the program is named. NVIDIA's persistence daemon should let it go
// when the mode is off.
func TestBindOfAGPUInUse(t *testing.T) {
	for _, row := range []struct {
		program, before, want string
		persistent            nvmllib.EnableState
	}{
		{"exporter", "process 4242 (exporter)", "used by process 4242 (exporter)", nvmllib.FEATURE_ENABLED},
		{"nvidia-persiste", "", "held open by process 4242 (nvidia-persiste)", nvmllib.FEATURE_DISABLED},
	} {
		t.Run(row.program, func(t *testing.T) {
			v := newVMMachine(t)
			proc := t.TempDir()
			fd := filepath.Join(proc, "4242", "fd")
			must(t, os.MkdirAll(fd, 0o755))
			must(t, os.Symlink("/dev/nvidia0", filepath.Join(fd, "3")))
			must(t, os.WriteFile(filepath.Join(proc, "4242", "comm"), []byte(row.program+"\n"), 0o600))
			c := v.MachineConfig
			c.Proc = proc
			v.Machine = nvml.New(c)
			found, err := v.Openers(t.Context(), v.gpu)
			must(t, err)
			before := strings.Join(found, ", ")
			err = v.bind(t.Context())
			if !errors.Is(err, gpu.ErrBusy) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
			if got := v.drivers(); got != "nvidia snd_hda_intel" || v.persistent != row.persistent {
				t.Errorf("got %s, persistence mode %d, want the drivers untouched and %d", got, v.persistent,
					row.persistent)
			}
			found, err = v.Openers(t.Context(), v.gpu)
			must(t, err)
			after := "process 4242 (" + row.program + ")"
			if got := strings.Join(found, ", "); before != row.before || got != after {
				t.Errorf("openers: got %q, then %q; want %q, then %q", before, got, row.before, after)
			}
		})
	}
}

// Nobody offers GPUs to virtual machines: the bus is looked at only while vfio-pci has a function.
func TestMachineForContainersOnly(t *testing.T) {
	v := newVMMachine(t)
	c := v.MachineConfig
	c.ContainersOnly = true
	v.Machine = nvml.New(c)
	t.Cleanup(func() { _ = v.Close() })
	found, err := v.Discover(t.Context())
	must(t, err)
	if found.Devices[0].VFIO != nil {
		t.Errorf("got %+v, want nothing about virtual machines", found.Devices[0].VFIO)
	}
	must(t, v.bind(t.Context()))
	if listed, unlisted := v.look(); len(listed) != 1 || !slices.Equal(unlisted, []string{v.gpu.Name}) {
		t.Errorf("a claim has a GPU: NVML lists %v, and not %v", listed, unlisted)
	}
}

// The kernel has no vfio-pci: nothing is offered, and nothing is looked at.
func TestMachineWithoutVFIO(t *testing.T) {
	v := newVMMachine(t)
	must(t, os.RemoveAll(filepath.Join(v.Sysfs, "bus/pci/drivers/vfio-pci")))
	found, err := v.Discover(t.Context())
	must(t, err)
	for _, d := range found.Devices {
		if d.VFIO != nil || len(found.Unlisted) > 0 {
			t.Errorf("%s: got %+v, want nothing about virtual machines", d.Name, d.VFIO)
		}
	}
}
