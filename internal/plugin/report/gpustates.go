// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// The states of a GPU in metrics.
const (
	GPUHealthy     = "healthy"
	GPUUnhealthy   = "unhealthy" // new claims avoid it
	GPULost        = "lost"
	GPUUnmonitored = "unmonitored" // nothing is known to be wrong, but its events are not watched
)

// allGPUStates are all states of a GPU.
var allGPUStates = []string{GPUHealthy, GPUUnhealthy, GPULost, GPUUnmonitored}

// GPUState is the state of a GPU.
type GPUState struct {
	Device string
	State  string
	Causes []string // what is wrong, also what keeps no claim away
}

// XID counts an XID of the GPU.
func (m *Metrics) XID(id gpu.UUID, xid uint64) {
	m.xids.WithLabelValues(string(id), strconv.FormatUint(xid, 10)).Inc()
}

// GPUStates sets the states of all GPUs.
func (m *Metrics) GPUStates(now map[gpu.UUID]GPUState) { m.gpuStates.set(time.Now(), now) }

// gpuStates exports the states of GPUs and the time that they spend in each.
type gpuStates struct {
	mu    sync.Mutex
	since time.Time // when the seconds were last added up
	now   map[gpu.UUID]GPUState
	spent map[gpu.UUID]map[string]time.Duration
}

var (
	stateDesc = prometheus.NewDesc(Prefix+"gpu_state",
		"1 for the state that the GPU is in, 0 for the others.", []string{"uuid", "device", "state"}, nil)
	spentDesc = prometheus.NewDesc(Prefix+"gpu_state_seconds_total",
		"Time that the GPU has spent in a state since the plugin started.", []string{"uuid", "device", "state"}, nil)
	conditionDesc = prometheus.NewDesc(Prefix+"gpu_condition",
		"1 for everything that is wrong with the GPU or a partition of it, also for what keeps no claim away.",
		[]string{"uuid", "device", "cause"}, nil)
)

func (g *gpuStates) set(at time.Time, now map[gpu.UUID]GPUState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(at)
	g.now = now
}

// add adds the time since the last call. g.mu is held.
func (g *gpuStates) add(at time.Time) {
	if g.spent == nil {
		g.spent = map[gpu.UUID]map[string]time.Duration{}
	}
	for id, s := range g.now {
		if g.spent[id] == nil {
			g.spent[id] = map[string]time.Duration{}
		}
		g.spent[id][s.State] += at.Sub(g.since)
	}
	g.since = at
}

// Describe implements prometheus.Collector.
func (g *gpuStates) Describe(ch chan<- *prometheus.Desc) {
	ch <- stateDesc
	ch <- spentDesc
	ch <- conditionDesc
}

// Collect implements prometheus.Collector.
func (g *gpuStates) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(time.Now())
	for id, s := range g.now {
		for _, state := range allGPUStates {
			is := 0.0
			if state == s.State {
				is = 1
			}
			ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, is, string(id), s.Device, state)
			ch <- prometheus.MustNewConstMetric(spentDesc, prometheus.CounterValue, g.spent[id][state].Seconds(),
				string(id), s.Device, state)
		}
		causes := map[string]bool{}
		for _, cause := range s.Causes {
			if !causes[cause] { // several partitions may have the same
				ch <- prometheus.MustNewConstMetric(conditionDesc, prometheus.GaugeValue, 1, string(id), s.Device,
					cause)
			}
			causes[cause] = true
		}
	}
}
