// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

const (
	// eventWait and vmEventWait are the defaults of MachineConfig.EventWait, the latter for machines whose GPUs can be
	// given to virtual machines: a claim of one waits for the end of the call, and each call costs processor time.
	eventWait, vmEventWait = 5 * time.Second, 250 * time.Millisecond
	// hungAfter is how much longer a call may take before it counts as hanging.
	hungAfter = 5 * time.Second
	// registerTimeout is how long a GPU may take to register its events.
	registerTimeout = 5 * time.Second
	// reopenPeriod and maxReopenPeriod are the times between attempts to watch: the first, doubled up to the second.
	// While a GPU that is removed is on the PCI bus, the next session would find it lost again.
	reopenPeriod, maxReopenPeriod = gpu.LeavesBus, 30 * time.Second
)

// wantedEvents are the events that are watched, of those that the GPU supports. Clock events are not, because they
// occur at every change of load, and neither are corrected memory errors: XID 92 tells of many.
const wantedEvents = nvmllib.EventTypeXidCriticalError | nvmllib.EventTypeDoubleBitEccError |
	nvmllib.EventTypeDramRetirementEvent |
	nvmllib.EventTypeDramRetirementFailure | nvmllib.EventTypeNonFatalPoisonError |
	nvmllib.EventTypeFatalPoisonError | nvmllib.EventTypeGpuUnavailableError | nvmllib.EventTypeGpuRecoveryAction

// watch is the state of Watch.
type watch struct {
	mu sync.Mutex
	// stopped says why no events are watched, and released why NVML is closed; empty: they are, it is not.
	stopped, released string
	// out keeps the watcher out of sessions for a moment.
	out bool
	// leave asks the watcher to leave its session; it may open another one then.
	leave bool
	// inside is closed when the watcher has left its session; nil: it is in none.
	inside chan struct{}
	beat   time.Time // when the last call began
	failed string    // why the last session ended; empty: without an error
	// version is that of the GPUs of this session; none before they are registered.
	version int
	gpus    map[gpu.UUID]string // "" if it is watched, otherwise why not; nil: the first session has not begun
	// passable says that the last discovery found a GPU that can be given to a virtual machine.
	passable atomic.Bool
}

// eventWait is how long one call waits for events.
func (m *Machine) eventWait() time.Duration {
	if m.EventWait == 0 && m.watch.passable.Load() {
		return vmEventWait
	}
	return cmp.Or(m.EventWait, eventWait)
}

// unwatched returns why events of GPUs are not watched. A call for events hangs after a timeout.
func (w *watch) unwatched(devices []gpu.Device, timeout time.Duration) map[gpu.UUID]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	reasons := map[gpu.UUID]string{}
	for _, d := range devices {
		why, known := w.gpus[d.UUID]
		switch {
		case w.halted() != "":
			why = w.halted()
		case w.inside != nil && time.Since(w.beat) > timeout:
			why = "the call that waits for events does not return"
		case w.failed != "":
			why = w.failed
		case !known && w.gpus != nil:
			why = "its events are not watched yet"
		}
		if why != "" {
			reasons[d.UUID] = why
		}
	}
	return reasons
}

// halted says why no events are to be watched; empty: they are. w.mu is held.
func (w *watch) halted() string { return cmp.Or(w.released, w.stopped) }

// StopWatching makes Watch leave its session within EventWait, so that Discover can close it. why says what for; ""
// lets Watch continue.
func (m *Machine) StopWatching(why string) {
	m.watch.mu.Lock()
	defer m.watch.mu.Unlock()
	m.watch.stopped = why
}

// ErrReleased is returned by all calls while NVML is closed on request. The error says why.
var ErrReleased = errors.New("NVML is closed")

// Release closes the session as soon as no call uses it, and opens no other one: GPUs can be reset, and the driver be
// unloaded. why says what for; "" ends it.
func (m *Machine) Release(why string) {
	m.watch.mu.Lock()
	m.watch.released = why
	m.watch.mu.Unlock()
	if why == "" {
		return
	}
	m.leaveWatch()
	if err := m.Close(); err != nil {
		klog.Background().Info("NVML stays open", "err", err)
	}
}

// isStopped reports whether StopWatching was called with a reason.
func (w *watch) isStopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped != ""
}

// refusal returns ErrReleased while NVML is closed on request.
func (w *watch) refusal() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released != "" {
		return fmt.Errorf("%w: %s", ErrReleased, w.released)
	}
	return nil
}

// leaveWatch makes the watcher leave its session. It may open another one at once, unless it is stopped.
func (m *Machine) leaveWatch() {
	m.watch.mu.Lock()
	inside := m.watch.inside
	m.watch.leave = inside != nil
	m.watch.mu.Unlock()
	if inside == nil {
		return
	}
	select {
	case <-inside:
	case <-time.After(m.eventWait() + hungAfter): // the call hangs
	}
}

// errLeft ends a session in which nothing failed: the watcher was asked to leave, or a GPU was lost.
var errLeft = errors.New("the session was left")

// Watch calls found for each event of a GPU until ctx ends. It keeps a session open, and opens another one when the
// driver has been reloaded or the GPUs have changed; NVML has no events of the time between. found must not block.
func (m *Machine) Watch(ctx context.Context, found func(gpu.Event)) {
	pause := reopenPeriod
	for ctx.Err() == nil {
		begin := time.Now()
		err := m.watchSession(ctx, found)
		left := errors.Is(err, errLeft)
		if err == nil || left || time.Since(begin) > maxReopenPeriod {
			pause = reopenPeriod
		}
		if err == nil { // the GPUs have changed
			continue
		}
		if !left {
			klog.FromContext(ctx).V(2).Info("Events of GPUs are not watched, will be tried again", "err", err)
			m.watch.fail(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if !left {
			pause = min(2*pause, maxReopenPeriod)
		}
	}
}

// watchSession watches events in one session, until the GPUs change or the error says why it ends. Error: errLeft.
func (m *Machine) watchSession(ctx context.Context, found func(gpu.Event)) error {
	if !m.watch.enter() {
		return errLeft
	}
	defer m.watch.exit()
	s, err := m.acquire(&asked{})
	if err != nil {
		return err
	}
	defer m.release(s)
	version := m.known.changes()
	set, ret := s.lib.EventSetCreate()
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("create event set: %w", ret)
	}
	watched := map[int]gpu.UUID{}
	err, tried := m.register(ctx, s, set, version, watched), time.Now()
	hung := errors.Is(err, ErrNoAnswer)
	defer func() {
		if !hung { // or else that call may still use the set
			_ = set.Free()
		}
	}()
	if len(watched) == 0 && err != nil {
		return err
	}
	for m.known.changes() == version {
		if ctx.Err() != nil || !m.watch.stays() || m.retired(s) {
			return errLeft
		}
		if err != nil && time.Since(tried) >= maxReopenPeriod { // in this session: a new one would miss events
			err, tried = m.register(ctx, s, set, version, watched), time.Now()
			hung = errors.Is(err, ErrNoAnswer) // also while an earlier call still hangs
		}
		data, ret := set.Wait(uint32(m.eventWait().Milliseconds()))
		switch ret {
		case nvmllib.SUCCESS:
			found(s.eventOf(data))
		case nvmllib.ERROR_TIMEOUT:
		case nvmllib.ERROR_GPU_IS_LOST:
			found(gpu.Event{Kind: gpu.EventLost, At: time.Now()})
			return errLeft // the next session leaves the lost GPU out
		default:
			return fmt.Errorf("wait for events: %w", ret)
		}
	}
	return nil
}

// register registers the events of all GPUs with the set, but those that are watched already, by NVML's index. It adds
// to them. A GPU that does not answer is left out. Error: the first one, ErrNoAnswer if there is one.
func (m *Machine) register(ctx context.Context, s *session, set nvmllib.EventSet, version int,
	watched map[int]gpu.UUID) (failed error) {
	count, ret := s.lib.DeviceGetCount()
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("count GPUs: %w", ret)
	}
	gpus := map[gpu.UUID]string{}
	for i := range count {
		if id, done := watched[i]; done {
			gpus[id] = ""
			continue
		}
		if !m.watch.stays() {
			break
		}
		_, about := m.known.at(i)
		ctx, cancel := context.WithTimeout(ctx, registerTimeout)
		id, err := wait(ctx, &m.calls, about, func(a *asked) (gpu.UUID, error) {
			if !m.hold(s) {
				return "", errLeft
			}
			defer m.release(s) // after the watcher, if the call hangs
			if err := a.ask(about); err != nil {
				return "", err
			}
			return s.registerAt(i, set)
		})
		cancel()
		if err == nil {
			gpus[id], watched[i] = "", id
			continue
		}
		gpus[about] = err.Error()
		if failed == nil || errors.Is(err, ErrNoAnswer) {
			failed = fmt.Errorf("GPU %d: %w", i, err)
		}
	}
	m.watch.began(gpus, version)
	return failed
}

func (s *session) registerAt(index int, set nvmllib.EventSet) (gpu.UUID, error) {
	handle, ret := s.lib.DeviceGetHandleByIndex(index)
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("get handle: %w", ret)
	}
	uuid, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("get UUID: %w", ret)
	}
	supported, ret := handle.GetSupportedEventTypes()
	if ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("get supported events: %w", ret)
	}
	if supported&nvmllib.EventTypeXidCriticalError == 0 {
		return "", errors.New("the GPU has no events for XIDs")
	}
	if ret := handle.RegisterEvents(supported&wantedEvents, set); ret != nvmllib.SUCCESS {
		return "", fmt.Errorf("register events: %w", ret)
	}
	return gpu.UUID(uuid), nil
}

// noInstance is the ID of a GPU or compute instance in events of a whole GPU.
const noInstance = 0xFFFFFFFF

func (s *session) eventOf(data nvmllib.EventData) gpu.Event {
	e := gpu.Event{Kind: gpu.EventOther, At: time.Now()}
	switch data.EventType {
	case nvmllib.EventTypeXidCriticalError:
		e.Kind, e.XID = gpu.EventXID, data.EventData
	case nvmllib.EventTypeDoubleBitEccError:
		e.Kind = gpu.EventECCDouble
	}
	e.GPU = s.uuidOf(data.Device)
	if data.GpuInstanceId != noInstance {
		e.Instance = &gpu.Instance{GPU: int(data.GpuInstanceId), Compute: int(data.ComputeInstanceId)}
	}
	return e
}

// uuidOf returns the UUID of the GPU with the handle, also of one that was lost meanwhile; "" if it is unknown.
func (s *session) uuidOf(handle nvmllib.Device) (id gpu.UUID) {
	if handle == nil {
		return ""
	}
	if uuid, ret := handle.GetUUID(); ret == nvmllib.SUCCESS {
		return gpu.UUID(uuid)
	}
	s.handles.Range(func(key, known any) bool {
		if known == handle {
			id = key.(gpu.UUID)
		}
		return id == ""
	})
	return id
}

// unregistered is the version of GPUs of a session before they are registered.
const unregistered = -1

// enter records that the watcher opens a session. It returns false if it must not.
func (w *watch) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.halted() != "" || w.out {
		return false
	}
	w.version = unregistered
	w.inside, w.leave, w.beat = make(chan struct{}), false, time.Now()
	return true
}

func (w *watch) exit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.inside)
	w.inside = nil
}

// stays reports whether the watcher stays in its session, before each call for events.
func (w *watch) stays() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beat = time.Now()
	return !w.leave && !w.out && w.halted() == ""
}

// stayOut keeps the watcher out of sessions, until it is called with false.
func (w *watch) stayOut(out bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = out
}

// began records which GPUs are watched.
func (w *watch) began(gpus map[gpu.UUID]string, version int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gpus, w.failed, w.version = gpus, "", version
}

// fail records why a session failed.
func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err.Error()
}

// Watching reports whether the events of any GPU are watched, of those of the last discovery.
func (m *Machine) Watching() bool {
	w := &m.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inside == nil || w.version != m.known.changes() || w.halted() != "" {
		return false
	}
	return slices.Contains(slices.Collect(maps.Values(w.gpus)), "")
}

// retired reports whether the session is to be closed.
func (m *Machine) retired(s *session) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.retired
}
