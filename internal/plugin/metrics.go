// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// buckets are in seconds: from below a durable write to beyond what the kubelet waits for.
var buckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 45}

// metrics are what the plugin counts. Names and labels are part of the contract with users.
type metrics struct {
	registry *prometheus.Registry

	operations *prometheus.CounterVec   // operation, result
	durations  *prometheus.HistogramVec // operation
	inFlight   *prometheus.GaugeVec     // operation
	steps      *prometheus.HistogramVec // step
	failures   *prometheus.CounterVec   // step
	lockWaits  prometheus.Histogram
	devices    *prometheus.GaugeVec // state

	pendingChanges *pendingChanges
	figureFailures *prometheus.CounterVec // source
}

// prefix begins the names of the driver's own metrics.
const prefix = "gpu_dra_"

// Steps are what preparing and unpreparing a claim is made of: the values of the label "step", with what each of them does.
var Steps = map[string]string{
	findHolders:      "finds the other claims on the devices",
	findDriverFiles:  "asks NVIDIA's container toolkit what every container with a GPU needs",
	findDeviceFiles:  "asks NVIDIA's container toolkit what a container needs of one GPU",
	writeDriverSpec:  "writes the CDI spec of the driver, when it changed",
	writeClaimSpec:   "writes the CDI spec of the claim",
	writeRecord:      "writes the record of the claim, so that it outlives a power cut",
	configureGPU:     "sets compute mode and time slice of one GPU, or sets them back",
	divideGPU:        "switches the MIG mode of a GPU on, unless it is",
	createPartition:  "makes one partition of a GPU",
	destroyPartition: "removes one partition of a GPU, and MIG mode after the last one",
	mergePartitions:  "makes one GPU whole that may have been partitioned before",
	awaitDaemon:      "waits for an MPS daemon",
	removeClaimSpec:  "removes the CDI spec of the claim",
	deleteRecord:     "deletes the record of the claim",
}

const (
	findHolders      = "find_holders"
	findDriverFiles  = "find_driver_files"
	findDeviceFiles  = "find_device_files"
	writeDriverSpec  = "write_driver_spec"
	writeClaimSpec   = "write_claim_spec"
	writeRecord      = "write_record"
	configureGPU     = "configure_gpu"
	divideGPU        = "divide_gpu"
	createPartition  = "create_partition"
	destroyPartition = "destroy_partition"
	mergePartitions  = "merge_partitions"
	awaitDaemon      = "await_mps_daemon"
	removeClaimSpec  = "remove_claim_spec"
	deleteRecord     = "delete_record"
)

// Metrics are those of a plugin that has just started, and an example of each that has no value then.
func Metrics(records claims.Records) *prometheus.Registry {
	m := newMetrics(records)
	m.pendingChanges.set([]pendingChange{{uuid: "GPU-…", from: gpu.Use{Sharing: gpu.Exclusive}, claims: []sharing.Claim{{Namespace: "ml", Name: "train"}}}})
	m.registry.MustRegister(exampleFigures{})
	return m.registry
}

func newMetrics(records claims.Records) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "operations_total",
			Help: "Claims prepared and unprepared."}, []string{"operation", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "operation_duration_seconds", Buckets: buckets,
			Help: "Time to prepare or unprepare one claim, failures included."}, []string{"operation"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "operations_in_flight",
			Help: "Claims being prepared or unprepared at this moment."}, []string{"operation"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "step_duration_seconds", Buckets: buckets,
			Help: "Time of one step of preparing or unpreparing a claim, failures included."}, []string{"step"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "step_failures_total",
			Help: "Steps of preparing or unpreparing a claim that failed."}, []string{"step"}),
		lockWaits: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "lock_wait_seconds", Buckets: buckets,
			Help: "Time that a claim waited for other claims on the same devices to be decided."}),
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "devices",
			Help: "Devices of this node; a tainted one is published too."}, []string{"state"}),
		pendingChanges: &pendingChanges{},
		figureFailures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "container_metrics_failures_total",
			Help: "Times that figures of containers were missing, by who had not told them: the kubelet, the API server (pods), the records of claims, NVML, the proc file system."},
			[]string{"source"}),
	}
	m.registry.MustRegister(m.operations, m.durations, m.inFlight, m.steps, m.failures, m.lockWaits, m.devices, m.pendingChanges, m.figureFailures,
		claimsCollector{records}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.zero()
	return m
}

// zero makes every metric exist before it is first counted, so that a rate over it begins with the first one.
func (m *metrics) zero() {
	for _, operation := range []string{"prepare", "unprepare"} {
		for _, result := range []string{"success", "error"} {
			m.operations.WithLabelValues(operation, result)
		}
		m.durations.WithLabelValues(operation)
		m.inFlight.WithLabelValues(operation)
	}
	for step := range Steps {
		m.steps.WithLabelValues(step)
		m.failures.WithLabelValues(step)
	}
	for _, state := range []string{"published", "tainted"} {
		m.devices.WithLabelValues(state)
	}
	for _, source := range []string{sourceKubelet, sourceRecords, sourcePods, sourceNVML, sourceProc} {
		m.figureFailures.WithLabelValues(source)
	}
}

// operation counts one claim being prepared or unprepared.
func (m *metrics) operation(name string, do func() error) error {
	m.inFlight.WithLabelValues(name).Inc()
	defer m.inFlight.WithLabelValues(name).Dec()
	begin := time.Now()
	err := do()
	m.durations.WithLabelValues(name).Observe(time.Since(begin).Seconds())
	result := "success"
	if err != nil {
		result = "error"
	}
	m.operations.WithLabelValues(name, result).Inc()
	return err
}

// step counts one step of an operation.
func (m *metrics) step(name string, do func() error) error {
	begin := time.Now()
	err := do()
	m.steps.WithLabelValues(name).Observe(time.Since(begin).Seconds())
	if err != nil {
		m.failures.WithLabelValues(name).Inc()
	}
	return err
}

// published counts what the node publishes.
func (m *metrics) published(pool resourceslice.Pool) {
	all, tainted := 0, 0
	for _, slice := range pool.Slices {
		all += len(slice.Devices)
		for _, d := range slice.Devices {
			if len(d.Taints) > 0 {
				tainted++
			}
		}
	}
	m.devices.WithLabelValues("published").Set(float64(all))
	m.devices.WithLabelValues("tainted").Set(float64(tainted))
}

// claimsCollector counts the records on disk whenever somebody asks.
type claimsCollector struct{ records claims.Records }

var claimsDesc = prometheus.NewDesc("gpu_dra_claims",
	"Claims on this node, as recorded.", []string{"phase"}, nil)

func (c claimsCollector) Describe(ch chan<- *prometheus.Desc) { ch <- claimsDesc }

func (c claimsCollector) Collect(ch chan<- prometheus.Metric) {
	records, _ := c.records.List() // those that cannot be read are reported where they stop something
	count := map[checkpoint.Phase]int{checkpoint.Preparing: 0, checkpoint.Prepared: 0, checkpoint.Releasing: 0}
	for _, rec := range records {
		count[rec.Phase]++
	}
	for phase, n := range count {
		ch <- prometheus.MustNewConstMetric(claimsDesc, prometheus.GaugeValue, float64(n), string(phase))
	}
}

// pendingChanges counts the claims that changes of mode wait for, whenever somebody asks.
type pendingChanges struct {
	mu  sync.Mutex
	now []pendingChange
}

var pendingDesc = prometheus.NewDesc(prefix+"mode_change_pending_claims",
	"Claims that must end before a GPU is used in the configured way (to) and not as it was before (from); one series for each.",
	[]string{"uuid", "from", "to", "namespace", "claim"}, nil)

func (p *pendingChanges) set(now []pendingChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = now
}

func (p *pendingChanges) Describe(ch chan<- *prometheus.Desc) { ch <- pendingDesc }

func (p *pendingChanges) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := map[[5]string]int{} // a claim and its successor may have the same name
	for _, c := range p.now {
		for _, claim := range c.claims {
			count[[5]string{string(c.uuid), c.from.String(), c.to.String(), claim.Namespace, claim.Name}]++
		}
	}
	for labels, n := range count {
		ch <- prometheus.MustNewConstMetric(pendingDesc, prometheus.GaugeValue, float64(n), labels[:]...)
	}
}

// measuredRecords, measuredSpecs and measuredHardware count the steps that they pass on.
type measuredRecords struct {
	claims.Records
	*metrics
}

func (r measuredRecords) Lock(ctx context.Context, devices []string) (unlock func(), err error) {
	begin := time.Now()
	unlock, err = r.Records.Lock(ctx, devices)
	r.lockWaits.Observe(time.Since(begin).Seconds())
	return unlock, err
}

func (r measuredRecords) Holders(devices []string, except types.UID) (found []sharing.Holder, err error) {
	err = r.step(findHolders, func() error { found, err = r.Records.Holders(devices, except); return err })
	return found, err
}

func (r measuredRecords) Put(rec checkpoint.Record) error {
	return r.step(writeRecord, func() error { return r.Records.Put(rec) })
}

func (r measuredRecords) Delete(rec checkpoint.Record) error {
	return r.step(deleteRecord, func() error { return r.Records.Delete(rec) })
}

type measuredSpecs struct {
	claims.Specs
	*metrics
}

func (s measuredSpecs) WriteDriver(common gpu.Access) (name string, err error) {
	err = s.step(writeDriverSpec, func() error { name, err = s.Specs.WriteDriver(common); return err })
	return name, err
}

func (s measuredSpecs) WriteClaim(claim types.UID, devices []cdi.Device) (names []string, err error) {
	err = s.step(writeClaimSpec, func() error { names, err = s.Specs.WriteClaim(claim, devices); return err })
	return names, err
}

func (s measuredSpecs) RemoveClaim(claim types.UID) error {
	return s.step(removeClaimSpec, func() error { return s.Specs.RemoveClaim(claim) })
}

type measuredHardware struct {
	claims.Hardware
	*metrics
	busy *busyGPUs
}

func (h measuredHardware) DriverAccess() (a gpu.Access, err error) {
	err = h.step(findDriverFiles, func() error { a, err = h.Hardware.DriverAccess(); return err })
	return a, err
}

func (h measuredHardware) Access(d gpu.Device) (a gpu.Access, err error) {
	err = h.step(findDeviceFiles, func() error { a, err = h.Hardware.Access(d); return err })
	return a, err
}

func (h measuredHardware) Configure(ctx context.Context, id gpu.UUID, settings, before gpu.Settings) error {
	return h.step(configureGPU, func() error { return h.Hardware.Configure(ctx, id, settings, before) })
}

func (h measuredHardware) Divide(ctx context.Context, id gpu.UUID) error {
	err := h.step(divideGPU, func() error { return h.Hardware.Divide(ctx, id) })
	h.busy.note(id, err)
	return err
}

func (h measuredHardware) Create(ctx context.Context, at gpu.Placement, was gpu.UUID) (id gpu.UUID, err error) {
	err = h.step(createPartition, func() error { id, err = h.Hardware.Create(ctx, at, was); return err })
	return id, err
}

func (h measuredHardware) Destroy(ctx context.Context, at gpu.Placement, was gpu.UUID) error {
	return h.step(destroyPartition, func() error { return h.Hardware.Destroy(ctx, at, was) })
}

func (h measuredHardware) Merge(ctx context.Context, id gpu.UUID) error {
	err := h.step(mergePartitions, func() error { return h.Hardware.Merge(ctx, id) })
	h.busy.note(id, err)
	return err
}

type measuredDaemons struct {
	claims.Daemons
	*metrics
}

func (d measuredDaemons) Await(ctx context.Context, id string, atMost time.Duration) error {
	return d.step(awaitDaemon, func() error { return d.Daemons.Await(ctx, id, atMost) })
}
