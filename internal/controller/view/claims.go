// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Claim holds devices of the driver, or is pending.
type Claim struct {
	types.NamespacedName
	Created time.Time
	// Held are its devices. Empty: the claim is pending.
	Held []Held
	// Wants are the requests of a pending claim.
	Wants []Want
}

// Held is an allocated device.
type Held struct {
	Pool, Device string
	Consumed     map[resourceapi.QualifiedName]int64 // of a device that allows multiple allocations
}

// gpu returns the physical GPU of the device.
func (h Held) gpu() id { return id{h.Pool, gpu.ParentName(h.Device)} }

// Want is a request of a pending claim, with the classes it accepts.
type Want struct {
	Classes []string
	Count   int64 // at most the devices that a claim can get
}

// SetClaim adds or updates a claim. It also replaces an earlier claim of that name: an informer may report a re-created
// claim as an update.
func (v *View) SetClaim(c *resourceapi.ResourceClaim) {
	claim := &Claim{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
		Created: c.CreationTimestamp.Time}
	if c.Status.Allocation == nil {
		claim.Wants = wants(c)
	} else {
		claim.Held = held(c, v.driver)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(claim.NamespacedName)
	if len(claim.Held)+len(claim.Wants) == 0 {
		return
	}
	v.claims[claim.NamespacedName] = claim
	v.countWaiting(claim, 1)
	for _, h := range claim.Held {
		at := h.gpu()
		v.leave(at)
		if v.held[at] == nil {
			v.held[at] = map[*Claim]struct{}{}
		}
		v.held[at][claim] = struct{}{}
		v.enter(at)
	}
}

// DeleteClaim removes a claim.
func (v *View) DeleteClaim(claim types.NamespacedName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(claim)
}

func (v *View) forget(claim types.NamespacedName) {
	before, ok := v.claims[claim]
	if !ok {
		return
	}
	v.countWaiting(before, -1)
	for _, h := range before.Held {
		at := h.gpu()
		v.leave(at)
		if delete(v.held[at], before); len(v.held[at]) == 0 {
			delete(v.held, at)
		}
		v.enter(at)
	}
	delete(v.claims, claim)
}

// held returns the devices of the driver, without those with admin access.
func held(c *resourceapi.ResourceClaim, driver string) []Held {
	var all []Held
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != driver || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		h := Held{Pool: r.Pool, Device: r.Device}
		for name, q := range r.ConsumedCapacity {
			if h.Consumed == nil {
				h.Consumed = map[resourceapi.QualifiedName]int64{}
			}
			h.Consumed[name] = q.Value()
		}
		all = append(all, h)
	}
	return all
}

func wants(c *resourceapi.ResourceClaim) []Want {
	var all []Want
	for _, r := range c.Spec.Devices.Requests {
		w := Want{Count: 1}
		add := func(class string, count int64) {
			// The API server accepts any count. A sum of such would disturb everybody's ranking.
			w.Classes = append(w.Classes, class)
			w.Count = min(max(1, count), resourceapi.AllocationResultsMaxSize)
		}
		if r.Exactly != nil {
			add(r.Exactly.DeviceClassName, r.Exactly.Count)
		}
		for _, sub := range r.FirstAvailable {
			add(sub.DeviceClassName, sub.Count)
		}
		w.Classes = slices.Compact(slices.Sorted(slices.Values(w.Classes)))
		all = append(all, w)
	}
	return all
}

// countWaiting adds the devices that the claim waits for, or with -1 takes them away. The caller holds v.mu.
func (v *View) countWaiting(c *Claim, times int64) {
	second := c.Created.Unix() // the API server stores whole seconds
	for _, w := range c.Wants {
		for _, class := range w.Classes {
			seconds := v.waiting[class]
			if seconds == nil {
				seconds = map[int64]int64{}
				v.waiting[class] = seconds
			}
			if seconds[second] += times * w.Count; seconds[second] == 0 {
				delete(seconds, second)
			}
			if len(seconds) == 0 {
				delete(v.waiting, class)
			}
		}
	}
}

// clockSkew is how far the clock of an API server may be ahead.
const clockSkew = time.Minute

// Waiting returns how many devices of that class are requested by pending claims created after since, which is not long
// ago.
func (v *View) Waiting(class string, since time.Time) (devices int64) {
	first := since.Unix()
	if since.Nanosecond() > 0 {
		first++
	}
	last := time.Now().Add(clockSkew).Unix()
	v.mu.RLock()
	defer v.mu.RUnlock()
	seconds := v.waiting[class]
	for second := first; second <= last; second++ {
		devices += seconds[second]
	}
	return devices
}

// Claims iterates over the claims that hold devices of the driver, and, with waits, over pending claims for a class of
// the driver. The order is random. yield must not call the view.
func (v *View) Claims(yield func(c *Claim, waits bool) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, c := range v.claims {
		waits := v.waitsForDriver(c)
		if (waits || len(c.Held) > 0) && !yield(c, waits) {
			return
		}
	}
}

// waitsForDriver reports whether the claim waits for devices of the driver.
func (v *View) waitsForDriver(c *Claim) bool {
	for _, w := range c.Wants {
		for _, class := range w.Classes {
			if v.ours[class] {
				return true
			}
		}
	}
	return false
}
