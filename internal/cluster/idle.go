// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// DeviceIdleSince returns since when no pod has used the allocated device; nil: it is used, or nobody knows.
func DeviceIdleSince(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *metav1.Time {
	d := DeviceStatus(claim, r)
	if d == nil {
		return nil
	}
	idle := meta.FindStatusCondition(d.Conditions, gpu.IdleCondition)
	if idle == nil || idle.Status != metav1.ConditionTrue {
		return nil
	}
	return &idle.LastTransitionTime
}

// Idle is a claim with devices of the driver, none of which is used, and without GPUs over the network: nobody measures
// their use. Devices of other drivers, such as NICs, do not count.
type Idle struct {
	Claim *resourceapi.ResourceClaim
	Since time.Time // of the last one
}

// IdleClaims returns the claims that are idle, in no order. It leaves out claims with a device of the driver that is
// not published: the plugin of its node does not run, and what it wrote may be wrong by now.
func (v *View) IdleClaims() (all []Idle) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, c := range v.claims {
		if since, ok := v.idleSince(c.Object); ok {
			all = append(all, Idle{c.Object, since})
		}
	}
	return all
}

// IdleSince returns since when none of the claim's devices of the driver is used, as in IdleClaims. ok is false if one
// is, or if nobody knows. The claim need not be that of the view.
func (v *View) IdleSince(c *resourceapi.ResourceClaim) (last time.Time, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.idleSince(c)
}

func (v *View) idleSince(c *resourceapi.ResourceClaim) (last time.Time, ok bool) {
	if len(c.Status.Devices) == 0 {
		return last, false
	}
	for _, r := range Results(c) {
		if v.isRemote(r.Driver) {
			return last, false
		}
		if r.Driver != v.driver {
			continue
		}
		since := DeviceIdleSince(c, &r)
		if g := v.gpus[gpuID{r.Pool, gpu.ParentName(r.Device)}]; since == nil || g == nil || g.unpublished() {
			return last, false
		}
		if ok = true; since.After(last) {
			last = since.Time
		}
	}
	return last, ok
}
