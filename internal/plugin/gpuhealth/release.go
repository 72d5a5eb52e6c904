// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// drainTime is how long events are not watched after the last claim of a GPU that waits for a reset has ended.
const drainTime = 15 * time.Minute

// release has NVML closed when people or NVIDIA's driver manager want to replace the driver, and stops the watching of
// events when a GPU can be reset.
func (m *Manager) release(ctx context.Context, now time.Time) {
	why := m.paused
	if until := health.ReleaseRequest(m.dir, now); now.Before(until) {
		why = health.ReleaseAnswer(until)
	}
	if why != m.released {
		klog.FromContext(ctx).Info("NVML", "closed", why != "", "why", why)
		if why == "" { // the driver may not be back yet
			m.unread = "NVML is opened again"
		}
		m.released, m.actions.Release = why, &why
		m.taintsChanged()
	}
	m.actions.StopWatching = m.awaitingReset(now)
}

// awaitingReset says which GPU can be reset now that no claim holds it; empty: none.
func (m *Manager) awaitingReset(now time.Time) string {
	why := ""
	for _, d := range m.known.GPUs {
		silent := d.Lost && !d.Gone // a call that hangs keeps NVML open anyway
		waits := !silent && m.known.Persistent && !m.known.Held[d.UUID] && m.waitsForReset(d)
		since, known := m.drains[d.UUID]
		switch {
		case !waits:
			delete(m.drains, d.UUID)
		case !known:
			m.drains[d.UUID] = now
			fallthrough
		case now.Sub(since) < drainTime:
			why = fmt.Sprintf("%s can be reset, which an open event session would prevent", d.Name)
		}
	}
	return why
}

func (m *Manager) waitsForReset(d gpu.Device) bool {
	for _, c := range m.state.Of(d) {
		if rule := m.rule(c); rule.Recovery == health.RecoveryReset &&
			rule.Effect != health.EffectNone {
			return true
		}
	}
	return false
}
