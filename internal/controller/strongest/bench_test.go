// SPDX-License-Identifier: Apache-2.0

package strongest_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

// busyFleet returns a view of that many nodes with eight GPUs each. Claims hold all GPUs of the strongest third of the
// models, and a thousand claims have just begun to wait for the strongest GPU.
func busyFleet(t testing.TB, nodes, models int, use gpu.SharingMode) *cluster.View {
	t.Helper()
	v := clustertest.New(t)
	clustertest.Fleet(t, v, nodes, models, use)
	var gpus []*cluster.GPU
	for g := range v.GPUs {
		if g.Whole.Kind.PeakCompute() > int64(1000-models/3) {
			gpus = append(gpus, g)
		}
	}
	for i, g := range gpus {
		c := clustertest.Claim(t, "")
		c.Name = fmt.Sprint("holds-", i)
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: clustertest.Driver, Pool: g.Node, Device: g.Name}}}}
		v.SetClaim(cluster.SlimClaim(c))
	}
	for i := range 1000 {
		c := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`)
		c.Name, c.CreationTimestamp = fmt.Sprint("waits-", i), metav1.Now()
		v.SetClaim(cluster.SlimClaim(c))
	}
	return v
}

const asksForStrongest = `metadata: {name: claim, namespace: ns}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, allocationMode: ExactCount, count: 1}}]}}`

// The time that a claim for the strongest GPU costs the controller, in a cluster of 5,000 nodes.
func BenchmarkStrongestClaim(b *testing.B) {
	for _, models := range []int{1, 8, 20} {
		v := busyFleet(b, 5000, models, gpu.SharingMode{})
		expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
		ask := webhooktest.Request(b, "ResourceClaim", asksForStrongest)
		b.Run(fmt.Sprintf("rank/models=%d", models), func(b *testing.B) {
			for b.Loop() {
				expander.Handle(b.Context(), ask)
			}
		})
		ranked := ask
		ranked.Object.Raw = webhooktest.Patched(b, ask.Object.Raw, expander.Handle(b.Context(), ask))
		b.Run(fmt.Sprintf("validate/models=%d", models), func(b *testing.B) {
			for b.Loop() {
				admission.Validator{Checker: admission.Checker{View: v}, Expander: expander}.Handle(b.Context(), ranked)
			}
		})
	}
}

// Of 10,000 claims that are created at once in a cluster of 5,000 nodes, all are ranked, while each becomes known. What
// counts is the time of a processor, because a machine with other load gives each call less of one: a hundred calls at
// a time have to share one processor and still be in time.
func TestBurst(t *testing.T) {
	const underWay, all = 100, 10000 // that many calls the API server has under way
	v := busyFleet(t, 5000, 8, gpu.SharingMode{Sharing: gpu.Exclusive})
	handler := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	ask := webhooktest.Request(t, "ResourceClaim", asksForStrongest)
	var next atomic.Int64
	var clients sync.WaitGroup
	before := processorTime(t)
	for range underWay {
		clients.Go(func() {
			for n := next.Add(1); n <= all; n = next.Add(1) {
				got := handler.Handle(t.Context(), ask)
				if len(got.Patches) == 0 {
					t.Errorf("a claim is not ranked: %+v", got)
				}
				c := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`)
				c.Name, c.CreationTimestamp = fmt.Sprint("burst-", n), metav1.Now()
				v.SetClaim(cluster.SlimClaim(c))
			}
		})
	}
	clients.Wait()
	each := (processorTime(t) - before) / all
	t.Logf("a claim takes %s of a processor", each)
	const timeout = 800 * time.Millisecond // with the chart's default
	if each*underWay > timeout/2 {
		t.Errorf("a claim takes %s of a processor, want less than %s", each, timeout/2/underWay)
	}
}

// processorTime returns the processor time that this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
