// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// FuzzView follows objects that are no valid ones: nothing panics, also when the metrics are read.
func FuzzView(f *testing.F) {
	for _, text := range []string{`{}`, `{"slice":{"spec":{"driver":"gpu.nvidia.com","devices":[{},{"name":"gpu-3b-00-0"},` +
		`{"name":"gpu-3b-00-0-mig-1g10gb-0","attributes":{"type":{"string":"mig"}}}]}}}`,
		`{"claim":{"spec":{"devices":{"requests":[{},{"exactly":{"count":9223372036854775807}}]}}}}`,
		`{"claim":{"status":{"allocation":{"devices":{"results":[{"driver":"gpu.nvidia.com","device":"gpu-3b-00-0",` +
			`"consumedCapacity":{"shares":"9e18","memory":"-1"}}]}}}},"slice":{"spec":{"driver":"gpu.nvidia.com",` +
			`"devices":[{"name":"gpu-3b-00-0","attributes":{"type":{"string":"gpu"}},"capacity":{"shares":{"value":"1"}},` +
			`"allowMultipleAllocations":true}]}}}`,
		`{"rule":{"spec":{"deviceSelector":{"driver":"gpu.nvidia.com"},"taint":{"effect":"NoSchedule"}}}}`,
		`{"class":{"spec":{"selectors":[{},{"cel":{"expression":"device.driver == 'gpu.nvidia.com'"}}]}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var all struct {
			Slice resourceapi.ResourceSlice
			Claim resourceapi.ResourceClaim
			Rule  resourceapi.DeviceTaintRule
			Class resourceapi.DeviceClass
		}
		if json.Unmarshal(text, &all) != nil {
			return
		}
		v := cluster.New(clustertest.Driver)
		expander := strongest.Expander{View: v, Class: "gpu.nvidia.com", Ranks: 4}
		for range 2 {
			v.SetClass(&all.Class)
			v.SetSlice(v.SlimSlice(&all.Slice))
			expander.Asked(&all.Claim.Spec)
			v.SetClaim(cluster.SlimClaim(&all.Claim))
			v.SetTaintRule(&all.Rule)
			for range v.GPUs {
			}
			expander.Expand(t.Context(), all.Claim.Spec.DeepCopy())
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(metrics.Collector{View: v, Active: func() bool { return true }})
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
	})
}
