// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// Claim is a claim for devices of any driver.
type Claim struct {
	types.NamespacedName
	Created time.Time
	Object  *resourceapi.ResourceClaim

	gpus   []*GPU // of which it holds devices
	remote bool   // it holds GPUs over the network
	wants  []want // of a pending claim
}

// want is a request of a pending claim, with the classes that it accepts.
type want struct {
	classes []string
	count   int64 // at most the devices that a claim can get
}

// SetClaim adds or updates a claim, which must not change any more. It also replaces an earlier claim of that name: an
// informer may report a re-created claim as an update.
func (v *View) SetClaim(c *resourceapi.ResourceClaim) {
	claim := &Claim{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
		Created: c.CreationTimestamp.Time, Object: c}
	if c.Status.Allocation == nil {
		claim.wants = wants(c)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(claim.NamespacedName)
	results := Results(c)
	for i := range results {
		r := &results[i]
		claim.remote = claim.remote || v.isRemote(r.Driver)
		if r.Driver != v.driver {
			continue
		}
		g := v.gpu(r.Pool, r.Device)
		g.Held = append(g.Held, Held{claim, r})
		if !slices.Contains(claim.gpus, g) {
			claim.gpus = append(claim.gpus, g)
		}
	}
	v.claims[claim.NamespacedName] = claim
	v.countWaiting(claim, 1)
	for _, g := range claim.gpus {
		v.recount(g)
	}
}

// isRemote reports whether the other driver is that of the driver's GPUs over the network.
func (v *View) isRemote(other string) bool {
	local, ok := remote.Local(other)
	return ok && local == v.driver
}

// DeleteClaim removes a claim.
func (v *View) DeleteClaim(claim types.NamespacedName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(claim)
}

func (v *View) forget(name types.NamespacedName) {
	claim, ok := v.claims[name]
	if !ok {
		return
	}
	delete(v.claims, name)
	v.countWaiting(claim, -1)
	for _, g := range claim.gpus {
		g.Held = slices.DeleteFunc(g.Held, func(h Held) bool { return h.Claim == claim })
		v.recount(g)
		v.dropUnused(g)
	}
}

func wants(c *resourceapi.ResourceClaim) []want {
	var all []want
	for _, alternatives := range Requests(&c.Spec) {
		w := want{count: 1}
		for _, s := range alternatives {
			// The API server accepts any count. A sum of such would disturb everybody's ranking.
			w.classes, w.count = append(w.classes, *s.Class), s.Devices()
		}
		w.classes = slices.Compact(slices.Sorted(slices.Values(w.classes)))
		all = append(all, w)
	}
	return all
}

// countWaiting adds the devices that the claim waits for, or with -1 takes them away. The caller holds v.mu.
func (v *View) countWaiting(c *Claim, times int64) {
	second := c.Created.Unix() // the API server stores whole seconds
	for _, w := range c.wants {
		for _, class := range w.classes {
			seconds := v.waiting[class]
			if seconds == nil {
				seconds = map[int64]int64{}
				v.waiting[class] = seconds
			}
			if seconds[second] += times * w.count; seconds[second] == 0 {
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
		if (waits || len(c.gpus) > 0) && !yield(c, waits) {
			return
		}
	}
}

// waitsForDriver reports whether the claim waits for devices of the driver.
func (v *View) waitsForDriver(c *Claim) bool {
	for _, w := range c.wants {
		for _, class := range w.classes {
			if v.ours[class] {
				return true
			}
		}
	}
	return false
}

// Pending returns the claim if it has no devices yet. held reports whether it has some of the driver, or GPUs over the
// network; known, whether it has been read.
func (v *View) Pending(name types.NamespacedName) (claim *resourceapi.ResourceClaim, held, known bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	c, known := v.claims[name]
	if known && len(c.wants) > 0 {
		claim = c.Object
	}
	return claim, known && (len(c.gpus) > 0 || c.remote), known
}
