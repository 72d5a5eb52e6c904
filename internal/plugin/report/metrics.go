// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Prefix is the prefix of the driver's metric names.
const Prefix = "gpu_dra_"

// buckets are in seconds, from less than a durable write to more than the kubelet's timeout.
var buckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 45}

// Metrics are the metrics of the plugin. Names and labels are an API for users.
type Metrics struct {
	Registry *prometheus.Registry

	operations *prometheus.CounterVec   // operation, result
	durations  *prometheus.HistogramVec // operation
	inFlight   *prometheus.GaugeVec     // operation
	steps      *prometheus.HistogramVec // step
	failures   *prometheus.CounterVec   // step
	lockWaits  prometheus.Histogram
	devices    *prometheus.GaugeVec // state

	xids *prometheus.CounterVec // uuid, xid

	pendingChanges pendingChanges
	lastAnswers    lastAnswers
	gpuStates      gpuStates
}

// Lister lists the records of claims.
type Lister interface {
	List() ([]checkpoint.PreparedClaim, error)
}

// NewMetrics returns the metrics of a new plugin.
func NewMetrics(records Lister) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: Prefix + "operations_total",
			Help: "Claims prepared and unprepared."}, []string{"operation", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: Prefix + "operation_duration_seconds",
			Buckets: buckets,
			Help:    "Time to prepare or unprepare one claim, failures included."}, []string{"operation"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: Prefix + "operations_in_flight",
			Help: "Claims being prepared or unprepared at this moment."}, []string{"operation"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: Prefix + "step_duration_seconds",
			Buckets: buckets,
			Help:    "Time of one step of preparing or unpreparing a claim, failures included."}, []string{"step"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: Prefix + "step_failures_total",
			Help: "Steps of preparing or unpreparing a claim that failed."}, []string{"step"}),
		lockWaits: prometheus.NewHistogram(prometheus.HistogramOpts{Name: Prefix + "lock_wait_seconds",
			Buckets: buckets,
			Help:    "Time that a claim waited for other claims on the same devices to be decided."}),
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: Prefix + "devices",
			Help: "Devices of this node; a tainted one is published too."}, []string{"state"}),
		xids: prometheus.NewCounterVec(prometheus.CounterOpts{Name: Prefix + "gpu_xids_total",
			Help: "XIDs that the driver reported of a GPU or of a partition of it."}, []string{"uuid", "xid"}),
	}
	m.Registry.MustRegister(m.operations, m.durations, m.inFlight, m.steps, m.failures, m.lockWaits, m.devices,
		m.xids, &m.pendingChanges, &m.lastAnswers, &m.gpuStates, claimsCollector{records},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.zero()
	return m
}

// formerSteps are the names that some steps had before v0.2. Their series are kept for one version.
var formerSteps = map[string]string{
	steps.EnableMIG:  "divide_gpu",
	steps.DisableMIG: "merge_partitions",
}

// zero initializes every series, so that rates include the first event.
func (m *Metrics) zero() {
	for _, operation := range []string{"prepare", "unprepare"} {
		for _, result := range []string{"success", "error"} {
			m.operations.WithLabelValues(operation, result)
		}
		m.durations.WithLabelValues(operation)
		m.inFlight.WithLabelValues(operation)
	}
	for _, step := range slices.Concat(slices.Collect(maps.Keys(steps.Meanings)),
		slices.Collect(maps.Values(formerSteps))) {
		m.steps.WithLabelValues(step)
		m.failures.WithLabelValues(step)
	}
	for _, state := range []string{"published", "tainted"} {
		m.devices.WithLabelValues(state)
	}
}

// Operation counts and times the preparation or release of one claim. The caller calls done with the error at the end.
func (m *Metrics) Operation(name string) (done func(*error)) {
	m.inFlight.WithLabelValues(name).Inc()
	begin := time.Now()
	return func(err *error) {
		m.inFlight.WithLabelValues(name).Dec()
		m.durations.WithLabelValues(name).Observe(time.Since(begin).Seconds())
		result := "success"
		if *err != nil {
			result = "error"
		}
		m.operations.WithLabelValues(name, result).Inc()
	}
}

// Observe times one step of an operation: see steps.Observer.
func (m *Metrics) Observe(ctx context.Context, name string, do func(context.Context) error) error {
	begin := time.Now()
	err := do(ctx)
	took := time.Since(begin).Seconds()
	if name == steps.LockDevices {
		m.lockWaits.Observe(took)
	}
	if _, known := steps.Meanings[name]; !known {
		return err
	}
	m.observe(name, took, err)
	if former, renamed := formerSteps[name]; renamed {
		m.observe(former, took, err)
	}
	return err
}

func (m *Metrics) observe(step string, seconds float64, err error) {
	m.steps.WithLabelValues(step).Observe(seconds)
	if err != nil {
		m.failures.WithLabelValues(step).Inc()
	}
}

// Published sets the number of published devices.
func (m *Metrics) Published(pools map[string]inventory.Pool) {
	all, tainted := 0, 0
	for _, pool := range pools {
		for _, slice := range pool.Slices {
			all += len(slice.Devices)
			for _, d := range slice.Devices {
				if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
					return t.Effect != resourceapi.DeviceTaintEffectNone
				}) {
					tainted++
				}
			}
		}
	}
	m.devices.WithLabelValues("published").Set(float64(all))
	m.devices.WithLabelValues("tainted").Set(float64(tainted))
}

// claimsCollector counts the records on disk on each scrape.
type claimsCollector struct{ records Lister }

var claimsDesc = prometheus.NewDesc(Prefix+"claims", "Claims on this node, as recorded.", []string{"phase"}, nil)

func (c claimsCollector) Describe(ch chan<- *prometheus.Desc) { ch <- claimsDesc }

func (c claimsCollector) Collect(ch chan<- prometheus.Metric) {
	records, _ := c.records.List() // errors are reported where the records are needed
	count := map[checkpoint.Phase]int{checkpoint.Preparing: 0, checkpoint.Prepared: 0, checkpoint.Releasing: 0}
	for _, rec := range records {
		count[rec.Phase]++
	}
	for phase, n := range count {
		ch <- prometheus.MustNewConstMetric(claimsDesc, prometheus.GaugeValue, float64(n), string(phase))
	}
}

// PendingChange is a new mode of a GPU that waits for claims to end.
type PendingChange struct {
	Device   string
	UUID     gpu.UUID
	From, To gpu.SharingMode
	Claims   []sharing.Claim
}

// pendingChanges counts the claims that mode changes wait for, on each scrape.
type pendingChanges struct {
	mu  sync.Mutex
	now []PendingChange
}

var pendingDesc = prometheus.NewDesc(Prefix+"mode_change_pending_claims",
	"Claims that must end before a GPU is used in the configured way (to) and not as it was before (from); one "+
		"series for each.",
	[]string{"uuid", "from", "to", "namespace", "claim"}, nil)

// PendingChanges sets the mode changes that are pending now.
func (m *Metrics) PendingChanges(now []PendingChange) {
	m.pendingChanges.mu.Lock()
	defer m.pendingChanges.mu.Unlock()
	m.pendingChanges.now = now
}

func (p *pendingChanges) Describe(ch chan<- *prometheus.Desc) { ch <- pendingDesc }

func (p *pendingChanges) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := map[[5]string]int{} // a claim and its replacement may have the same name
	for _, c := range p.now {
		for _, claim := range c.Claims {
			count[[5]string{string(c.UUID), c.From.String(), c.To.String(), claim.Namespace, claim.Name}]++
		}
	}
	for labels, n := range count {
		ch <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(n), labels[:]...)
	}
}

// lastAnswers exports how long ago each GPU answered, on each scrape.
type lastAnswers struct {
	mu       sync.Mutex
	answered map[gpu.UUID]time.Time
}

var lastAnswersDesc = prometheus.NewDesc(Prefix+"gpu_last_answer_age_seconds",
	"Time since the GPU last answered when it was looked at. It is looked at every 10 s.", []string{"uuid"}, nil)

// Answered sets when each GPU last answered.
func (m *Metrics) Answered(answered map[gpu.UUID]time.Time) {
	m.lastAnswers.mu.Lock()
	defer m.lastAnswers.mu.Unlock()
	m.lastAnswers.answered = answered
}

func (l *lastAnswers) Describe(ch chan<- *prometheus.Desc) { ch <- lastAnswersDesc }

func (l *lastAnswers) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, at := range l.answered {
		ch <- prometheus.MustNewConstMetric(lastAnswersDesc, prometheus.GaugeValue, time.Since(at).Seconds(),
			string(id))
	}
}
