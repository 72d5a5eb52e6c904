// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
)

// library counts open sessions and lookups of GPUs by UUID. Like NVIDIA's, it cannot be initialised without GPUs,
// except with the flag for that.
type library struct {
	nvmllib.Interface
	virtual, older  bool     // older: as R470 is
	version         string   // of the driver; empty: that of the profile
	slow            *slowGPU // nil: none is
	sessions, finds atomic.Int32
}

func (l *library) InitWithFlags(flags uint32) nvmllib.Return {
	if ret := l.Interface.InitWithFlags(flags); ret != nvmllib.SUCCESS {
		return ret
	}
	if count, _ := l.DeviceGetCount(); count == 0 && flags != nvmllib.INIT_FLAG_NO_GPUS {
		l.Interface.Shutdown()
		return nvmllib.ERROR_NOT_FOUND
	}
	l.sessions.Add(1)
	return nvmllib.SUCCESS
}

func (l *library) Init() nvmllib.Return { return l.InitWithFlags(0) }

func (l *library) Shutdown() nvmllib.Return {
	l.sessions.Add(-1)
	return l.Interface.Shutdown()
}

func (l *library) DeviceGetHandleByUUID(uuid string) (nvmllib.Device, nvmllib.Return) {
	l.finds.Add(1)
	return l.Interface.DeviceGetHandleByUUID(uuid)
}

func (l *library) DeviceGetHandleByIndex(index int) (nvmllib.Device, nvmllib.Return) {
	d, ret := l.Interface.DeviceGetHandleByIndex(index)
	if l.virtual {
		d = virtualGPU{d}
	}
	if l.older {
		d = olderGPU(d)
	}
	if l.slow != nil {
		d = slowGPU{d, l.slow.reasons, l.slow.ret}
	}
	return d, ret
}

func (l *library) SystemGetDriverVersion() (string, nvmllib.Return) {
	if l.version != "" {
		return l.version, nvmllib.SUCCESS
	}
	return l.Interface.SystemGetDriverVersion()
}

func (l *library) Extensions() nvmllib.ExtendedInterface {
	if l.older {
		return olderExtensions{l.Interface.Extensions()}
	}
	return l.Interface.Extensions()
}

// virtualGPU is a vGPU in a guest.
type virtualGPU struct{ nvmllib.Device }

func (virtualGPU) GetVirtualizationMode() (nvmllib.GpuVirtualizationMode, nvmllib.Return) {
	return nvmllib.GPU_VIRTUALIZATION_MODE_VGPU, nvmllib.SUCCESS
}

// with returns a node with a changed profile, and its library.
func with(t *testing.T, profile, old, now string) (*simulator.Node, *nvml.Machine, *library) {
	t.Helper()
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	if old != "" {
		p, err = simulator.ParseProfile([]byte(strings.Replace(p.YAML(), old, now, 1)))
		must(t, err)
	}
	m, n := followingProfile(t, p)
	l := &library{Interface: n.Library}
	n.Library = l
	return m, n, l
}

// The session is closed after each look, so that GPUs can be reset, unless a GPU would lose its settings by that.
func TestSessionBetweenLooks(t *testing.T) {
	for _, row := range []struct {
		name, old, now string
		open           int32
	}{
		{"with persistence mode", "", "", 0},
		{"without it", "GetPersistenceMode: FEATURE_ENABLED", "GetPersistenceMode: FEATURE_DISABLED", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, n, l := with(t, "t4-x2", row.old, row.now)
			kit := toolkitOf(n)
			for range 3 {
				look, err := n.Discover(t.Context())
				must(t, err)
				if got := l.sessions.Load(); got != row.open {
					t.Errorf("after a look: got %d sessions, want %d", got, row.open)
				}
				_, err = kit.Access(t.Context(), look.Devices[0])
				must(t, err)
			}
			look, err := n.Discover(t.Context())
			must(t, err)
			for _, d := range look.Devices {
				must(t, m.Unplug(string(d.UUID)))
			}
			if look, err = n.Discover(t.Context()); err != nil || len(look.Broken) != 2 {
				t.Fatalf("got %v, %v, want no GPU that answers", look, err)
			}
			if got := l.sessions.Load(); got != row.open {
				t.Errorf("no GPU answers: got %d sessions, want %d", got, row.open)
			}
			library, err := n.Driver.Library()
			must(t, err)
			must(t, os.RemoveAll(filepath.Dir(library)))
			if _, err := n.Discover(t.Context()); !errors.Is(err, driverroot.ErrNoDriver) {
				t.Errorf("without the library: got %v", err)
			}
			if got := l.sessions.Load(); got != 0 {
				t.Errorf("without the library: got %d sessions, want none", got)
			}
		})
	}
}

// NVML searches all GPUs for a UUID, which is slow, and hangs if one of them does: the index is known.
func TestHandlesByIndex(t *testing.T) {
	_, n, l := with(t, "t4-x2", "", "")
	look, err := n.Discover(t.Context())
	must(t, err)
	l.finds.Store(0)
	for _, d := range look.Devices {
		_, err := n.Users(t.Context(), d)
		must(t, err)
	}
	if got := l.finds.Load(); got != 0 {
		t.Errorf("got %d lookups by UUID, want none", got)
	}
}

func TestMachineWithoutGPUs(t *testing.T) {
	m, n, _ := with(t, "t4-x2", "", "")
	for range 2 {
		must(t, m.Remove("0"))
	}
	if look, err := n.Discover(t.Context()); err != nil || len(look.Devices) > 0 || len(look.Broken) > 0 {
		t.Errorf("got %v, %v, want no GPUs and no error", look, err)
	}
}

// slowGPU is a GPU whose clocks are low for some reasons.
type slowGPU struct {
	nvmllib.Device
	reasons uint64
	ret     nvmllib.Return
}

func (d slowGPU) GetCurrentClocksEventReasons() (uint64, nvmllib.Return) { return d.reasons, d.ret }

func TestSlowdown(t *testing.T) {
	_, n, l := with(t, "t4-x2", "", "")
	for _, row := range []struct {
		name    string
		reasons uint64
		ret     nvmllib.Return
		want    string
	}{
		{"a GPU that does nothing, at a limit that people have set", 0x1 | 0x2, nvmllib.SUCCESS, ""},
		{"slow by software", 0x4 | 0x20, nvmllib.SUCCESS, ""},
		{"too hot", 0x8 | 0x40, nvmllib.SUCCESS, "temperature"},
		{"the power supply cannot keep up", 0x8 | 0x80, nvmllib.SUCCESS, "power brake"},
		{"both", 0x40 | 0x80, nvmllib.SUCCESS, "temperature, power brake"},
		{"neither", 0x8 | 0x4, nvmllib.SUCCESS, "NVML gives no reason"},
		{"a GPU that does not say", 0x8, nvmllib.ERROR_NOT_SUPPORTED, ""},
	} {
		l.slow = &slowGPU{reasons: row.reasons, ret: row.ret}
		look, err := nvml.New(n.MachineConfig).Discover(t.Context())
		must(t, err)
		if got := look.Health[look.Devices[0].UUID].Slowdown; got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestVirtualGPUsOfferNoPartitions(t *testing.T) {
	sim, n, l := with(t, "dgx-h100", "", "")
	for _, l.virtual = range []bool{false, true} {
		look, err := nvml.New(n.MachineConfig).Discover(t.Context())
		must(t, err)
		if got := look.Devices[0].MIG.Capable; got == l.virtual {
			t.Errorf("virtual %t: got MIG %t", l.virtual, got)
		}
	}
	// The host has made it of a GPU instance: the partition can be used, and not be changed.
	must(t, sim.SwitchMIG("0", 1))
	_, err := sim.CreatePartition("0", "1g.10gb")
	must(t, err)
	look, err := nvml.New(n.MachineConfig).Discover(t.Context())
	must(t, err)
	if m := look.Devices[0].MIG; !m.Enabled || m.Switchable || len(m.Profiles) > 0 || len(m.Instances) != 1 {
		t.Errorf("a GPU instance of the host: got %+v", m)
	}
	var names []string
	for _, d := range inventory.Defaults(look.Devices[:1]) {
		names = append(names, d.Name)
	}
	if got := strings.Join(names, " "); got != "gpu-1b-00-0-mig-1g10gb-0" {
		t.Errorf("published: got %s", got)
	}
}
