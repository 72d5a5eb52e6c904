// SPDX-License-Identifier: Apache-2.0

// Package gpuhealth notices sick GPUs and says what follows: taints of published devices, the kubelet's view of device
// health, events, conditions of claims, and metrics. Package health of the driver decides; this package acts. Of its
// sibling packages, it may import only dirwatch and report.
package gpuhealth

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/dirwatch"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Hardware is what the Manager needs of the GPUs.
type Hardware interface {
	// Watch calls found for each event until ctx ends. found must not block.
	Watch(ctx context.Context, found func(gpu.Event))
	// Recheck makes the next discovery ask the GPU for its health.
	Recheck(gpu.UUID)
	// LetGo closes NVML and keeps it closed. why is the reason; "" opens it again.
	LetGo(why string)
	// StopWatching stops watching events, so that NVML can be closed between discoveries. "" continues.
	StopWatching(why string)
}

// Config is the configuration of a Manager.
type Config struct {
	Dir      string // of the plugin; the state is saved there
	BootID   string
	Hardware Hardware // nil: nothing is watched
	Records  report.Lister
	Reporter *report.Reporter
	Metrics  *report.Metrics
	// Changed is called when taints have changed. It must not block for long.
	Changed func()
	// Discover is called when the GPUs should be read at once. It must not block.
	Discover func()
	// Alone reports whether no other instance of the plugin runs on the node.
	Alone func() bool
}

// Look is what a discovery has found.
type Look struct {
	// GPUs are all known GPUs, also lost ones, with their partitions.
	GPUs inventory.Inventory
	// Devices are the published devices.
	Devices inventory.Inventory
	// Answers are what the GPUs that answered say about themselves.
	Answers map[gpu.UUID]gpu.Health
	// Unwatched says of each GPU whose events are not watched why not.
	Unwatched map[gpu.UUID]string
	// Policies are the rules of the administrator; nil: they cannot be read, and the last known ones stay.
	Policies health.Policies
	// Held reports whether claims hold the GPU or a partition of it.
	Held func(device string) bool
	// Persistent reports whether NVML can be closed without a loss of settings.
	Persistent bool
	// Untainted reports whether the API server stores no taints, so that nothing is evicted.
	Untainted bool
}

// Manager knows the health of the node's GPUs.
type Manager struct {
	Config
	now func() time.Time

	mu     sync.Mutex
	state  health.State
	look   Look
	paused string                 // why the driver is about to be replaced; empty: it is not
	letGo  string                 // why NVML is closed; empty: it is not
	unread string                 // why no GPU can be read; empty: they were read last time
	drains map[gpu.UUID]time.Time // since when GPUs wait for a reset without claims
	asked  time.Time              // when an event last asked for a discovery
	saved  time.Time
	dirty  bool // the state has changed since it was saved
	shared bool // at the last look, another instance could save its state

	watchers   watchers
	closeUntil time.Time // until when people have asked to close NVML
	asks       *dirwatch.Watcher
	due        chan struct{} // the state is to be saved
	letting    sync.Mutex    // held while Hardware.LetGo is called
}

// New returns a Manager with the state that the previous instance has saved.
func New(c Config) *Manager {
	m := &Manager{Config: c, now: time.Now, drains: map[gpu.UUID]time.Time{}, due: make(chan struct{}, 1)}
	m.load()
	m.shared = true
	m.closeUntil = health.LetGoRequest(m.Dir)
	return m
}

// saveDelay is the time between a change of the state and its save. The change is published first.
const saveDelay = time.Second

// Run watches events and requests of people, and saves the state, until ctx ends. What has ended with time is noticed
// at each discovery, and so are requests if there is no inotify.
func (m *Manager) Run(ctx context.Context) {
	if m.Hardware != nil {
		go m.Hardware.Watch(ctx, func(e gpu.Event) { m.occurred(ctx, e) })
	}
	asks := m.watchRequests(ctx)
	for {
		m.tick(ctx)
		select {
		case <-ctx.Done():
			m.flush()
			return
		case <-asks.Changed():
		case <-m.due:
			select {
			case <-ctx.Done():
			case <-time.After(saveDelay):
			}
		}
	}
}

// watchRequests starts to watch for the files of requests.
func (m *Manager) watchRequests(ctx context.Context) *dirwatch.Watcher {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks = dirwatch.New(ctx, health.IsRequest)
	m.asks.Keep(m.Dir)
	return m.asks
}

// askPeriod is the time between two discoveries that events ask for.
const askPeriod = time.Second

// occurred handles an event.
func (m *Manager) occurred(ctx context.Context, e gpu.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Kind == gpu.EventXID {
		m.Metrics.XID(e.GPU, e.XID)
	}
	var cause health.Cause
	switch e.Kind {
	case gpu.EventXID:
		cause = health.XIDCause(e.XID)
	case gpu.EventECCDouble:
		cause = health.ECCDoubleBit
	}
	var began []health.Condition
	if cause != "" && e.GPU != "" {
		began = m.state.See(e.At, m.BootID, health.Subject{GPU: e.GPU, Partition: m.placement(e)}, cause, "")
		m.dirty = true
	}
	m.changed(ctx, began)
	if m.Hardware != nil {
		m.Hardware.Recheck(e.GPU)
	}
	repeated := cause != "" && e.GPU != "" && len(began) == 0
	if repeated || len(began) == 0 && e.At.Sub(m.asked) < askPeriod {
		return // the next discovery is soon enough
	}
	m.asked = e.At
	m.Discover()
}

// placement returns the partition that the event is about; nil: the whole GPU, also if the partition is not known.
func (m *Manager) placement(e gpu.Event) *gpu.Placement {
	if e.Instance == nil {
		return nil
	}
	for _, d := range m.look.GPUs {
		for _, p := range d.MIG.Instances {
			if d.UUID == e.GPU && p.GPUInstance == e.Instance.GPU {
				return &p.Placement
			}
		}
	}
	return nil
}

// Paused takes why the driver is about to be replaced, at the start of every discovery; empty: it is not.
func (m *Manager) Paused(ctx context.Context, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = why
	m.asks.Keep(m.Dir)
	now := m.now()
	m.update(ctx, now)
	if m.isDue(now) {
		m.saveSoon()
	}
}

// Unread takes why discoveries fail, so that nothing is known of any GPU.
func (m *Manager) Unread(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.letGo == "" && m.unread != why {
		m.unread = why
		m.taintsChanged()
	}
}

// taintsChanged says that taints have changed, without an event. m.mu is held.
func (m *Manager) taintsChanged() {
	m.saveSoon()
	go m.Changed()
	m.Metrics.GPUStates(m.gpuStates())
	m.watchers.notify()
}

// Looked takes the result of a discovery.
func (m *Manager) Looked(ctx context.Context, look Look) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.clamp(now)
	m.merge(ctx)
	before, links := m.look, maps.Clone(m.state.Links)
	if look.Policies == nil {
		look.Policies = before.Policies
	}
	m.look = look
	if m.unread != "" {
		m.unread = ""
		m.taintsChanged()
	}
	changed := append(m.state.Booted(now, m.BootID, look.Policies), m.state.Gone(now, look.knows)...)
	for _, d := range look.GPUs {
		if d.MovedTo != "" {
			continue // the GPU is here, under that name
		}
		if d.Lost {
			changed = append(changed, m.state.See(now, m.BootID, health.Subject{GPU: d.UUID}, health.GPULost, "")...)
			continue
		}
		answers, ok := look.Answers[d.UUID]
		was, known := before.GPUs.FindUUID(d.UUID)
		// Without a reset, NVIDIA's driver still asks for one.
		if known && was.Lost && !answers.RecoveryAction.Needed() {
			changed = append(changed, m.state.Reset(now, d.UUID, look.Policies)...)
			m.dirty = true // also if nothing ends yet
		}
		if ok {
			changed = append(changed, m.state.Answered(now, m.BootID, d.UUID, answers, look.Policies)...)
		}
		if m.Hardware != nil && len(m.state.Of(d)) > 0 {
			m.Hardware.Recheck(d.UUID) // its recovery is noticed at the next discovery
		}
	}
	if !maps.EqualFunc(links, m.state.Links, slices.Equal) {
		m.dirty = true
	}
	if !sameGPUs(before, look) {
		m.saveSoon()
	}
	m.changed(ctx, changed)
	m.giveWay(ctx, now)
	m.Metrics.GPUStates(m.gpuStates())
}

// knows reports whether the GPU is known.
func (l Look) knows(id gpu.UUID) bool {
	return slices.ContainsFunc(l.GPUs, func(d gpu.Device) bool { return d.UUID == id })
}

// sameGPUs reports whether both looks have the same GPUs, watched in the same way.
func sameGPUs(a, b Look) bool {
	return maps.Equal(a.Unwatched, b.Unwatched) && slices.EqualFunc(a.GPUs, b.GPUs, func(a, b gpu.Device) bool {
		return a.Name == b.Name && a.UUID == b.UUID
	})
}

// changed reports conditions that began or ended. m.mu is held.
func (m *Manager) changed(ctx context.Context, all []health.Condition) {
	if len(all) == 0 {
		return
	}
	go m.Changed() // first of all; it calls Annotate
	for _, c := range all {
		m.report(ctx, c)
	}
	m.Metrics.GPUStates(m.gpuStates())
	m.watchers.notify()
	m.saveSoon()
}

// tick updates the state, and saves it if that is due.
func (m *Manager) tick(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.update(ctx, now)
	if m.isDue(now) {
		m.save(ctx, now)
	}
}

// clamp corrects times from a clock that was ahead. m.mu is held.
func (m *Manager) clamp(now time.Time) { m.dirty = m.state.Clamp(now) || m.dirty }

// update ends what is over, and does what people have asked for. m.mu is held.
func (m *Manager) update(ctx context.Context, now time.Time) {
	m.clamp(now)
	if len(m.look.GPUs) > 0 { // before the first discovery, neither GPUs nor their rules are known
		m.changed(ctx, m.state.Elapsed(now, m.look.Policies))
		if m.Alone() { // or else the other instance would keep what this one clears
			m.clear(ctx, now)
		}
	}
	m.closeUntil = health.LetGoRequest(m.Dir)
	m.giveWay(ctx, now)
}

// clear ends the conditions of GPUs that people have asked to clear. m.mu is held.
func (m *Manager) clear(ctx context.Context, now time.Time) {
	for _, name := range health.ClearRequests(m.Dir) {
		d, ok := m.look.GPUs.Find(name)
		if !ok {
			klog.FromContext(ctx).Info("No GPU to clear", "device", name)
			continue
		}
		m.saveSoon() // also the NVLinks
		m.changed(ctx, m.state.Clear(now, d.UUID))
		if m.Hardware != nil {
			m.Hardware.Recheck(d.UUID)
		}
		m.Discover()
	}
}

// flush saves the state at the end.
func (m *Manager) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dirty {
		m.save(context.Background(), m.now())
	}
}

// gpuStates returns the state of each GPU, for metrics. m.mu is held.
func (m *Manager) gpuStates() map[gpu.UUID]report.GPUState {
	states := map[gpu.UUID]report.GPUState{}
	for _, d := range m.look.GPUs {
		s := report.GPUState{Device: d.Name, State: report.GPUHealthy}
		switch {
		case d.Lost:
			s.State = report.GPULost
		case m.worst(d) != health.EffectNone:
			s.State = report.GPUUnhealthy
		case m.unwatched(d) != "":
			s.State = report.GPUUnmonitored
		}
		for _, c := range m.state.Of(d) {
			s.Causes = append(s.Causes, string(c.Cause))
		}
		states[d.UUID] = s
	}
	return states
}

// worst returns the effect of the device's conditions. m.mu is held.
func (m *Manager) worst(d gpu.Device) health.Effect {
	worst := health.EffectNone
	for _, c := range m.state.Of(d) {
		if effect := m.look.Policies(c.GPU).For(c.Cause).Effect; severity[effect] > severity[worst] {
			worst = effect
		}
	}
	return worst
}

var severity = map[health.Effect]int{health.EffectNone: 1, health.EffectNoSchedule: 2, health.EffectNoExecute: 3}

// unwatched says why the events of the device's GPU are not watched; empty: they are. m.mu is held.
func (m *Manager) unwatched(d gpu.Device) string {
	return cmp.Or(m.letGo, m.unread, m.look.Unwatched[d.Physical()])
}

// Annotate returns the devices with the taints of their health.
func (m *Manager) Annotate(inv inventory.Inventory) inventory.Inventory {
	m.mu.Lock()
	defer m.mu.Unlock()
	annotated := make(inventory.Inventory, len(inv))
	for i, d := range inv {
		d.Taints = m.taints(d)
		annotated[i] = d
	}
	return annotated
}

// taints returns the taints of a device, one for each key, by key. m.mu is held.
func (m *Manager) taints(d gpu.Device) []gpu.Taint {
	var xid, unhealthy, lost gpu.Taint
	for _, c := range m.state.Of(d) {
		rule := m.look.Policies(c.GPU).For(c.Cause)
		if rule.Effect == health.EffectNone {
			continue
		}
		number, isXID := c.Cause.XID()
		t := gpu.Taint{Key: inventory.TaintUnhealthy, Value: string(c.Cause), Effect: string(rule.Effect),
			Since: c.Since}
		into := &unhealthy
		switch {
		case isXID:
			t.Key, t.Value, into = inventory.TaintXID, strconv.FormatUint(number, 10), &xid
		case c.Cause == health.GPULost:
			t.Key, t.Value, into = inventory.TaintLost, "", &lost
		}
		if severity[rule.Effect] >= severity[health.Effect(into.Effect)] { // of equal ones, the latest
			*into = t
		}
	}
	var unmonitored gpu.Taint
	if why := m.unwatched(d); why != "" && !d.Lost {
		unmonitored = gpu.Taint{Key: inventory.TaintUnmonitored, Effect: string(health.EffectNone)}
		if m.letGo != "" || m.unread != "" {
			unmonitored.Effect = string(health.EffectNoSchedule)
		}
	}
	var all []gpu.Taint
	for _, t := range []gpu.Taint{lost, unhealthy, unmonitored, xid} {
		if t.Key != "" {
			all = append(all, t)
		}
	}
	return all
}
