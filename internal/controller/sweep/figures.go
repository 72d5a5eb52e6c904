// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Figures are the metrics of the sweep.
type Figures struct {
	orphans  *prometheus.GaugeVec
	removed  *prometheus.CounterVec
	failures prometheus.Counter
}

// counted is what an object can be found as.
type counted struct{ object, reason string }

// All that there are, so that a series is there before its first event.
var (
	findings = []counted{
		{"ResourceSlice", Events.NodeGone.Reason}, {"ResourceSlice", Events.PluginGone.Reason}, {"ResourceSlice", Events.DeletionStuck.Reason},
		{"ResourceClaim", Events.PodGone.Reason}, {"ResourceClaim", Events.ReservationStale.Reason}, {"ResourceClaim", Events.DeletionStuck.Reason},
	}
	removals = []counted{
		{"ResourceSlice", Events.NodeGone.Reason}, {"ResourceSlice", Events.PluginGone.Reason}, {"ResourceClaim", Events.PodGone.Reason},
	}
)

// NewFigures registers the metrics.
func NewFigures(registry prometheus.Registerer) (*Figures, error) {
	f := &Figures{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpu_dra_orphans",
			Help: "Objects that nobody owns any more and that stay, because it is not certain that they may go; events of the same reason say which."}, []string{"object", "reason"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpu_dra_orphans_removed_total",
			Help: "Objects that nobody owned any more and that the controller has removed."}, []string{"object", "reason"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "gpu_dra_orphan_sweep_failures_total",
			Help: "Times that the controller could not look for what nobody owns any more, or could not remove it; the log says why."}),
	}
	for _, c := range removals {
		f.removed.WithLabelValues(c.object, c.reason)
	}
	f.left(nil)
	for _, c := range []prometheus.Collector{f.orphans, f.removed, f.failures} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// left tells what stays.
func (f *Figures) left(stays []Finding) {
	count := map[counted]float64{}
	for _, s := range stays {
		count[counted{s.Object.Kind, s.Event.Reason}]++
	}
	for _, c := range findings {
		f.orphans.WithLabelValues(c.object, c.reason).Set(count[c])
	}
}
