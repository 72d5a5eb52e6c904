// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"math/rand/v2"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// large returns that many nodes of the profile, of which the named part of the whole GPUs is held.
func large(b *testing.B, nodes int, n clustertest.SimNode, held float64) *cluster.Snapshot {
	b.Helper()
	var all []clustertest.SimNode
	for i := range nodes {
		n.Name = fmt.Sprintf("node-%04d", i)
		all = append(all, n)
	}
	s := fleet(b, all...)
	setUUIDs(s)
	r := rand.New(rand.NewPCG(1, 0))
	for _, slice := range s.Slices {
		for _, d := range slice.Spec.Devices {
			if ptr.Deref(d.Attributes["type"].StringValue, "") != "gpu" || r.Float64() >= held {
				continue
			}
			c := claim(b, fmt.Sprint("held-", len(s.Claims)), gpus(""))
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver,
					Pool: slice.Spec.Pool.Name, Device: d.Name}}}}
			s.Claims = append(s.Claims, c)
		}
	}
	return s
}

// How long an answer about 1,000 nodes takes, once the cluster has been read.
func BenchmarkWhy(b *testing.B) {
	whole := clustertest.SimNode{Profile: "dgx-h100", Use: exclusive}
	for _, row := range []struct {
		name    string
		node    clustertest.SimNode
		nodes   int
		held    float64
		devices string
	}{
		{"1000 nodes, all GPUs are held", whole, 1000, 1, gpus("")},
		{"1000 nodes, half of the GPUs are held", whole, 1000, 0.5, gpus(", count: 9")},
		{"1000 nodes, no GPU has so much memory", whole, 1000, 0.5,
			ask("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Ti')) >= 0", "")},
		{"600 nodes with all partitions, half of the GPUs are held", clustertest.SimNode{Profile: "dgx-h100"}, 600, 0.5,
			requests("[{name: mig, exactly: {deviceClassName: mig-7g.80gb.nvidia.com, count: 9}}]")},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := large(b, row.nodes, row.node, row.held)
			s.Claims = append(s.Claims, claim(b, "c", row.devices))
			for b.Loop() {
				r, err := Claim(b.Context(), s, "ns", "c")
				if err != nil || r.Outcome != Waits {
					b.Fatal(err, r)
				}
				b.ReportMetric(float64(r.Nodes.Groups), "groups")
				b.ReportMetric(float64(r.Search.Asked), "questions")
			}
		})
	}
}
