// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// BenchmarkPrioritize scores all nodes of a cluster for a pod with a share, with the scheduler's request and the
// answer, while 300 pods of a burst are not seen yet.
func BenchmarkPrioritize(b *testing.B) {
	for _, nodes := range []int{1213, 5000} {
		b.Run(fmt.Sprint(nodes, "nodes"), func(b *testing.B) {
			v := clustertest.New(b)
			clustertest.Fleet(b, v, nodes, 10, gpu.SharingMode{})
			x := newExtender(v, func() error { return nil }, placement.Pack, time.Now)
			x.begin = func() func() bool { return func() bool { return true } }
			w := &world{Extender: x, t: b}
			for i := range nodes {
				name := fmt.Sprintf("%d-%d", i%10, i)
				w.nodes = append(w.nodes, name)
				x.usage.setNode(&nodeSummary{metav1.ObjectMeta{Name: name}, nodeUse{host: host{cpu: 128_000}}})
			}
			claim := clustertest.Claim(b, share5Gi)
			var bodies []string
			for i := range 300 {
				claim := claim.DeepCopy()
				claim.Name = fmt.Sprint("claim-", i)
				v.SetClaim(cluster.SlimClaim(claim))
				bodies = append(bodies, w.request(newPod(fmt.Sprint("pod-", i), 4, claim.Name), w.nodes...))
			}
			i := 0
			for b.Loop() {
				if status, answer := w.call("POST", bodies[i%len(bodies)]); status != 200 {
					b.Fatal(answer)
				}
				i++
			}
		})
	}
}
