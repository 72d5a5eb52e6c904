// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"math"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// eviction says which pod is to be evicted, when and why.
type eviction struct {
	pod types.NamespacedName
	uid types.UID
	at  time.Time
	why []string // the devices with their taints, sorted
}

// decide returns when the pod of a claim for extended resources is to be evicted from devices of the driver: when the
// first NoExecute taint that the claim does not tolerate was added, or has been tolerated for as long as the claim
// says. The slices are those of the claim's pools. ok is false if the pod stays.
func decide(driver string, claim *resourceapi.ResourceClaim, published []*resourceapi.ResourceSlice,
	rules []*resourceapi.DeviceTaintRule) (e eviction, ok bool) {
	holder := slices.IndexFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
		return r.APIGroup == "" && r.Resource == "pods"
	})
	if !forExtendedResources(claim) || claim.Status.Allocation == nil || holder < 0 {
		return eviction{}, false
	}
	pod := claim.Status.ReservedFor[holder]
	e = eviction{pod: types.NamespacedName{Namespace: claim.Namespace, Name: pod.Name}, uid: pod.UID}
	published = cluster.Current(published)
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != driver {
			continue
		}
		for _, t := range taintsOf(r, published, rules) {
			tolerated, forever := toleratedFor(r.Tolerations, t.DeviceTaint)
			if forever {
				continue
			}
			at := ptr.Deref(t.TimeAdded, claim.CreationTimestamp).Add(tolerated)
			if len(e.why) == 0 || at.Before(e.at) {
				e.at = at
			}
			e.why = append(e.why, fmt.Sprintf("%s/%s has the taint %s%s", r.Pool, r.Device,
				cluster.TaintText(t.DeviceTaint), t.source))
		}
	}
	slices.Sort(e.why)
	e.why = slices.Compact(e.why)
	return e, len(e.why) > 0
}

// forExtendedResources reports whether the scheduler has created the claim for extended resources of a pod.
func forExtendedResources(claim *resourceapi.ResourceClaim) bool {
	_, ok := claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation]
	return ok
}

// taint is a NoExecute taint.
type taint struct {
	resourceapi.DeviceTaint
	source string // for people; empty: the driver
}

// taintsOf returns the NoExecute taints of an allocated device: of its slice, and of the rules that select it, also if
// it is not published.
func taintsOf(r resourceapi.DeviceRequestAllocationResult, published []*resourceapi.ResourceSlice,
	rules []*resourceapi.DeviceTaintRule) (all []taint) {
	for _, s := range published {
		if s.Spec.Driver != r.Driver || s.Spec.Pool.Name != r.Pool {
			continue
		}
		for _, d := range s.Spec.Devices {
			if d.Name != r.Device {
				continue
			}
			for _, t := range d.Taints {
				all = append(all, taint{DeviceTaint: t})
			}
		}
	}
	for _, rule := range rules {
		if cluster.Selects(rule, r.Driver, r.Pool, r.Device) {
			all = append(all, taint{rule.Spec.Taint, " by DeviceTaintRule " + rule.Name})
		}
	}
	return slices.DeleteFunc(all, func(t taint) bool { return !cluster.Evicts(t.DeviceTaint) })
}

// toleratedFor returns how long the taint is tolerated: as long as by the shortest of the tolerations that say so.
// forever means that one of them has no end. As for Kubernetes, only tolerations of the effect NoExecute count.
func toleratedFor(all []resourceapi.DeviceToleration, t resourceapi.DeviceTaint) (least time.Duration, forever bool) {
	seconds := int64(math.MaxInt64)
	for _, toleration := range all {
		if toleration.Effect != t.Effect || !resourceclaim.ToleratesTaint(toleration, t) {
			continue
		}
		if toleration.TolerationSeconds == nil {
			return 0, true
		}
		seconds = min(seconds, max(0, *toleration.TolerationSeconds))
	}
	if seconds == math.MaxInt64 {
		return 0, false // nothing tolerates it
	}
	// What is longer than a duration can be (292 years) is as good as for ever.
	return time.Duration(seconds) * time.Second, seconds > math.MaxInt64/int64(time.Second)
}
