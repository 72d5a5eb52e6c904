// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the sweep.
type Metrics struct {
	orphans  *prometheus.GaugeVec
	removed  *prometheus.CounterVec
	failures prometheus.Counter
}

// objectReason holds the labels of a finding.
type objectReason struct{ object, reason string }

// All label values, so that each series exists before its first event.
var (
	findings = []objectReason{
		{"ResourceSlice", Events.NodeGone.Reason}, {"ResourceSlice", Events.PluginGone.Reason},
		{"ResourceSlice", Events.DeletionStuck.Reason},
		{"ResourceClaim", Events.PodGone.Reason}, {"ResourceClaim", Events.ReservationStale.Reason},
		{"ResourceClaim", Events.DeletionStuck.Reason},
	}
	removals = []objectReason{
		{"ResourceSlice", Events.NodeGone.Reason}, {"ResourceSlice", Events.PluginGone.Reason},
		{"ResourceClaim", Events.PodGone.Reason},
	}
)

// NewMetrics creates and registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpu_dra_orphans",
			Help: "Objects that nobody owns any more and that stay, because it is not certain that they may go; " +
				"events of the same reason say which."}, []string{"object", "reason"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpu_dra_orphans_removed_total",
			Help: "Objects that nobody owned any more and that the controller has removed."},
			[]string{"object", "reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "gpu_dra_orphan_sweep_failures_total",
			Help: "Times that the controller could not look for what nobody owns any more, or could not remove it; " +
				"the log says why."}),
	}
	for _, c := range removals {
		m.removed.WithLabelValues(c.object, c.reason)
	}
	m.setRemaining(nil)
	for _, c := range []prometheus.Collector{m.orphans, m.removed, m.failures} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// setRemaining counts the findings that stay.
func (m *Metrics) setRemaining(stays []Finding) {
	count := map[objectReason]float64{}
	for _, s := range stays {
		count[objectReason{s.Object.Kind, s.Event.Reason}]++
	}
	for _, c := range findings {
		m.orphans.WithLabelValues(c.object, c.reason).Set(count[c])
	}
}
