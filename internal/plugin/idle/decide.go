// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/usage"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// device is what is known of a device of a claim.
type device struct {
	usage.ClaimUse
	Since time.Time // of the use
	// Told is the condition that the claim has; nil: none.
	Told *report.DeviceCondition `json:",omitempty"`
}

// state is what the watcher knows. It is saved as JSON.
type state struct {
	At      time.Time // of the last measurement
	Devices []device  // sorted as they are measured

	// restarted means that the last conditions may not have been written.
	restarted bool
	// lost means that nothing was saved: claims may have any condition.
	lost bool
}

// change is the conditions of all devices of a claim, some of which are new.
type change struct {
	claim sharing.Claim
	all   []report.DeviceCondition
	isNew bool     // one of them is new
	idle  []string // devices that are idle from now on
}

// key identifies a device of a claim.
type key struct {
	claim   types.UID
	device  string
	shareID types.UID
}

func keyOf(u usage.ClaimUse) key { return key{u.Claim.UID, u.Device, u.ShareID} }

// next returns the state after a measurement, and what to write. After a gap without measurements, nobody knows
// whether a device was used meanwhile.
func (s state) next(now []usage.ClaimUse, at time.Time, after time.Duration) (state, []change) {
	known := map[key]device{}
	for _, d := range s.Devices {
		known[keyOf(d.ClaimUse)] = d
	}
	var changes []change
	next := state{At: at}
	for i := 0; i < len(now); {
		c := change{claim: now[i].Claim}
		for ; i < len(now) && now[i].Claim.UID == c.claim.UID; i++ {
			d := device{ClaimUse: now[i], Since: at}
			before, ok := known[keyOf(now[i])]
			delete(known, keyOf(now[i]))
			// If the clock was ahead, nobody knows how long ago that was. The wall clock counts, as in the file.
			if ok && before.Use == d.Use && at.Sub(s.At).Abs() <= gap && !before.Since.Round(0).After(at.Round(0)) {
				d.Since = before.Since
			}
			if d.Told = before.Told; s.lost {
				d.Told = &report.DeviceCondition{Status: metav1.ConditionTrue}
			}
			c.isNew = c.isNew || s.restarted && d.Told != nil
			if told := d.condition(at, after); told != nil {
				d.Told, c.isNew = told, true
				if told.Status == metav1.ConditionTrue {
					c.idle = append(c.idle, d.Device)
				}
			}
			if d.Told != nil {
				c.all = append(c.all, *d.Told)
			}
			next.Devices = append(next.Devices, d)
		}
		changes = append(changes, c)
	}
	gone := slices.DeleteFunc(slices.Clone(s.Devices), func(d device) bool {
		_, ok := known[keyOf(d.ClaimUse)]
		return !ok
	})
	for _, w := range withdraw(gone, at, "NoContainer", "no container has the device") {
		i := slices.IndexFunc(changes, func(c change) bool { return c.claim == w.claim })
		if i < 0 {
			changes = append(changes, w)
			continue
		}
		changes[i].all, changes[i].isNew = append(changes[i].all, w.all...), true
	}
	return next, slices.DeleteFunc(changes, func(c change) bool { return !c.isNew })
}

// forget makes the use of all devices unknown, in place, and returns the conditions of those that were idle.
func (s state) forget(at time.Time) []change {
	changes := withdraw(s.Devices, at, "NotMeasured", "nobody knows which containers have the claim")
	for i := range s.Devices {
		d := &s.Devices[i]
		d.Use, d.Since = usage.Unknown, at
		for _, c := range changes {
			for _, told := range c.all {
				if c.claim == d.Claim && told.Device == d.Device && told.ShareID == d.ShareID {
					d.Told = &told
				}
			}
		}
	}
	return changes
}

// withdraw returns the conditions of claims with idle devices whose use is not known any more. Those of other devices
// of the claim stay.
func withdraw(all []device, at time.Time, reason, message string) (changes []change) {
	for _, d := range all {
		if d.Told == nil {
			continue
		}
		if n := len(changes); n == 0 || changes[n-1].claim != d.Claim {
			changes = append(changes, change{claim: d.Claim})
		}
		c := &changes[len(changes)-1]
		if d.Told.Status == metav1.ConditionTrue {
			d.Told, c.isNew = d.tell(metav1.ConditionUnknown, reason, message, at), true
		}
		c.all = append(c.all, *d.Told)
	}
	return slices.DeleteFunc(changes, func(c change) bool { return !c.isNew })
}

// condition returns the new condition of the device; nil: it stays as it is.
func (d device) condition(at time.Time, after time.Duration) *report.DeviceCondition {
	var told metav1.ConditionStatus
	if d.Told != nil {
		told = d.Told.Status
	}
	lasts := at.Sub(d.Since) >= after
	switch {
	case d.Use == usage.Used && told != "" && told != metav1.ConditionFalse:
		return d.tell(metav1.ConditionFalse, "InUse", "used again", d.Since)
	case d.Use == usage.Idle && lasts && told != metav1.ConditionTrue:
		return d.tell(metav1.ConditionTrue, "NotUsed", "not used since "+d.Since.UTC().Format(time.RFC3339), d.Since)
	case d.Use == usage.Idle && told == metav1.ConditionTrue && !d.Told.Since.Equal(d.Since):
		return d.tell(metav1.ConditionUnknown, "NotMeasured", "the use was not measured for a while", d.Since)
	case d.Use == usage.Unknown && (told == metav1.ConditionTrue || lasts && told != metav1.ConditionUnknown):
		return d.tell(metav1.ConditionUnknown, "NotMeasured", "NVIDIA's driver does not tell whether processes "+
			"use the device: as of partitions and under MPS, or because the GPU does not answer", d.Since)
	}
	return nil
}

func (d device) tell(status metav1.ConditionStatus, reason, message string,
	since time.Time) *report.DeviceCondition {
	return &report.DeviceCondition{Pool: d.Pool, Device: d.Device, ShareID: d.ShareID, Status: status, Reason: reason,
		Message: message, Since: since}
}
