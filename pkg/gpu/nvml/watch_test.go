// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/nvml"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// watcher is a running Watch of a simulated machine.
type watcher struct {
	*testing.T
	machine *simulator.Node
	node    *nvml.Machine
	events  chan gpu.Event
}

func watch(t *testing.T, profile string, changes ...func(*nvml.Machine)) *watcher {
	t.Helper()
	m, n := following(t, profile)
	n.EventWait = 100 * time.Millisecond
	for _, change := range changes {
		change(n)
	}
	w := &watcher{t, m, n, make(chan gpu.Event, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Watch(ctx, func(e gpu.Event) { w.events <- e })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	w.reason(0, "")
	return w
}

func (w *watcher) look() gpu.Discovery {
	w.Helper()
	look, err := w.node.Discover(w.Context())
	must(w.T, err)
	return look
}

// reason waits until the events of the GPU are watched, or not for a reason that contains why.
func (w *watcher) reason(index int, why string) {
	w.Helper()
	var got string
	w.eventually(fmt.Sprintf("GPU %d is unwatched because %q", index, why), func() bool {
		look := w.look()
		got = look.Unwatched[look.Devices[index].UUID]
		if why == "" {
			return got == "" && w.node.Watching()
		}
		return strings.Contains(strings.ToLower(got), why)
	}, &got)
}

func (w *watcher) eventually(what string, is func() bool, last *string) {
	w.Helper()
	for end := time.Now().Add(hangs); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("never: %s; the last answer was %q", what, *last)
		}
	}
}

// emit makes an XID of the GPU or partition happen.
func (w *watcher) emit(which string, xid uint64) {
	w.Helper()
	event, err := w.machine.NewEvent(which, node.EventXID, xid)
	must(w.T, err)
	must(w.T, w.machine.Emit(event))
}

// next returns the next event as text.
func (w *watcher) next() string {
	w.Helper()
	select {
	case e := <-w.events:
		text := fmt.Sprintf("%s %d", e.Kind, e.XID)
		if e.Instance != nil {
			text += fmt.Sprintf(" in %d/%d", e.Instance.GPU, e.Instance.Compute)
		}
		return text
	case <-time.After(hangs):
		return "nothing"
	}
}

func (w *watcher) want(want string) {
	w.Helper()
	if got := w.next(); got != want {
		w.Errorf("got event %q, want %q", got, want)
	}
}

// Events reach the plugin from another process, for a GPU and for a partition.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := watch(t, "mixed")
	w.emit("0", 79)
	w.want("XID 79")
	partitioned := ""
	for _, d := range w.look().Devices {
		if len(d.MIG.Instances) > 0 {
			partitioned = d.Name
			p := d.MIG.Instances[0]
			w.emit(string(p.UUID), 94)
			w.want(fmt.Sprintf("XID 94 in %d/%d", p.GPUInstance, p.ComputeInstance))
			break
		}
	}
	if partitioned == "" {
		t.Log("no partition exists at the start of this profile")
	}
}

// A GPU that is lost while its events are awaited does not stop those of others, and is watched again when it is back.
func TestWatchLivesThroughALostGPU(t *testing.T) {
	t.Parallel()
	w := watch(t, "t4-x2")
	must(t, w.machine.Unplug("1"))
	w.want("Lost 0")
	w.reason(1, "lost")
	w.reason(0, "")
	w.emit("0", 31)
	w.want("XID 31")
	must(t, w.machine.Plug("1"))
	w.look()
	w.reason(1, "")
	w.emit("1", 48)
	w.want("XID 48")
}

// Waiting for events prevents a reset and an unload of the driver, until the plugin gives way.
func TestWatchGivesWay(t *testing.T) {
	t.Parallel()
	w := watch(t, "t4-x2")
	if err := w.machine.Reset("0"); err == nil {
		t.Fatal("a GPU was reset although NVML is open")
	}
	w.node.StopWatching("a reset")
	w.eventually("a reset between discoveries", func() bool {
		look := w.look()
		return look.Unwatched[look.Devices[0].UUID] == "a reset" && w.machine.Reset("0") == nil
	}, new(string))
	_, err := w.node.Users(t.Context(), w.look().Devices[1]) // which opens NVML again
	must(t, err)
	must(t, w.machine.Reset("0"))
	w.node.StopWatching("")
	w.reason(0, "")

	w.node.Release("an update")
	if _, err := w.node.Discover(t.Context()); !errors.Is(err, nvml.ErrReleased) {
		t.Errorf("a discovery while NVML is closed: got %v, want ErrReleased", err)
	}
	w.eventually("the driver can be unloaded", func() bool { return w.machine.Unload() == nil }, new(string))
	w.node.Release("")
	if _, err := w.node.Discover(t.Context()); err == nil {
		t.Error("a discovery without a driver: got no error")
	}
	must(t, w.machine.Load())
	w.reason(0, "")
	w.emit("0", 79)
	w.want("XID 79")
}

// After the loss of a GPU, NVML is closed at once when somebody asks for it.
func TestWatchGivesWayAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ok = nvmllib.SUCCESS
		set := &mock.EventSet{
			WaitFunc: func(uint32) (nvmllib.EventData, nvmllib.Return) {
				return nvmllib.EventData{}, nvmllib.ERROR_GPU_IS_LOST
			},
			FreeFunc: func() nvmllib.Return { return ok },
		}
		handle := &mock.Device{
			GetUUIDFunc: func() (string, nvmllib.Return) { return "GPU-0", ok },
			GetSupportedEventTypesFunc: func() (uint64, nvmllib.Return) {
				return nvmllib.EventTypeXidCriticalError, ok
			},
			RegisterEventsFunc: func(uint64, nvmllib.EventSet) nvmllib.Return { return ok },
		}
		n, err := nvml.Open(nvml.MachineConfig{Sysfs: t.TempDir(), Library: &mock.Interface{
			InitWithFlagsFunc:          func(uint32) nvmllib.Return { return ok },
			ShutdownFunc:               func() nvmllib.Return { return ok },
			DeviceGetCountFunc:         func() (int, nvmllib.Return) { return 1, ok },
			DeviceGetHandleByIndexFunc: func(int) (nvmllib.Device, nvmllib.Return) { return handle, ok },
			EventSetCreateFunc:         func() (nvmllib.EventSet, nvmllib.Return) { return set, ok },
		}})
		must(t, err)
		lost := make(chan struct{}, 1)
		go n.Watch(t.Context(), func(gpu.Event) { lost <- struct{}{} })
		<-lost
		begin := time.Now()
		n.Release("an update")
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("got NVML closed after %s, want at once", waited)
		}
	})
}

// A call for events that hangs makes the GPUs unwatched, and blocks neither discoveries nor claims.
func TestWatchHangs(t *testing.T) {
	t.Parallel()
	w := watch(t, "t4-x2")
	must(t, w.machine.Slow("0", "EventSetWait", time.Hour))
	w.reason(0, "does not return")
	if _, err := toolkitOf(w.node).Access(t.Context(), w.look().Devices[1]); err != nil { // neither takes an hour
		t.Error(err)
	}
	must(t, w.machine.Heal("0"))
	w.reason(0, "")
}

// A GPU that hangs when its events are registered keeps the session that it is asked in: NVML is shut down after it.
func TestShutdownAfterARegistrationThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ok = nvmllib.SUCCESS
		var registering, shutdowns atomic.Int32
		handle := &mock.Device{
			GetUUIDFunc: func() (string, nvmllib.Return) { return "GPU-0", ok },
			GetSupportedEventTypesFunc: func() (uint64, nvmllib.Return) {
				return nvmllib.EventTypeXidCriticalError, ok
			},
			RegisterEventsFunc: func(uint64, nvmllib.EventSet) nvmllib.Return {
				registering.Add(1)
				defer registering.Add(-1)
				time.Sleep(time.Hour)
				return ok
			},
		}
		n, err := nvml.Open(nvml.MachineConfig{Sysfs: t.TempDir(), Library: &mock.Interface{
			InitWithFlagsFunc: func(uint32) nvmllib.Return { return ok },
			ShutdownFunc: func() nvmllib.Return {
				shutdowns.Add(1)
				if registering.Load() > 0 {
					t.Error("NVML is shut down while a call of the session has not returned")
				}
				return ok
			},
			DeviceGetCountFunc:         func() (int, nvmllib.Return) { return 1, ok },
			DeviceGetHandleByIndexFunc: func(int) (nvmllib.Device, nvmllib.Return) { return handle, ok },
			EventSetCreateFunc:         func() (nvmllib.EventSet, nvmllib.Return) { return &mock.EventSet{}, ok },
		}})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go n.Watch(ctx, func(gpu.Event) {})
		time.Sleep(time.Minute) // of the test's own clock
		n.Release("an update")
		time.Sleep(time.Hour)
		if got := shutdowns.Load(); got != 1 {
			t.Errorf("when the call has returned: got %d shutdowns, want 1", got)
		}
	})
}

// A GPU without events is not watched, for a reason.
func TestWithoutEvents(t *testing.T) {
	t.Parallel()
	w := watch(t, "t4-x2")
	must(t, w.machine.Fail("1", "GetSupportedEventTypes", "ERROR_NOT_SUPPORTED"))
	must(t, w.machine.Unplug("0")) // so that events are registered again
	w.reason(0, "lost")
	must(t, w.machine.Plug("0"))
	w.reason(1, "error_not_supported")
	w.reason(0, "")
}

// A GPU whose events could not be registered is tried again in the same session, so that no event of another is missed.
func TestEventsAreRegisteredAgain(t *testing.T) {
	const ok = nvmllib.SUCCESS
	for _, row := range []struct {
		name  string
		first func() nvmllib.Return // what becomes of the first registration of GPU-1
	}{
		{"it fails", func() nvmllib.Return { return nvmllib.ERROR_UNKNOWN }},
		{"it takes long", func() nvmllib.Return { time.Sleep(time.Minute); return nvmllib.ERROR_UNKNOWN }},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registered, sessions := [2]atomic.Int32{}, 0
				handles := [2]*mock.Device{}
				for i := range handles {
					handles[i] = &mock.Device{
						GetUUIDFunc: func() (string, nvmllib.Return) { return fmt.Sprintf("GPU-%d", i), ok },
						GetSupportedEventTypesFunc: func() (uint64, nvmllib.Return) {
							return nvmllib.EventTypeXidCriticalError, ok
						},
						RegisterEventsFunc: func(uint64, nvmllib.EventSet) nvmllib.Return {
							if registered[i].Add(1) == 1 && i == 1 {
								return row.first()
							}
							return ok
						},
					}
				}
				set := &mock.EventSet{
					WaitFunc: func(milliseconds uint32) (nvmllib.EventData, nvmllib.Return) {
						if registered[1].Load() == 2 {
							return nvmllib.EventData{Device: handles[1], EventType: nvmllib.EventTypeXidCriticalError,
								EventData: 79}, ok
						}
						time.Sleep(time.Duration(milliseconds) * time.Millisecond)
						return nvmllib.EventData{}, nvmllib.ERROR_TIMEOUT
					},
					FreeFunc: func() nvmllib.Return { return ok },
				}
				n, err := nvml.Open(nvml.MachineConfig{Sysfs: t.TempDir(), Library: &mock.Interface{
					InitWithFlagsFunc:  func(uint32) nvmllib.Return { return ok },
					ShutdownFunc:       func() nvmllib.Return { return ok },
					DeviceGetCountFunc: func() (int, nvmllib.Return) { return len(handles), ok },
					DeviceGetHandleByIndexFunc: func(i int) (nvmllib.Device, nvmllib.Return) {
						return handles[i], ok
					},
					EventSetCreateFunc: func() (nvmllib.EventSet, nvmllib.Return) { sessions++; return set, ok },
				}})
				must(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of the test's own clock
				defer cancel()
				got := "nothing"
				n.Watch(ctx, func(e gpu.Event) {
					got = fmt.Sprintf("%s %d of %s", e.Kind, e.XID, e.GPU)
					cancel()
				})
				if want := "XID 79 of GPU-1"; got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				if a, b := registered[0].Load(), registered[1].Load(); a != 1 || b != 2 || sessions != 1 {
					t.Errorf("got %d and %d registrations in %d sessions, want 1 and 2 in one", a, b, sessions)
				}
			})
		})
	}
}

// waitLibrary notes how long the calls for events are to wait.
type waitLibrary struct {
	nvmllib.Interface
	waits chan time.Duration
}

func (l waitLibrary) EventSetCreate() (nvmllib.EventSet, nvmllib.Return) {
	return waitSet{waits: l.waits}, nvmllib.SUCCESS
}

func (l waitLibrary) DeviceGetHandleByIndex(index int) (nvmllib.Device, nvmllib.Return) {
	d, ret := l.Interface.DeviceGetHandleByIndex(index)
	return waitDevice{d}, ret
}

type waitDevice struct{ nvmllib.Device }

func (waitDevice) RegisterEvents(uint64, nvmllib.EventSet) nvmllib.Return { return nvmllib.SUCCESS }

type waitSet struct {
	nvmllib.EventSet
	waits chan time.Duration
}

func (s waitSet) Wait(milliseconds uint32) (nvmllib.EventData, nvmllib.Return) {
	s.waits <- time.Duration(milliseconds) * time.Millisecond
	return nvmllib.EventData{}, nvmllib.ERROR_TIMEOUT
}

func (waitSet) Free() nvmllib.Return { return nvmllib.SUCCESS }

// A claim of a virtual machine waits for the end of the call, so the call is short where there can be one, and only
// there: each call costs processor time.
func TestWaitForEvents(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*vmMachine, *nvml.MachineConfig)
		want   time.Duration
	}{
		{"a GPU can be given to a virtual machine", func(*vmMachine, *nvml.MachineConfig) {}, 250 * time.Millisecond},
		{"the kernel has no vfio-pci", func(v *vmMachine, _ *nvml.MachineConfig) {
			must(v.T, os.RemoveAll(filepath.Join(v.Sysfs, "bus/pci/drivers/vfio-pci")))
		}, 5 * time.Second},
		{"the machine has no IOMMU", func(v *vmMachine, _ *nvml.MachineConfig) {
			must(v.T, os.Remove(v.file(v.gpu.PCI, "iommu_group")))
		}, 5 * time.Second},
		{"no GPU is offered to virtual machines", func(_ *vmMachine, c *nvml.MachineConfig) {
			c.ContainersOnly = true
		}, 5 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := newVMMachine(t)
			c, waits := v.MachineConfig, make(chan time.Duration)
			c.EventWait, c.Library = 0, waitLibrary{v, waits}
			row.change(v, &c)
			m := nvml.New(c)
			t.Cleanup(func() { _ = m.Close() })
			_, err := m.Discover(t.Context())
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); m.Watch(ctx, func(gpu.Event) {}) }()
			if got := <-waits; got != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
			cancel()
			for open := true; open; { // one more call may have begun
				select {
				case <-waits:
				case <-ended:
					open = false
				}
			}
		})
	}
}

// countedSets counts how often a watch has begun.
type countedSets struct {
	nvmllib.Interface
	sets *atomic.Int32
}

func (l countedSets) EventSetCreate() (nvmllib.EventSet, nvmllib.Return) {
	l.sets.Add(1)
	return l.Interface.EventSetCreate()
}

// nvml.h says of a change of the MIG mode that it may unbind or reset the GPU: its events are registered again.
func TestEventsAfterAChangeOfTheMIGMode(t *testing.T) {
	t.Parallel()
	m, n := following(t, "dgx-h100")
	var sets atomic.Int32
	n.Library, n.EventWait = countedSets{m.NVML(), &sets}, 100*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); n.Watch(ctx, func(gpu.Event) {}) }()
	t.Cleanup(func() { cancel(); <-ended })
	w := &watcher{t, m, n, nil}
	w.reason(0, "")
	id := w.look().Devices[0].UUID
	for _, mode := range []gpu.MIGMode{gpu.MIGOn, gpu.MIGOff} {
		before := sets.Load()
		must(t, n.Set(t.Context(), id, gpu.DesiredState{MIG: mode}))
		w.eventually("its events are registered again", func() bool { return sets.Load() > before }, new(string))
		w.reason(0, "")
		before = sets.Load()
		must(t, n.Set(t.Context(), id, gpu.DesiredState{MIG: mode})) // which changes nothing
		if w.look(); sets.Load() != before {
			t.Error("the watch has begun anew without a change")
		}
	}
}
