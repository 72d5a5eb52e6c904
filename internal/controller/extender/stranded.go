// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// shapesLifetime is how long a shape counts as requested after it was seen.
const shapesLifetime = 24 * time.Hour

// stranded computes at each scrape how many GPUs are idle and cannot be used. It exports nothing until a scheduler has
// asked for a pod with GPUs.
type stranded struct{ *Extender }

// Describe implements prometheus.Collector.
func (s stranded) Describe(ch chan<- *prometheus.Desc) {
	s.metrics.idle.Describe(ch)
	s.metrics.stranded.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s stranded) Collect(ch chan<- prometheus.Metric) {
	// A panic here would end the program at the next scrape.
	_ = guard.Do("collect metrics of placement", func() error {
		s.scraping.Lock()
		defer s.scraping.Unlock()
		s.metrics.idle.Reset()
		s.metrics.stranded.Reset()
		for model, of := range s.byModel() {
			s.metrics.SetIdle(model, float64(of.idle)/placement.Whole, float64(of.stranded)/placement.Whole)
		}
		s.metrics.idle.Collect(ch)
		s.metrics.stranded.Collect(ch)
		return nil
	})
}

// amounts are in thousandths of a GPU.
type amounts struct{ idle, stranded int64 }

func (s stranded) byModel() map[string]amounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	shapes := s.usage.shapes.Since(s.usage.now().Add(-shapesLifetime))
	if len(shapes) == 0 {
		return nil
	}
	all := map[string]amounts{}
	names := slices.Collect(maps.Keys(s.usage.nodes))
	s.view.Nodes(names, func(i int, devices *cluster.NodeDevices) {
		s.scratch.reset(devices, nil, nil)
		idle := s.usage.nodes[names[i]].host.minus(s.usage.used[names[i]])
		n := placement.Node{CPU: idle.cpu, Memory: idle.memory, GPUs: s.scratch.gpus}
		for g, amount := range placement.Stranded(n, shapes) {
			of := all[n.GPUs[g].Model]
			of.idle += n.GPUs[g].Idle
			of.stranded += amount
			all[n.GPUs[g].Model] = of
		}
	})
	return all
}
