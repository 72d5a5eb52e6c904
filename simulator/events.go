// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// maxEvents is how many events a set holds that nobody has waited for. Further ones are lost.
const maxEvents = 1000

// eventTypes are all event types of nvml.h.
const eventTypes = nvml.EventTypeAll

// eventSet is a set of events of registered GPUs.
type eventSet struct {
	mock.EventSet
	library *library
	free    func()
	done    <-chan struct{}

	mu      sync.Mutex
	devices map[string]*device // registered GPUs, by UUID
	masks   map[string]uint64  // their event types, by UUID
	log     *node.Events       // nil before the first registration
	watch   *node.Watch        // nil before the first registration
	queue   []node.Event
}

func newEventSet(l *library) *eventSet {
	done := make(chan struct{})
	s := &eventSet{library: l, done: done, devices: map[string]*device{}, masks: map[string]uint64{}}
	s.free = sync.OnceFunc(func() {
		close(done)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.log != nil {
			s.log.Close()
			s.watch.Close()
		}
	})
	refuse(&s.EventSet)
	return s
}

// EventSetCreate creates an empty set of events.
func (l *library) EventSetCreate() (nvml.EventSet, nvml.Return) {
	if _, ret := l.view(); ret != nvml.SUCCESS {
		return nil, ret
	}
	return newEventSet(l), nvml.SUCCESS
}

// EventSetWait is Wait of the set.
func (l *library) EventSetWait(set nvml.EventSet, milliseconds uint32) (nvml.EventData, nvml.Return) {
	if set == nil {
		return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
	}
	return set.Wait(milliseconds)
}

// registerEvents adds the events of those types that happen from now on to the set.
func (d *device) registerEvents(mask uint64, set nvml.EventSet) nvml.Return {
	c, ret := d.current()
	if ret != nvml.SUCCESS {
		return ret
	}
	supported, e := c.SupportedEvents().Get()
	s, ours := set.(*eventSet)
	switch {
	case e != "":
		return nvml.Return(e.Number())
	case !ours || mask&^eventTypes != 0:
		return nvml.ERROR_INVALID_ARGUMENT
	case mask&^supported != 0:
		return nvml.ERROR_NOT_SUPPORTED
	}
	return s.register(d, mask)
}

func (s *eventSet) register(d *device, mask uint64) nvml.Return {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed() {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if s.log == nil {
		s.log, s.watch = s.library.node.Events(), s.library.node.Watch()
	}
	s.pull() // what has happened before is for the earlier registrations
	if mask != 0 {
		s.devices[d.UUID] = d
		s.masks[d.UUID] |= mask
	}
	return nvml.SUCCESS
}

func (s *eventSet) freed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// pull takes the new events of the node into the queue. The caller holds s.mu.
func (s *eventSet) pull() {
	if s.log == nil {
		return
	}
	for _, e := range s.log.Next() {
		if s.masks[e.GPU]&uint64(e.Type) != 0 && len(s.queue) < maxEvents {
			s.queue = append(s.queue, e)
		}
	}
}

// Wait returns the next event, at the latest after that time. Without one it returns ERROR_GPU_IS_LOST if a registered
// GPU is off the bus, otherwise ERROR_TIMEOUT. Free ends it early, and so does the loss of a GPU.
func (s *eventSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond)
	if ret := s.gate(); ret != nvml.SUCCESS {
		return nvml.EventData{}, ret
	}
	for {
		event, watch, ret := s.next()
		if ret != nvml.ERROR_TIMEOUT {
			return event, ret
		}
		left := time.Until(end)
		if left <= 0 {
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		}
		s.sleep(watch, left)
	}
}

// gate applies the injected faults of the registered GPUs, and the profile's errors.
func (s *eventSet) gate() nvml.Return {
	for _, d := range s.registered() {
		if _, ret := d.current(); ret != nvml.SUCCESS {
			continue // next reports it, after the events that are waiting
		}
		if ret := d.gate(hwprofile.WaitCall); ret != nvml.SUCCESS {
			return ret
		}
	}
	return nvml.SUCCESS
}

// registered returns the registered GPUs in a fixed order.
func (s *eventSet) registered() []*device {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*device
	for _, d := range s.devices {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *device) int { return a.Index - b.Index })
	return out
}

// next returns the first event in the queue, or why there is none.
func (s *eventSet) next() (nvml.EventData, *node.Watch, nvml.Return) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed() {
		return nvml.EventData{}, nil, nvml.ERROR_INVALID_ARGUMENT
	}
	s.pull()
	if len(s.queue) > 0 {
		e := s.queue[0]
		s.queue = s.queue[1:]
		return s.data(e), nil, nvml.SUCCESS
	}
	v, ret := s.library.view()
	if ret == nvml.ERROR_DRIVER_NOT_LOADED && len(s.devices) > 0 {
		return nvml.EventData{}, nil, ret
	}
	for _, d := range s.devices {
		if ret != nvml.SUCCESS { // during a reload of the driver there is no library for a moment
			break
		}
		if _, ret := d.in(v); ret != nvml.SUCCESS {
			return nvml.EventData{}, nil, ret
		}
	}
	return nvml.EventData{}, s.watch, nvml.ERROR_TIMEOUT
}

// data is the event as NVML returns it, with the handle that was registered.
func (s *eventSet) data(e node.Event) nvml.EventData {
	out := nvml.EventData{Device: s.devices[e.GPU], EventType: uint64(e.Type), EventData: e.XID,
		GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
	if e.Instance != nil {
		out.GpuInstanceId, out.ComputeInstanceId = uint32(e.Instance.GPU), uint32(e.Instance.Compute)
	}
	return out
}

// sleep waits for a change of the node, for Free or for that time. A set without GPUs has nothing to watch.
func (s *eventSet) sleep(watch *node.Watch, most time.Duration) {
	if watch != nil {
		watch.Wait(most)
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.done:
	}
}

// Free frees the set. It may be called again.
func (s *eventSet) Free() nvml.Return {
	s.free()
	return nvml.SUCCESS
}
