// SPDX-License-Identifier: Apache-2.0

// Package clustermetrics has an example of the controller's metrics, for tests of pages and of the chart.
package clustermetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/bill"
	"github.com/gpudra/gpu-dra-driver/internal/controller/extender"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
)

// Example returns a registry with one value of each metric. Labels with arbitrary values are empty.
func Example() *prometheus.Registry {
	const driver = "gpu.nvidia.com"
	v := cluster.New(driver)
	v.SetSlice(&resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver,
		Devices: []resourceapi.Device{{Name: "gpu",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: ptr.To("gpu")}}}}}})
	v.SetClaim(&resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Device: "gpu"}}}}}})
	registry := prometheus.NewRegistry()
	panics := metrics.NewPanics()
	panics.WithLabelValues("")
	refused := metrics.NewRefusedCalls()
	refused.WithLabelValues("")
	quotas := metrics.NewQuotas()
	quotas.WithLabelValues("", "", "memory", "used")
	quotas.WithLabelValues("", "", "memory", "hard")
	remote := metrics.NewRemoteGPUs()
	remote.WithLabelValues("", "", "free")
	remote.WithLabelValues("", "", "allocated")
	remote.WithLabelValues("", "", "lost")
	registry.MustRegister(metrics.Collector{View: v, Active: func() bool { return true }}, metrics.NewUnrankedClaims(),
		metrics.NewEvictedPods(), metrics.NewEvictedIdlePods(), metrics.NewRetries(), metrics.NewPreemptions(),
		metrics.NewPreemptedPods(), panics, refused, quotas, remote)
	told := &bill.Told{Prices: map[string]float64{bill.OtherModels: 1}}
	for _, state := range []string{bill.Used, bill.Idle, bill.Reserved, bill.Sick, bill.Stranded, bill.Free,
		bill.Unknown} {
		told.Totals = append(told.Totals, bill.Row{Key: bill.Key{State: state}})
	}
	for _, state := range []string{bill.Used, bill.Idle, bill.Sick} {
		told.Owners = append(told.Owners, bill.Row{Key: bill.Key{State: state}})
	}
	registry.MustRegister(bill.Collector{Told: func() *bill.Told { return told }})
	placement := extender.NewMetrics()
	placement.SetIdle("", 0, 0)
	registry.MustRegister(placement.All()...)
	return registry
}
