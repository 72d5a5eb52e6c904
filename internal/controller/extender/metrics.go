// SPDX-License-Identifier: Apache-2.0

package extender

import "github.com/prometheus/client_golang/prometheus"

const prefix = "gpu_dra_placement_"

// The values of the label "result" of requests.
const (
	resultScored   = "scored"
	resultNotReady = "not_ready"
	resultInvalid  = "invalid"
)

// The values of the label "outcome" of proposals.
const (
	outcomeTrue      = "true"
	outcomeElsewhere = "elsewhere"
	outcomeExpired   = "expired"
)

// Metrics are the metrics of the extender.
type Metrics struct {
	requests  *prometheus.CounterVec
	duration  prometheus.Histogram
	proposals *prometheus.CounterVec
	idle      *prometheus.GaugeVec
	stranded  *prometheus.GaugeVec
}

// NewMetrics returns metrics that have counted nothing.
func NewMetrics() Metrics {
	m := Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests of a scheduler for scores of nodes, by result: scored; not_ready, while the controller " +
				"still reads the cluster; invalid."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "duration_seconds",
			Help:    "How long it took to score the nodes for one pod, with the wait for a claim that is not read yet.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}}),
		proposals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "proposals_total",
			Help: "Pods for which nodes were scored, by outcome: true if the pod came to the node with the best " +
				"score, elsewhere if it came to another one, expired if it was not seen within seconds."},
			[]string{"outcome"}),
		idle: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "idle_gpus",
			Help: "GPUs that no claim holds and idle parts of the others, in whole GPUs. Each replica of the " +
				"controller that a scheduler has asked exports it: take the maximum."}, []string{"model"}),
		stranded: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "stranded_gpus",
			Help: "Of gpu_dra_placement_idle_gpus, what fits no pod like those of the last 24 hours: too little is " +
				"left of the GPU, or the node has too few such GPUs or too little idle CPU. Each replica knows " +
				"only the pods that it was asked for: take the minimum."}, []string{"model"}),
	}
	for _, result := range []string{resultScored, resultNotReady, resultInvalid} {
		m.requests.WithLabelValues(result)
	}
	for _, outcome := range []string{outcomeTrue, outcomeElsewhere, outcomeExpired} {
		m.proposals.WithLabelValues(outcome)
	}
	return m
}

// All returns the metrics.
func (m Metrics) All() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.duration, m.proposals, m.idle, m.stranded}
}

// SetIdle sets how many GPUs of a model are idle, and how many of these are stranded.
func (m Metrics) SetIdle(model string, idle, stranded float64) {
	m.idle.WithLabelValues(model).Set(idle)
	m.stranded.WithLabelValues(model).Set(stranded)
}
