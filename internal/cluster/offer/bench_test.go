// SPDX-License-Identifier: Apache-2.0

package offer

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// BenchmarkAll adds the possible partitions of 100 nodes of eight H100 that publish those of one GPU, with all
// attributes, and with those that tell no GPU from another.
func BenchmarkAll(b *testing.B) {
	gpus := simtest.Discover(b, "dgx-h100")
	for _, identity := range []bool{true, false} {
		var all []*resourceapi.ResourceSlice
		parts := cluster.Parts{}
		for i := range 100 {
			for _, s := range published(fmt.Sprint("node-", i), gpus, false) {
				for j := range s.Spec.Devices {
					d := &s.Spec.Devices[j]
					for name := range d.Attributes {
						if !identity && cluster.IsIdentity(name) {
							delete(d.Attributes, name)
						}
					}
					parts.Share(d)
				}
				all = append(all, s)
			}
		}
		b.Run(fmt.Sprintf("identity=%t", identity), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := All(all, nil); len(got) <= len(all) {
					b.Fatal(len(got), len(all))
				}
			}
		})
	}
}
