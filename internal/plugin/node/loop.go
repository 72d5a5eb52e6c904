// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// retryPeriod is the time between attempts while discovery fails.
	retryPeriod = 2 * time.Second
	// discoveryPeriod is the time between two discoveries.
	discoveryPeriod = 10 * time.Second
	// tolerated is how many discoveries in a row may fail before new claims are kept away.
	tolerated = 2
	// resumePeriod is the minimum time between repairs of changed GPU settings, so that a repair that fails is not
	// retried at every discovery.
	resumePeriod = time.Minute
)

// The events of the loop. Others are gpu.Event, of a GPU; publish.Lacking, what the API server lacks from now on; and
// *found, what a discovery has found.
type (
	tick        struct{} // the time of actions.Wake has come
	discoverNow struct{} // the GPUs should be read at once
	paused      string   // a discovery begins, and why the driver is about to be replaced; empty: it is not
	serving     struct{} // this instance serves the kubelet
	registered  struct{} // a kubelet has registered the plugin
	requested   struct{} // people have asked for something
	prepared    []string // a claim has these devices from now on
	released    struct{} // a claim has ended
	wanted      struct{} // a pod waits for possible partitions of unused GPUs of this node
	refused     gpu.UUID // a claim was not prepared, because this GPU is sick
	notRestored gpu.UUID // of a GPU, what an ended claim has changed cannot be undone
	modeNotSet  outcome  // the MIG mode of a GPU could not be changed for a claim
	gpuBound    outcome  // a GPU was bound to vfio-pci for a claim, or could not be
	gpuReturned outcome  // a GPU came back from a virtual machine, or could not

	partitionRefused struct { // a partition could not be made for a claim
		at  gpu.Placement
		err error
	}
	outcome struct { // of a change of a GPU; err is nil if it was made
		gpu gpu.UUID
		err error
	}
)

// actions are what follows from an event. They are done in the order of the fields: see Node.do.
type actions struct {
	Snapshot *snapshot // for other goroutines; nil: as before

	Save    *inventory.Inventory // before a device is published that would be forgotten when it is lost
	Waiting error                // what the node waits for; before a device is published that it says is missing
	Ready   bool                 // it waits for nothing any more
	Stale   bool                 // publish the devices even if they are the same
	Publish *inventory.Inventory

	Health gpuhealth.Actions

	Metrics metrics
	Notices []report.Notice    // before those of Health
	Removed []removedPartition // to be reported

	Resume bool // the hardware state of claims may have to be restored

	Discover *discovery // to be started
	Wake     time.Time  // of the next tick; zero: none is needed
}

// metrics are new values of metrics; nil: as before.
type metrics struct {
	answered  map[gpu.UUID]time.Time
	states    map[gpu.UUID]report.GPUState
	pending   *[]report.PendingChange
	published inventory.Inventory
}

func (m metrics) set(all *report.Metrics, o Options) {
	if m.answered != nil {
		all.Answered(m.answered)
	}
	if m.states != nil {
		all.GPUStates(m.states)
	}
	if m.pending != nil {
		all.PendingChanges(*m.pending)
	}
	if m.published != nil {
		pools := m.published.Pools(o.NodeName)
		if o.WithoutMonitor {
			delete(pools, inventory.MonitorPool(o.NodeName))
		}
		all.Published(pools)
	}
}

// state is what the loop knows.
type state struct {
	dir     string // of the plugin
	health  *gpuhealth.Manager
	lacking publish.Lacking

	devices   *inventory.Inventory // available to claims; nil: nothing is known yet
	basis     basis                // of devices
	former    *inventory.Inventory // of the previous instance, published while nothing can be read
	published inventory.Inventory  // devices with their taints
	tainted   *inventory.Inventory // those devices, without their taints
	taints    [][]gpu.Taint        // of each of them
	offered   inventory.Offered    // its GPUs are nil if they are not known yet
	freed     bool                 // a claim has ended since the discovery under way began
	changed   chan struct{}        // of the last snapshot
	known     inventory.Inventory  // all GPUs of the last discovery, and the available partitions
	blocked   blockedGPUs          // their MIG mode
	unbound   blockedGPUs          // those that could not be bound for virtual machines
	refused   map[gpu.Placement]blocked
	stuck     map[gpu.UUID]string // why GPUs do not come back from virtual machines
	used      map[gpu.UUID]bool   // by programs that belong to no claim, at the last discovery; nil: there was none
	open      map[gpu.UUID]bool   // likewise, those that keep the GPU from virtual machines
	pending   []report.PendingChange
	unsaved   bool              // the inventory could not be saved
	failed    int               // discoveries in a row
	resumed   time.Time         // when claims were last resumed
	logged    map[string]string // the last problem logged of each kind, so that it is logged once

	left map[gpu.UUID]time.Time // since when a GPU is as an ended claim has left it

	serving     bool
	discovering bool
	asked       bool      // for a discovery at once, or after the one under way
	due         time.Time // the next discovery
	saveAt      time.Time // when the health is to be saved; zero: nothing has changed
}

// basis is what devices follow from: the same basis has the same devices.
type basis struct {
	gpus, known inventory.Inventory
	records     records
}

func newState(o Options) *state {
	return &state{dir: o.Dir, blocked: blockedGPUs{}, unbound: blockedGPUs{},
		refused: map[gpu.Placement]blocked{},
		stuck:   map[gpu.UUID]string{}, left: map[gpu.UUID]time.Time{}, logged: map[string]string{},
		changed: make(chan struct{}),
		health:  gpuhealth.New(o.Dir, o.BootID, o.Records)}
}

// step takes an event, and returns what follows from it. It reads the plugin's directory. Outside the state it changes
// only one thing: it removes the requests of people that it takes from there.
func (s *state) step(ctx context.Context, at gpuhealth.Moment, event any) actions {
	var a actions
	switch e := event.(type) {
	case tick:
		if s.serving && !s.saveAt.IsZero() && !at.Now.Before(s.saveAt) {
			s.saveAt = time.Time{}
			s.health.Tick(ctx, at)
		}
	case requested:
		s.health.Tick(ctx, at)
	case serving:
		s.serving = true
		s.health.Tick(ctx, at)
	case discoverNow:
		s.asked = true
	case prepared:
		s.asked = s.asked || slices.ContainsFunc(e, func(device string) bool {
			name := gpu.ParentName(device)
			return s.spare(name) || gpu.IsPartition(device) && s.offered.GPUs != nil && !s.offered.GPUs[name]
		})
	case released:
		s.freed = true
		s.asked = s.asked || s.lacksSpare()
	case wanted:
		if s.devices != nil { // otherwise the controller asks again
			s.offer(at.Now, true, &a)
			s.publish(&a)
		}
	case gpu.Event:
		s.health.Occurred(ctx, e)
	case paused:
		s.health.Paused(ctx, at, string(e))
	case modeNotSet:
		s.blocked.note(at.Now, e.gpu, e.err)
	case partitionRefused:
		_, known := s.refused[e.at] // a call that is tried again says nothing new
		s.refused[e.at], s.asked = blocked{e.err.Error(), at.Now.Add(blockedFor)}, s.asked || !known
	case gpuBound:
		_, known := s.unbound.all(at.Now)[e.gpu]
		s.unbound.note(at.Now, e.gpu, e.err)
		if e.err == nil {
			delete(s.stuck, e.gpu)
		}
		s.asked = s.asked || e.err == nil || !known // a call that waits tries again each second
	case gpuReturned:
		before := s.stuck[e.gpu]
		switch {
		case e.err == nil:
			delete(s.stuck, e.gpu)
		case !errors.Is(e.err, gpu.ErrBusy): // a call that is still waiting says nothing new
			s.stuck[e.gpu] = e.err.Error()
		}
		s.asked = s.asked || e.err == nil || s.stuck[e.gpu] != before
	case refused:
		s.health.Refused(at.Now, gpu.UUID(e))
	case notRestored:
		s.left[gpu.UUID(e)], s.asked = at.Now, true
	case publish.Lacking:
		s.lacking, s.asked = e, true
	case registered:
		a.Stale = true
		s.publish(&a)
	case *found:
		s.discovering = false
		s.due = at.Now.Add(s.discovered(ctx, at, e, &a))
	}
	s.follow(at.Now, s.health.Actions(), &a)
	if !s.discovering && (s.asked || !at.Now.Before(s.due)) {
		s.discovering, s.asked, s.freed = true, false, false
		a.Discover = &discovery{first: s.devices == nil, known: s.known, lacking: s.lacking,
			blocked: s.blocked.all(at.Now), unbound: s.unbound.all(at.Now), stuck: maps.Clone(s.stuck)}
	}
	if !s.discovering {
		a.Wake = s.due
	}
	if s.serving && !s.saveAt.IsZero() && (a.Wake.IsZero() || s.saveAt.Before(a.Wake)) {
		a.Wake = s.saveAt
	}
	return a
}

// follow adds what follows for the health of GPUs.
func (s *state) follow(now time.Time, h gpuhealth.Actions, a *actions) {
	if h.Changed {
		s.changed = make(chan struct{})
		s.publish(a)
	}
	if h.Changed || a.Snapshot != nil {
		a.Snapshot, a.Metrics.states = s.snapshot(), s.health.States()
	}
	a.Health = h
	s.asked = s.asked || h.Discover
	if h.SaveSoon && s.saveAt.IsZero() {
		s.saveAt = now.Add(gpuhealth.SaveDelay)
	}
}

func (s *state) snapshot() *snapshot {
	now := &snapshot{devices: s.devices, reports: s.health.Reports(), changed: s.changed}
	if s.devices != nil {
		now.tainted = withTaints(*s.devices, s.health.Taints(*s.devices))
	}
	return now
}

// publish publishes the devices with their current taints. The same ones as before are known to be equal, without a
// look at the devices.
func (s *state) publish(a *actions) {
	devices := cmp.Or(s.devices, s.former)
	if devices == nil {
		return
	}
	a.Publish = &s.published
	taints := s.health.Taints(*devices)
	if devices == s.tainted && reflect.DeepEqual(taints, s.taints) {
		return
	}
	s.tainted, s.taints = devices, taints
	annotated := withTaints(*devices, taints)
	if devices == s.devices {
		annotated = annotated.Only(s.offered.GPUs)
	}
	if !reflect.DeepEqual(annotated, s.published) {
		s.published, a.Metrics.published, a.Snapshot = annotated, annotated, s.snapshot()
	}
}

func withTaints(devices inventory.Inventory, taints [][]gpu.Taint) inventory.Inventory {
	devices = slices.Clone(devices)
	for i := range devices {
		devices[i].Taints = taints[i]
	}
	return devices
}

// discovered takes the result of a discovery, and returns the time until the next one. The last inventory stays valid
// if it has failed.
func (s *state) discovered(ctx context.Context, at gpuhealth.Moment, e *found, a *actions) time.Duration {
	a.Metrics.answered = e.Answered
	s.logOnce(ctx, "GPU cannot be read, it counts as lost", errors.Join(e.Broken...))
	s.logOnce(ctx, "Records cannot be read, every known device counts as held", e.records.incomplete)
	s.logOnce(ctx, "GPU left out: without a node configuration nobody knows how it may be used", e.unknown)
	if e.err == nil {
		s.failed = 0
		s.take(ctx, at, e, a)
		s.offer(at.Now, false, a)
		s.publish(a)
		return discoveryPeriod
	}
	s.logOnce(ctx, "Machine cannot be read", e.err)
	if s.failed++; s.failed >= tolerated {
		s.unread(e.err, a)
	}
	if s.devices != nil {
		return discoveryPeriod
	}
	a.Waiting = e.err
	return retryPeriod
}

// unread keeps new claims away from the GPUs, of which nothing is known. The slices of a previous instance may still
// offer them.
func (s *state) unread(err error, a *actions) {
	s.health.Unread(err.Error())
	if s.devices != nil || s.former != nil {
		return
	}
	if former := saved(s.dir); len(former) > 0 {
		s.former = &former
		s.publish(a)
	}
}

// take takes the result of a discovery that has worked.
func (s *state) take(ctx context.Context, at gpuhealth.Moment, e *found, a *actions) {
	if e.noConfig == nil {
		s.reportPending(ctx, e.pending, a)
	}
	r, first := e.records, s.devices == nil
	gpus := s.block(at.Now, e)
	now := basis{gpus: gpus, known: e.known, records: r}
	same := !first && reflect.DeepEqual(s.basis, now)
	s.basis = now
	if first {
		s.offered.GPUs = offeredBefore(e.known)
	}
	if !same {
		same = s.derive()
	}
	a.Snapshot = &snapshot{}
	known := gpuhealth.Known{Discovery: e.Discovery, GPUs: gpus, Published: *s.devices, Held: map[gpu.UUID]bool{},
		Untainted: s.lacking.Taints()}
	if e.noConfig == nil {
		known.Policies = map[gpu.UUID]health.Policy{}
	}
	maps.DeleteFunc(s.left, func(id gpu.UUID, since time.Time) bool { // a discovery under way has not seen the record
		d, known := gpus.FindUUID(id)
		return !known || !r.ended(d.Name) && at.Now.Sub(since) >= discoveryPeriod
	})
	for _, d := range gpus {
		known.Held[d.UUID] = r.uses(d.Name)
		if h, answers := e.Health[d.UUID]; answers {
			_, h.NotRestored = s.left[d.UUID]
			e.Health[d.UUID] = h
		}
		if e.noConfig == nil {
			known.Policies[d.UUID] = e.config.Health(d)
		}
	}
	s.health.Discovered(ctx, at, known)

	if same {
		if s.unsaved {
			a.Save = &s.known
		}
		s.repairSettings(ctx, at.Now, gpus, r, a)
		return
	}
	s.report(ctx, e.known, r.removed(gpus), a)
	a.Save, a.Ready = &s.known, first
	s.resumed, a.Resume = at.Now, true
}

// derive sets the devices that follow from the basis, and reports whether they are the same as before.
func (s *state) derive() (same bool) {
	gpus, r := s.basis.gpus, s.basis.records
	held := slices.DeleteFunc(slices.Clone(s.basis.known), func(d gpu.Device) bool { return !r.holds(d.Name) })
	devices := withoutTransientState(withRemoved(gpus.WithPartitions(r.own).Retain(held, r.holds), r.removed(gpus)))
	same = s.devices != nil && reflect.DeepEqual(*s.devices, devices)
	s.devices = &devices
	s.remember()
	return same
}

// repairSettings resumes claims whose GPU does not have the compute mode that they need: the GPU was reset, or the mode
// was changed by hand. It also resumes those that have ended and are not undone.
func (s *state) repairSettings(ctx context.Context, now time.Time, gpus inventory.Inventory, r records, a *actions) {
	if now.Sub(s.resumed) < resumePeriod {
		return
	}
	if len(s.left) > 0 {
		s.resumed, a.Resume = now, true
		return
	}
	var holders []sharing.Holder
	for _, rec := range r.after {
		holders = append(holders, rec.Holder())
	}
	holders = sharing.InPlace(holders, gpus)
	for _, d := range gpus {
		want := sharing.State(d.UUID, holders, gpus).Settings
		if d.Lost || want == nil || want.Mode == d.ComputeMode {
			continue
		}
		klog.FromContext(ctx).Info("GPU has not the compute mode that its claims need: they are brought right",
			"device", d.Name, "uuid", d.UUID, "has", d.ComputeMode, "want", want.Mode)
		s.resumed, a.Resume = now, true
		return
	}
}

// logOnce logs a problem unless it is the last one logged of its kind; nil: there is none.
func (s *state) logOnce(ctx context.Context, what string, err error) {
	if err == nil || err.Error() == s.logged[what] {
		return
	}
	s.logged[what] = err.Error()
	klog.FromContext(ctx).Error(err, what)
}
