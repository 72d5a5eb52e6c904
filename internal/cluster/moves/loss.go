// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// loss is the work that is lost when pods end: GPUs × the time that the pod has run, and what a restart costs. Its
// unit is a thousandth of a GPU for a second.
type loss int64

const (
	// restartLoss is the cost of a restart, whatever the pod holds: four hours of a GPU. With less, many short pods end
	// in place of a long one; with more, large pods end in place of two small ones.
	restartLoss = loss(4 * cluster.Whole * time.Hour / time.Second)
	// leastGPUs is what a pod counts for that holds no GPU, so that the time that it has run counts.
	leastGPUs = cluster.Whole / 100
)

// lossOf returns what is lost with the pod, which holds so many thousandths of GPUs.
func lossOf(pod *corev1.Pod, gpus int64, now time.Time) loss {
	return restartLoss + loss(max(gpus, leastGPUs)*max(0, int64(now.Sub(waiting.StartOf(pod))/time.Second)))
}

// gpusOf returns how many thousandths of GPUs each pod holds, by memory. Pods that share a claim have equal parts. What
// is published is enough for that: devices that claims hold are.
func gpusOf(s *cluster.Snapshot) map[types.UID]int64 {
	views := map[string]*cluster.View{}
	for _, claim := range s.Claims {
		for _, pool := range schedule.PoolsHeldBy(claim) {
			if views[pool.Driver] == nil {
				views[pool.Driver] = cluster.New(pool.Driver)
			}
		}
	}
	all, current := map[types.UID]int64{}, cluster.Current(s.Slices)
	for _, v := range views {
		for _, slice := range current {
			v.SetSlice(v.SlimSlice(slice))
		}
		for _, claim := range s.Claims {
			v.SetClaim(claim)
		}
		for of, holdings := range v.GPUs {
			for _, h := range holdings {
				users := h.Claim.Object.Status.ReservedFor
				for _, user := range users {
					all[user.UID] += partOf(of, h) / int64(len(users))
				}
			}
		}
	}
	return all
}

// partOf returns how many thousandths of the GPU are held. All of it, if nobody knows, or nothing limits its use.
func partOf(of *cluster.GPU, h cluster.Holding) int64 {
	unlimited := of.Whole != nil && of.Whole.Kind.Sharing() == gpu.Unlimited.String()
	if of.Memory() == 0 || !gpu.IsPart(h.Device) && (unlimited || h.Memory == 0) {
		return cluster.Whole
	}
	return min(cluster.Whole, h.Memory*cluster.Whole/of.Memory())
}
