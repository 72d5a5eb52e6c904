// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// How long a plan takes on nodes of eight H100 of which shares hold all GPUs, once the cluster has been read.
func BenchmarkDefrag(b *testing.B) {
	for _, row := range []struct {
		name, share string // of each GPU
		nodes       int
	}{{"1000 nodes, shares of a third", "27Gi", 1000}, {"1000 nodes, shares of two thirds", "54Gi", 1000}} {
		b.Run(row.name, func(b *testing.B) {
			like := fleet(b, clustertest.SimNode{Name: "node-0000", Profile: "dgx-h100", Use: gpu.SharingMode{
				Partitions: gpu.PartitionsNone}})
			s := large(b, row.nodes, clustertest.SimNode{Profile: "dgx-h100", Use: gpu.SharingMode{
				Partitions: gpu.PartitionsNone}}, 0)
			for i := range 8 {
				if !run(b, like, fmt.Sprint("x", i), "ReplicaSet", fmt.Sprintf("node-0000/%d %s", i, row.share)) {
					b.Fatal("no room")
				}
			}
			s.Templates = like.Templates
			for _, n := range s.Nodes {
				for i := range like.Pods {
					p, c := like.Pods[i].DeepCopy(), like.Claims[i].DeepCopy()
					p.Name, p.UID, p.Spec.NodeName = n.Name+p.Name, types.UID(n.Name)+p.UID, n.Name
					c.Name, c.UID = n.Name+c.Name, types.UID(n.Name)+c.UID
					p.Status.ResourceClaimStatuses[0].ResourceClaimName = &c.Name
					c.OwnerReferences[0].UID, c.Status.ReservedFor[0].UID = p.UID, p.UID
					c.Status.Allocation.Devices.Results[0].Pool = n.Name
					s.Pods, s.Claims = append(s.Pods, p), append(s.Claims, c)
				}
			}
			for b.Loop() {
				d, err := Defrag(b.Context(), s, DefragOptions{Drivers: []string{driver}, Timeout: 10 * time.Minute})
				if err != nil || (len(d.Moves) == 1) != (row.share == "27Gi") || d.NotTried != "" {
					b.Fatalf("got %s, %v", planText(s, d), err)
				}
			}
		})
	}
}

// How long a preemption is decided on nodes of eight H100 that pods of lower priority hold, once the cluster has been
// read.
func BenchmarkPreempt(b *testing.B) {
	const nodes = 1000
	for _, row := range []struct {
		name, held, devices string
		each                int // pods per GPU
	}{
		{"1000 nodes, pods with a GPU, for one GPU", "", gpus(""), 1},
		{"1000 nodes, pods with a GPU, for four GPUs", "", gpus(", count: 4"), 1},
		{"1000 nodes, pods with a third of a GPU, for one GPU", "27Gi", gpus(""), 2},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := preemptible(b, nodes, row.held, row.each)
			own := claim(b, "own", row.devices)
			pod := podOn("", "own", 10, "1", 0, own)
			s.Claims, s.Pods = append(s.Claims, own), append(s.Pods, pod)
			b.ReportAllocs()
			for b.Loop() {
				plan, err := Preempt(b.Context(), s, pod, PreemptOptions{Now: now})
				if err != nil || plan == nil {
					b.Fatal(plan, err)
				}
				b.ReportMetric(float64(len(plan.Victims)), "victims")
			}
		})
	}
}

// preemptible returns nodes of eight H100, and so many pods per GPU that hold all of it, or that share of it.
func preemptible(b *testing.B, nodes int, share string, each int) *cluster.Snapshot {
	b.Helper()
	use := exclusive
	if share != "" {
		use = gpu.SharingMode{Partitions: gpu.PartitionsNone}
	}
	like := fleet(b, clustertest.SimNode{Name: "node-0000", Profile: "dgx-h100", Use: use})
	s := large(b, nodes, clustertest.SimNode{Profile: "dgx-h100", Use: use}, 0)
	r := rand.New(rand.NewPCG(1, 0))
	var held []*resourceapi.ResourceClaim
	for i := range 8 * each {
		c := claim(b, fmt.Sprint("x", i), shareOf(cmp.Or(share, "whole")))
		if !holdOn(b, like, "node-0000", wholeGPUs(like, "node-0000")[i/each], c) {
			b.Fatal("no room")
		}
		held = append(held, c)
	}
	for _, n := range s.Nodes {
		for i, c := range held {
			c = c.DeepCopy()
			c.Name, c.UID = n.Name+c.Name, types.UID(n.Name)+c.UID
			c.Status.Allocation.Devices.Results[0].Pool = n.Name
			s.Claims = append(s.Claims, c)
			s.Pods = append(s.Pods, podOn(n.Name, fmt.Sprint(n.Name, "-", i), 0, "1", r.IntN(1e6), c))
		}
	}
	return s
}
