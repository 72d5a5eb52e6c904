// SPDX-License-Identifier: Apache-2.0

// Package gpuhealth notices sick GPUs and says what follows: taints of published devices, the kubelet's view of device
// health, events, conditions of claims, and metrics. Package health of the driver decides what is wrong. Of its sibling
// packages, it may import only report.
package gpuhealth

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Known is what a discovery has found, and what the node knows besides.
type Known struct {
	gpu.Discovery
	// GPUs are all known GPUs, also lost ones, with their partitions.
	GPUs inventory.Inventory
	// Published are the published devices.
	Published inventory.Inventory
	// Policies are the rules of the administrator; nil: they cannot be read, and the last known ones stay.
	Policies map[gpu.UUID]health.Policy
	// Held has the GPUs that claims which have not ended hold, whole or in part.
	Held map[gpu.UUID]bool
	// Untainted reports whether the API server stores no taints, so that nothing is evicted.
	Untainted bool
}

// Moment is the present.
type Moment struct {
	Now   time.Time
	Alone bool // no other instance of the plugin runs on the node
}

// Actions are what follows from calls of a Manager. Its owner does them.
type Actions struct {
	Changed      bool            // taints have changed: publish them, before everything else
	Notices      []report.Notice // events, and conditions of claims
	Recheck      []gpu.UUID      // GPUs that the next discovery asks for their health
	Discover     bool            // the GPUs should be read at once
	Release      *string         // why NVML is to be closed; "": it can be opened; nil: nothing has changed
	StopWatching string          // why no events are to be watched, so that a GPU can be reset; "": they are
	SaveSoon     bool            // call Tick after SaveDelay, which saves
	Save         bool            // call Save
}

// Manager knows the health of the node's GPUs. It belongs to one goroutine, which calls Actions after other methods.
type Manager struct {
	dir      string // of the plugin; the state is saved there
	bootID   string
	records  report.Lister
	state    health.State
	known    Known
	paused   string                 // why the driver is about to be replaced; empty: it is not
	released string                 // why NVML is closed; empty: it is not
	unread   string                 // why no GPU can be read; empty: they were read last time
	refused  map[gpu.UUID]time.Time // when claims for sick GPUs were last refused
	drains   map[gpu.UUID]time.Time // since when GPUs wait for a reset without claims
	linked   linked                 // nil: before the first discovery
	asked    time.Time              // when an event last asked for a discovery
	noXID    map[gpu.UUID]gpu.Event // memory errors whose XID may follow, the first of each GPU
	saved    time.Time
	dirty    bool // the state has changed since it was saved
	shared   bool // at the last discovery, another instance could save its state
	actions  Actions
}

// New returns a Manager with the state that the previous instance has saved.
func New(dir, bootID string, records report.Lister) *Manager {
	m := &Manager{dir: dir, bootID: bootID, records: records, drains: map[gpu.UUID]time.Time{}, shared: true,
		refused: map[gpu.UUID]time.Time{}, noXID: map[gpu.UUID]gpu.Event{}}
	m.load()
	return m
}

// Actions returns what has become due since its last call.
func (m *Manager) Actions() Actions {
	a := m.actions
	m.actions = Actions{StopWatching: a.StopWatching}
	return a
}

// SaveDelay is the time between a change of the state and its save. The change is published first.
const SaveDelay = time.Second

// askPeriod is the time between two discoveries that events ask for.
const askPeriod = time.Second

// memoryXIDs are the XIDs of memory errors that could not be corrected. Their rules say whether the GPU needs a reset.
var memoryXIDs = []uint64{48, 94, 95, 140}

// xidDelay is how long after the event of a memory error its XID may come, or before.
const xidDelay = 5 * time.Second

// Occurred takes an event of a GPU. A memory error is one of its own unless an XID is about it.
func (m *Manager) Occurred(ctx context.Context, e gpu.Event) {
	var cause health.Cause
	switch e.Kind {
	case gpu.EventXID:
		cause = health.XIDCause(e.XID)
	case gpu.EventECCDouble:
		if _, earlier := m.noXID[e.GPU]; e.GPU != "" && !earlier {
			m.noXID[e.GPU] = e
		}
	}
	var began []health.Condition
	if cause != "" && e.GPU != "" {
		began = m.state.See(e.At, m.bootID, health.Subject{GPU: e.GPU, Partition: m.placement(e)}, cause, "")
		m.dirty = true
	}
	m.changed(ctx, e.At, began)
	m.actions.Recheck = append(m.actions.Recheck, e.GPU)
	repeated := cause != "" && e.GPU != "" && len(began) == 0
	if repeated || len(began) == 0 && e.At.Sub(m.asked) < askPeriod {
		return // the next discovery is soon enough
	}
	m.asked = e.At
	m.actions.Discover = true
}

// withoutXID takes the memory errors that no XID is about.
func (m *Manager) withoutXID(ctx context.Context, now time.Time) {
	for _, id := range slices.Sorted(maps.Keys(m.noXID)) {
		e := m.noXID[id]
		if now.Sub(e.At) < xidDelay {
			continue
		}
		delete(m.noXID, id)
		if !slices.ContainsFunc(m.state.Conditions, func(c health.Condition) bool {
			number, _ := c.Cause.XID()
			return c.GPU == id && slices.Contains(memoryXIDs, number) && c.Last.After(e.At.Add(-xidDelay))
		}) {
			m.dirty = true
			m.changed(ctx, now, m.state.See(e.At, m.bootID, health.Subject{GPU: id, Partition: m.placement(e)},
				health.ECCDoubleBit, ""))
		}
	}
}

// placement returns the partition that the event is about; nil: the whole GPU, also if the partition is not known.
func (m *Manager) placement(e gpu.Event) *gpu.Placement {
	if e.Instance == nil {
		return nil
	}
	for _, d := range m.known.GPUs {
		for _, p := range d.MIG.Instances {
			if d.UUID == e.GPU && p.GPUInstance == e.Instance.GPU {
				return &p.Placement
			}
		}
	}
	return nil
}

// Paused takes why the driver is about to be replaced, at the start of every discovery; empty: it is not.
func (m *Manager) Paused(ctx context.Context, at Moment, why string) {
	m.paused = why
	m.update(ctx, at)
	if m.dirty && at.Now.Sub(m.saved) >= savePeriod {
		m.saveSoon()
	}
}

// Unread takes why discoveries fail, so that nothing is known of any GPU.
func (m *Manager) Unread(why string) {
	if m.released == "" && m.unread != why {
		m.unread = why
		m.taintsChanged()
	}
}

// taintsChanged notes that taints have changed, without an event.
func (m *Manager) taintsChanged() {
	m.saveSoon()
	m.actions.Changed = true
}

// Discovered takes the result of a discovery.
func (m *Manager) Discovered(ctx context.Context, at Moment, known Known) {
	now := at.Now
	m.clamp(now)
	m.merge(ctx, at)
	last, counted := m.known, maps.Clone(m.state.AER)
	links, peers, best := maps.Clone(m.state.Links), maps.Clone(m.state.Peers), maps.Clone(m.state.Best)
	if known.Policies == nil {
		known.Policies = last.Policies
	}
	m.known, m.linked = known, m.linked.next(now, known.GPUs)
	if m.unread != "" {
		m.unread = ""
		m.taintsChanged()
	}
	changed := append(m.state.Booted(now, m.bootID, m.policy), m.state.Gone(now, known.has)...)
	for _, d := range known.GPUs {
		if d.MovedTo != "" {
			continue // the GPU is here, under that name
		}
		if errs, ok := known.AER[d.PCI]; ok {
			changed = append(changed, m.state.Counted(now, m.bootID, d.UUID, errs)...)
		}
		if d.Lost {
			cause := health.GPULost
			if d.ResetRequired {
				cause = health.ResetRequired
			}
			changed = append(changed, m.state.Lost(now, m.bootID, d.UUID, cause)...)
			continue
		}
		answers, ok := known.Health[d.UUID]
		answers.ComputeMode, answers.Claimed = d.ComputeMode, known.Held[d.UUID]
		answers.Slot, answers.Others = d.PCI, known.others(d)
		was, had := last.GPUs.FindUUID(d.UUID)
		// A GPU that was in a virtual machine has been reset. Without a reset, NVIDIA's driver still asks for one.
		if back := was.Lost && was.Gone || was.InVM() && !d.InVM(); had && back && !answers.RecoveryAction.Needed() {
			changed = append(changed, m.state.Reset(now, d.UUID, m.policy)...)
			m.dirty = true // also if nothing ends yet
		}
		if ok {
			changed = append(changed, m.state.Answered(now, m.bootID, d.UUID, answers,
				m.linked.before(answers.At), m.policy)...)
		}
		if len(m.state.Of(d)) > 0 { // its recovery is noticed at the next discovery
			m.actions.Recheck = append(m.actions.Recheck, d.UUID)
		}
	}
	if !maps.EqualFunc(links, m.state.Links, slices.Equal) || !maps.Equal(counted, m.state.AER) ||
		!maps.EqualFunc(peers, m.state.Peers, maps.Equal) || !maps.Equal(best, m.state.Best) {
		m.dirty = true
	}
	if !sameGPUs(last, known) {
		m.saveSoon()
	}
	m.changed(ctx, now, changed)
	m.release(ctx, now)
}

// linked has the GPUs whose NVLinks are on, and the discovery that found them so: the zero time if the first one did. A
// GPU in MIG mode or bound to vfio-pci has them off, so those that lead to it are inactive at their other ends too. One
// that is lost counts as linked: its links have failed with it.
type linked map[gpu.PCIAddress]time.Time

// next returns the GPUs that are linked now.
func (l linked) next(now time.Time, gpus inventory.Inventory) linked {
	all := linked{}
	for _, d := range gpus {
		if d.MovedTo != "" || d.MIG.Enabled || d.InVM() {
			continue
		}
		since, known := l[d.PCI]
		if !known && l != nil {
			since = now
		}
		all[d.PCI] = since
	}
	return all
}

// before reports whether a GPU was linked before then. An older answer may be of a time when its links were off.
func (l linked) before(then time.Time) func(gpu.PCIAddress) bool {
	return func(at gpu.PCIAddress) bool {
		since, ok := l[at]
		return ok && since.Before(then)
	}
}

// policy returns the rules of the administrator for the GPU.
func (m *Manager) policy(id gpu.UUID) health.Policy { return m.known.Policies[id] }

// rule returns the rule for the condition.
func (m *Manager) rule(c health.Condition) health.Rule { return m.policy(c.GPU).For(c.Cause) }

// has reports whether the GPU is known.
func (k Known) has(id gpu.UUID) bool {
	_, ok := k.GPUs.FindUUID(id)
	return ok
}

// others returns the answers of the other GPUs of the model.
func (k Known) others(of gpu.Device) (all []gpu.Health) {
	for _, d := range k.GPUs {
		if is, ok := k.Health[d.UUID]; ok && d.UUID != of.UUID && d.MovedTo == "" && !d.Lost &&
			d.Product.Name == of.Product.Name {
			all = append(all, is)
		}
	}
	return all
}

// sameGPUs reports whether both have the same GPUs, watched in the same way.
func sameGPUs(a, b Known) bool {
	return maps.Equal(a.Unwatched, b.Unwatched) && slices.EqualFunc(a.GPUs, b.GPUs, func(a, b gpu.Device) bool {
		return a.Name == b.Name && a.UUID == b.UUID
	})
}

// changed reports conditions that began or ended.
func (m *Manager) changed(ctx context.Context, now time.Time, all []health.Condition) {
	if len(all) == 0 {
		return
	}
	m.taintsChanged()
	for _, c := range all {
		m.report(ctx, now, c)
	}
}

// Tick updates the state: after a request of people, and SaveDelay after a change.
func (m *Manager) Tick(ctx context.Context, at Moment) {
	m.update(ctx, at)
	m.actions.Save = m.dirty
}

// clamp corrects times from a clock that was ahead.
func (m *Manager) clamp(now time.Time) { m.dirty = m.state.Clamp(now) || m.dirty }

// update ends what is over, and does what people have asked for.
func (m *Manager) update(ctx context.Context, at Moment) {
	m.clamp(at.Now)
	m.forgetRefused(at.Now)
	if len(m.known.GPUs) > 0 { // before the first discovery, neither GPUs nor their rules are known
		m.withoutXID(ctx, at.Now)
		m.changed(ctx, at.Now, m.state.Elapsed(at.Now, m.policy))
		if at.Alone { // or else the other instance would keep what this one clears
			m.clear(ctx, at.Now)
		}
	}
	m.release(ctx, at.Now)
}

// clear ends the conditions of GPUs that people have asked to clear.
func (m *Manager) clear(ctx context.Context, now time.Time) {
	for _, name := range health.ClearRequests(m.dir) {
		d, ok := m.known.GPUs.Find(name)
		if !ok {
			klog.FromContext(ctx).Info("No GPU to clear", "device", name)
			continue
		}
		m.saveSoon() // also the NVLinks
		m.changed(ctx, now, m.state.Clear(now, d.UUID))
		m.actions.Recheck = append(m.actions.Recheck, d.UUID)
		m.actions.Discover = true
	}
}

// States returns the state of each GPU, for metrics.
func (m *Manager) States() map[gpu.UUID]report.GPUState {
	states := map[gpu.UUID]report.GPUState{}
	for _, d := range m.known.GPUs {
		s := report.GPUState{Device: d.Name, State: report.GPUHealthy}
		switch {
		case d.Lost && !d.ResetRequired:
			s.State = report.GPULost
		case d.Lost, m.worst(d) != health.EffectNone:
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

// worst returns the effect of the device's conditions.
func (m *Manager) worst(d gpu.Device) health.Effect {
	worst := health.EffectNone
	for _, c := range m.state.Of(d) {
		if effect := m.rule(c).Effect; severity[effect] > severity[worst] {
			worst = effect
		}
	}
	return worst
}

var severity = map[health.Effect]int{health.EffectNone: 1, health.EffectNoSchedule: 2, health.EffectNoExecute: 3}

// unwatched says why the events of the device's GPU are not watched; empty: they are.
func (m *Manager) unwatched(d gpu.Device) string {
	return cmp.Or(m.released, m.unread, m.known.Unwatched[d.Physical()])
}

// Taints returns the taints of the health of each device.
func (m *Manager) Taints(inv inventory.Inventory) [][]gpu.Taint {
	all := make([][]gpu.Taint, len(inv))
	for i, d := range inv {
		all[i] = m.taints(d)
	}
	return all
}

// refusedFor is how long after the last refusal pods that wait for a GPU are evicted. The kubelet tries again sooner.
const refusedFor = time.Minute

// Refused notes that a claim was not prepared, because the GPU has become sick since it was allocated. Its pod waits
// for the GPU, while others may be free: it is evicted, unless other claims hold the GPU, whose pods would be, too.
func (m *Manager) Refused(now time.Time, id gpu.UUID) {
	d, _ := m.known.GPUs.FindUUID(id)
	records, err := m.records.List()
	for _, rec := range records {
		if rec.Phase == checkpoint.Releasing {
			continue // its pod has ended
		}
		for _, a := range rec.Plan.Assignments {
			if gpu.ParentName(a.Device) == d.Name {
				return // the next attempt of the claim may find the GPU free
			}
		}
	}
	if err != nil {
		return // anybody may hold it
	}
	if _, known := m.refused[id]; !known {
		m.taintsChanged()
	}
	m.refused[id] = now
}

// forgetRefused ends the evictions of pods that wait no more.
func (m *Manager) forgetRefused(now time.Time) {
	for id, last := range m.refused {
		if now.Sub(last) >= refusedFor {
			delete(m.refused, id)
			m.taintsChanged()
		}
	}
}

// taints returns the taints of a device, one for each key, by key.
func (m *Manager) taints(d gpu.Device) []gpu.Taint {
	var xid, unhealthy, lost gpu.Taint
	for _, c := range m.state.Of(d) {
		rule := m.rule(c)
		if rule.Effect == health.EffectNone {
			continue
		}
		number, isXID := c.Cause.XID()
		if _, refused := m.refused[d.Physical()]; refused && !m.known.Held[d.Physical()] {
			rule.Effect = health.EffectNoExecute
		}
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
		if m.released != "" || m.unread != "" {
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
