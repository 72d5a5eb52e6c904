// SPDX-License-Identifier: Apache-2.0

package fit_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// BenchmarkPartitionsOnDemand is what Kubernetes' allocator needs for one GPU on a node of eight H100, with all
// possible partitions published, as they are needed, and without: while 2,000 shares on other nodes hold GPUs, and on a
// node whose GPUs are all held as a whole. Rows of one run are to be compared.
func BenchmarkPartitionsOnDemand(b *testing.B) {
	classes := allocator.ClassesOf(clustertest.Classes(b))
	devices := simtest.Discover(b, "dgx-h100")
	share := func(pool, device, id string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(id)}}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: clustertest.Driver, Pool: pool,
				Device: device, ShareID: ptr.To(types.UID(id))}}}}
		return c
	}
	for _, full := range []bool{false, true} {
		for _, mode := range []gpu.Partitions{gpu.PartitionsDynamic, gpu.PartitionsOnDemand, gpu.PartitionsNone} {
			inv := inventory.Unclaimed(devices, func(gpu.Device) gpu.SharingMode {
				return gpu.SharingMode{Partitions: mode}
			})
			if full && mode == gpu.PartitionsOnDemand {
				inv = inv.Only(nil)
			}
			slices := inventory.Slices(clustertest.Driver, "node", inv.Pools("node"))
			for i, s := range slices {
				s.Name = fmt.Sprint(i)
			}
			var held []*resourceapi.ResourceClaim
			for i := range 2000 {
				held = append(held, share(fmt.Sprint("node-", i/8), inv[i%8].Name, fmt.Sprint(i)))
			}
			if full {
				for i := range 8 {
					c := share("node", inv[i].Name, fmt.Sprint("own-", i))
					all := slices[0].Spec.Devices[i].Capacity["memory"].Value
					c.Status.Allocation.Devices.Results[0].ConsumedCapacity =
						map[resourceapi.QualifiedName]resource.Quantity{"memory": all}
					held = append(held, c)
				}
			}
			state := allocator.HeldBy(held, nil)
			claim := clustertest.Claim(b, "requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com}}]")
			compiled := allocator.NewCache(20)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
			b.Run(fmt.Sprintf("%s/full=%t", mode, full), func(b *testing.B) {
				for b.Loop() {
					got, err := classes.Place(b.Context(), compiled, node, slices, state, claim)
					if err != nil || len(got) > 0 == full {
						b.Fatal(got, err)
					}
				}
			})
		}
	}
}
