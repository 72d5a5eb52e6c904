// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"cmp"
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// savePeriod is the time between two saves of counts. A condition that begins or ends is saved soon.
const savePeriod = 30 * time.Second

// load takes what the previous instance has saved: what was wrong, and the rules that were in force for it.
func (m *Manager) load() {
	s, err := health.Load(m.dir)
	if err != nil {
		klog.Background().Error(err, "Earlier faults of GPUs are forgotten, unless the GPUs still report them")
	}
	rules := map[gpu.UUID]health.Policy{}
	for _, g := range s.GPUs {
		rules[g.UUID] = health.NewPolicy(g.Rules)
	}
	m.state, m.known = s.State, Known{Policies: rules}
}

// merge takes what another instance has saved while it runs, and what it saved last.
func (m *Manager) merge(ctx context.Context, at Moment) {
	shared := m.shared
	m.shared = !at.Alone
	if !shared && !m.shared {
		return
	}
	other, err := health.Load(m.dir)
	if err != nil {
		klog.FromContext(ctx).Error(err, "What the other instance knows of sick GPUs is not known")
		return
	}
	other.Clamp(at.Now)
	if m.state.Merge(other.State) {
		m.taintsChanged()
	}
}

// saveSoon makes the state be saved after SaveDelay.
func (m *Manager) saveSoon() { m.dirty, m.actions.SaveSoon = true, true }

// Save writes the state with what another instance has saved, unless nothing has changed since the last call.
func (m *Manager) Save(ctx context.Context, at Moment) {
	if !m.dirty {
		return
	}
	err := health.Locked(m.dir, func() error {
		m.merge(ctx, at)
		return m.write()
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Health of GPUs not saved, will be tried again")
	} else {
		m.dirty = false
	}
	m.saved = at.Now
}

// write writes the state.
func (m *Manager) write() error {
	saved := health.Saved{State: m.state, Release: m.released}
	for _, d := range m.known.GPUs {
		g := health.SavedGPU{Name: d.Name, UUID: d.UUID, Product: d.Product.Name, Unwatched: m.unwatched(d),
			Rules: map[health.Cause]health.Rule{}}
		for _, c := range m.state.Conditions {
			if c.GPU == d.UUID {
				g.Rules[c.Cause] = m.rule(c)
			}
		}
		saved.GPUs = append(saved.GPUs, g)
	}
	if len(m.known.GPUs) == 0 { // before the first discovery, which may have to wait until NVML is open
		if before, err := health.Load(m.dir); err == nil {
			saved.GPUs = before.GPUs
		}
		for i, g := range saved.GPUs {
			saved.GPUs[i].Unwatched = cmp.Or(m.released, m.unread, g.Unwatched)
		}
	}
	return saved.Save(m.dir)
}
