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

// Claim is one that holds devices of the driver, or waits for some.
type Claim struct {
	types.NamespacedName
	Made time.Time
	// Held are its devices. Empty: it waits.
	Held []Held
	// Wants are the requests of a claim that waits, with the classes that would do.
	Wants []Want
}

// Held is one device that a claim has.
type Held struct {
	Pool, Device string
	Consumed     map[resourceapi.QualifiedName]int64 // of a device that can be shared
}

// gpu is the physical GPU of the device.
func (h Held) gpu() id { return id{h.Pool, gpu.ParentName(h.Device)} }

// Want is a request of a claim that waits.
type Want struct {
	Classes []string
	Count   int64
}

// SetClaim takes what a claim has or wants now. What another one of that name had is forgotten: who was away while a claim was replaced
// sees it change.
func (v *View) SetClaim(c *resourceapi.ResourceClaim) {
	claim := &Claim{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, Made: c.CreationTimestamp.Time}
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
	for _, h := range claim.Held {
		at := h.gpu()
		if v.held[at] == nil {
			v.held[at] = map[*Claim]struct{}{}
		}
		v.held[at][claim] = struct{}{}
	}
}

// DeleteClaim forgets a claim.
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
	for _, h := range before.Held {
		at := h.gpu()
		if delete(v.held[at], before); len(v.held[at]) == 0 {
			delete(v.held, at)
		}
	}
	delete(v.claims, claim)
}

// held leaves out who only looks after a device.
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
		if r.Exactly != nil {
			w.Classes, w.Count = []string{r.Exactly.DeviceClassName}, max(1, r.Exactly.Count)
		}
		for _, sub := range r.FirstAvailable {
			w.Classes, w.Count = append(w.Classes, sub.DeviceClassName), max(1, sub.Count)
		}
		w.Classes = slices.Compact(slices.Sorted(slices.Values(w.Classes)))
		all = append(all, w)
	}
	return all
}

// Waiting is how many devices of that class are wanted by claims that were made since then and have none.
func (v *View) Waiting(class string, since time.Time) (devices int64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, c := range v.claims {
		if c.Made.Before(since) {
			continue
		}
		for _, w := range c.Wants {
			if slices.Contains(w.Classes, class) {
				devices += w.Count
			}
		}
	}
	return devices
}

// Claims are those that hold devices of the driver, and with waits those that have none and want some of a class of the driver, in no
// order, until yield returns false. It must not ask the view.
func (v *View) Claims(yield func(c *Claim, waits bool) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, c := range v.claims {
		waits := v.wanted(c)
		if (waits || len(c.Held) > 0) && !yield(c, waits) {
			return
		}
	}
}

// wanted says whether the claim waits for devices of the driver.
func (v *View) wanted(c *Claim) bool {
	for _, w := range c.Wants {
		for _, class := range w.Classes {
			if v.ours[class] {
				return true
			}
		}
	}
	return false
}
