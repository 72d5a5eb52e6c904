// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// savePeriod is the time between two saves of counts. A condition that begins or ends is saved soon.
const savePeriod = 30 * time.Second

func (m *Manager) load() health.State {
	s, err := health.Load(m.Dir)
	if err != nil {
		klog.Background().Error(err, "Earlier faults of GPUs are forgotten, unless the GPUs still report them")
	}
	return s.State
}

// saveSoon makes Run save the state. m.mu is held.
func (m *Manager) saveSoon() {
	m.dirty, m.saved = true, time.Time{}
	select {
	case m.due <- struct{}{}:
	default: // it is about to
	}
}

// isDue reports whether the state is to be saved. m.mu is held.
func (m *Manager) isDue(now time.Time) bool { return m.dirty && now.Sub(m.saved) >= savePeriod }

// save writes the state. m.mu is held.
func (m *Manager) save(ctx context.Context, now time.Time) {
	saved := health.Saved{State: m.state, LetGo: m.letGo}
	for _, d := range m.look.GPUs {
		g := health.SavedGPU{Name: d.Name, UUID: d.UUID, Product: d.Product.Name, Unwatched: m.unwatched(d),
			Rules: map[health.Cause]health.Rule{}}
		for _, c := range m.state.Conditions {
			if c.GPU == d.UUID {
				g.Rules[c.Cause] = m.look.Policies(d.UUID).For(c.Cause)
			}
		}
		saved.GPUs = append(saved.GPUs, g)
	}
	if len(m.look.GPUs) == 0 { // before the first discovery, which may have to wait until NVML is open
		if before, err := health.Load(m.Dir); err == nil {
			saved.GPUs = before.GPUs
		}
	}
	if err := saved.Save(m.Dir); err != nil {
		klog.FromContext(ctx).Error(err, "Health of GPUs not saved, will be tried again")
	} else {
		m.dirty = false
	}
	m.saved = now
}
