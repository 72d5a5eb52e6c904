// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/internal/controller/view"
	"github.com/gpudra/gpu-dra-driver/internal/controller/viewtest"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// busyFleet returns a view of that many nodes with eight GPUs each. Claims hold all GPUs of the strongest third of the
// models, and a thousand claims have just begun to wait for the strongest GPU.
func busyFleet(t testing.TB, nodes, models int, use gpu.Use) *view.View {
	t.Helper()
	v := viewtest.New(t)
	viewtest.Fleet(t, v, nodes, models, use)
	var gpus []view.GPU
	for g := range v.GPUs {
		if g.Kind.PeakCompute() > int64(1000-models/3) {
			gpus = append(gpus, g)
		}
	}
	for i, g := range gpus {
		c := viewtest.Claim(t, "")
		c.Name = fmt.Sprint("holds-", i)
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: viewtest.Driver, Pool: g.Node, Device: g.Name}}}}
		v.SetClaim(view.SlimClaim(c))
	}
	for i := range 1000 {
		c := viewtest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`)
		c.Name, c.CreationTimestamp = fmt.Sprint("waits-", i), metav1.Now()
		v.SetClaim(view.SlimClaim(c))
	}
	return v
}

const asksForStrongest = `metadata: {name: claim, namespace: ns}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, allocationMode: ExactCount, count: 1}}]}}`

// The time that a claim for the strongest GPU costs the controller, in a cluster of 5,000 nodes.
func BenchmarkStrongestClaim(b *testing.B) {
	for _, models := range []int{1, 8, 20} {
		v := busyFleet(b, 5000, models, gpu.Use{})
		expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
		ask := request(b, "ResourceClaim", asksForStrongest)
		b.Run(fmt.Sprintf("rank/models=%d", models), func(b *testing.B) {
			for b.Loop() {
				ranker{expander}.Handle(b.Context(), ask)
			}
		})
		ranked := ask
		ranked.Object.Raw = patched(b, ask.Object.Raw, ranker{expander}.Handle(b.Context(), ask))
		b.Run(fmt.Sprintf("validate/models=%d", models), func(b *testing.B) {
			for b.Loop() {
				validator{admission.Checker{View: v}, expander}.Handle(b.Context(), ranked)
			}
		})
	}
}

// Of 10,000 claims that are created at once in a cluster of 5,000 nodes, all are ranked, while each becomes known.
func TestBurst(t *testing.T) {
	v := busyFleet(t, 5000, 8, gpu.Use{Sharing: gpu.Exclusive})
	handler := ranker{strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}}
	ask := request(t, "ResourceClaim", asksForStrongest)
	var next, unranked, slowest atomic.Int64
	var clients sync.WaitGroup
	for range 100 { // that many calls the API server has under way
		clients.Go(func() {
			for n := next.Add(1); n <= 10000; n = next.Add(1) {
				start := time.Now()
				if len(handler.Handle(t.Context(), ask).Patches) == 0 {
					unranked.Add(1)
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(start))))
				c := viewtest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`)
				c.Name, c.CreationTimestamp = fmt.Sprint("burst-", n), metav1.Now()
				v.SetClaim(view.SlimClaim(c))
			}
		})
	}
	clients.Wait()
	if n := unranked.Load(); n > 0 {
		t.Errorf("%d claims of 10,000 are not ranked, the slowest call took %s", n, time.Duration(slowest.Load()))
	}
}
