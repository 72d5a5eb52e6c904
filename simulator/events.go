// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// eventSet is a set of events. No events occur yet.
type eventSet struct {
	mock.EventSet
	free func()
	done <-chan struct{}
}

func newEventSet() *eventSet {
	done := make(chan struct{})
	s := &eventSet{free: sync.OnceFunc(func() { close(done) }), done: done}
	refuse(&s.EventSet)
	return s
}

// Wait waits for the whole time and returns ERROR_TIMEOUT. Free ends it early.
func (s *eventSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	timer := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nvml.EventData{}, nvml.ERROR_TIMEOUT
	case <-s.done:
		return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
	}
}

// Free frees the set. It may be called again.
func (s *eventSet) Free() nvml.Return {
	s.free()
	return nvml.SUCCESS
}
