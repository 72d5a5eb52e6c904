// SPDX-License-Identifier: Apache-2.0

package why

import (
	"testing"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

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
