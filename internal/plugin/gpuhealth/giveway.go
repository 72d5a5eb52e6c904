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

// giveWay closes NVML when people or NVIDIA's driver manager want to replace the driver, and stops watching events when
// a GPU can be reset. m.mu is held.
func (m *Manager) giveWay(ctx context.Context, now time.Time) {
	if m.Hardware == nil {
		return
	}
	why := m.paused
	if until := m.closeUntil; now.Before(until) {
		why = health.LetGoAnswer(until)
	}
	if why != m.letGo {
		klog.FromContext(ctx).Info("NVML", "closed", why != "", "why", why)
		if why == "" { // the driver may not be back yet
			m.unread = "NVML is opened again"
		}
		m.letGo = why
		go m.applyLetGo()
		m.taintsChanged()
	}
	m.Hardware.StopWatching(m.awaitingReset(now))
}

// applyLetGo closes or opens NVML as decided last.
func (m *Manager) applyLetGo() {
	m.letting.Lock()
	defer m.letting.Unlock()
	m.mu.Lock()
	why := m.letGo
	m.mu.Unlock()
	m.Hardware.LetGo(why)
	if why == "" {
		m.Discover()
	}
}

// awaitingReset says which GPU can be reset now that no claim holds it; empty: none. m.mu is held.
func (m *Manager) awaitingReset(now time.Time) string {
	why := ""
	for _, d := range m.look.GPUs {
		waits := !d.Lost && m.look.Persistent && !m.look.Held(d.Name) && m.waitsForReset(d)
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
		if rule := m.look.Policies(c.GPU).For(c.Cause); rule.Recovery == health.RecoveryReset &&
			rule.Effect != health.EffectNone {
			return true
		}
	}
	return false
}
