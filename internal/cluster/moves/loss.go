// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// loss is the work that is lost when pods end: GPUs × the time that the pod has run, and what a restart costs. Its unit
// is a thousandth of a GPU for a second.
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

// gpusOf returns how many thousandths of GPUs each pod holds, by memory. Pods that share a claim have equal parts.
func gpusOf(s *cluster.Snapshot) map[types.UID]int64 {
	held, views := map[allocator.DeviceID]bool{}, map[string]*cluster.View{}
	for _, claim := range s.Claims {
		for _, r := range cluster.Results(claim) {
			held[allocator.NameOf(r.Driver, r.Pool, r.Device)] = true
			if views[r.Driver] == nil {
				views[r.Driver] = cluster.New(r.Driver)
			}
			views[r.Driver].SetClaim(claim)
		}
	}
	for _, slice := range cluster.Current(s.Slices) {
		v := views[slice.Spec.Driver]
		if v == nil {
			continue
		}
		few := *slice // possible partitions are most of the devices
		few.Spec.Devices = slices.DeleteFunc(slices.Clone(slice.Spec.Devices), func(d resourceapi.Device) bool {
			return gpu.IsPart(d.Name) && len(d.ConsumesCounters) > 0 &&
				!held[allocator.NameOf(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)]
		})
		v.SetSlice(&few)
	}
	all := map[types.UID]int64{}
	for _, v := range views {
		for of, holdings := range v.GPUs {
			for _, h := range holdings {
				users := h.Claim.Object.Status.ReservedFor
				for _, user := range users {
					all[user.UID] += h.Memory * cluster.Whole / max(1, of.Memory()) / int64(len(users))
				}
			}
		}
	}
	return all
}
