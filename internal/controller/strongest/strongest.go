// SPDX-License-Identifier: Apache-2.0

// Package strongest turns "the strongest GPU that is free" into what the scheduler understands: an ordered list of alternatives. The
// scheduler takes the first alternative that fits on a node, and prefers nodes where an earlier one does.
package strongest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/controller/view"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Expander writes the lists.
type Expander struct {
	View *view.View
	// Class is the name of the class whose requests are expanded.
	Class string
	// Ranks is how many ranks a list has at most, 2 to 8. The fewer, the more one rank outweighs what else the scheduler looks at; the
	// more, the better for a scheduler that looks at little else.
	Ranks int
}

// alternatives is how many a request can have, and so how many positions there are to choose from
// (resource/v1: FirstAvailableDeviceRequestMaxSize).
const alternatives = resourceapi.FirstAvailableDeviceRequestMaxSize

// positions are where that many ranks sit among the alternatives. The scheduler scores a node 8 for the first position, down to 1 for
// the last, in proportion to the best node that it has: what counts is the ratio between neighbours, so these are the positions with
// which the smallest ratio is as large as it can be.
var positions = [alternatives + 1][]int{
	2: {0, 7},
	3: {0, 5, 7},
	4: {0, 4, 6, 7},
	5: {0, 3, 5, 6, 7},
	6: {0, 2, 4, 5, 6, 7},
	7: {0, 2, 3, 4, 5, 6, 7},
	8: {0, 1, 2, 3, 4, 5, 6, 7},
}

// maxCombinations is how many combinations of ranks the requests of one claim may have: the scheduler may try all of them on a node
// before it knows that the claim does not fit.
const maxCombinations = 64

// Expand replaces, in the spec of a claim that is about to be made, every request for the class by the same request with ranks. One
// that has nothing to rank stays as it is: it asks for any whole GPU.
func (e Expander) Expand(ctx context.Context, spec *resourceapi.ResourceClaimSpec) (changed bool) {
	class, ok := e.View.Class(e.Class)
	if !ok {
		return false
	}
	var mine []int
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil && e.ranks(*r.Exactly) {
			mine = append(mine, i)
		}
	}
	most := e.Ranks
	for most > 1 && power(most, len(mine)) > maxCombinations {
		most--
	}
	if len(mine) == 0 || most < 2 {
		return false
	}
	for _, i := range mine {
		request := &spec.Devices.Requests[i]
		ranks := rank(e.tiers(ctx, *request.Exactly, class), most)
		if len(ranks) < 2 {
			continue
		}
		request.FirstAvailable = e.list(*request.Exactly, ranks)
		request.Exactly = nil
		changed = true
	}
	return changed
}

// ranks says whether the request is one that is ranked. All GPUs of a node are to stay all, and one selector more has to fit in.
func (e Expander) ranks(r resourceapi.ExactDeviceRequest) bool {
	return r.DeviceClassName == e.Class && !ptr.Deref(r.AdminAccess, false) && r.AllocationMode != resourceapi.DeviceAllocationModeAll &&
		len(r.Selectors) < resourceapi.DeviceSelectorsMaxSize
}

// Unranked says which requests of a spec, which is below root, name the class where nothing is ranked: in a list of their own.
func (e Expander) Unranked(spec *resourceapi.ResourceClaimSpec, root *field.Path) []string {
	var all []string
	for i, r := range spec.Devices.Requests {
		if e.made(r.FirstAvailable) {
			continue
		}
		for j, sub := range r.FirstAvailable {
			if sub.DeviceClassName == e.Class {
				all = append(all, fmt.Sprintf("%s: %s stands for any whole GPU in a list: ranked is a request that names it under exactly",
					root.Child("devices", "requests").Index(i).Child("firstAvailable").Index(j).Child("deviceClassName"), e.Class))
			}
		}
	}
	return all
}

// made says whether the list is one of Expand.
func (e Expander) made(list []resourceapi.DeviceSubRequest) bool {
	return len(list) > 1 && list[len(list)-1].Name == last && !slices.ContainsFunc(list, func(s resourceapi.DeviceSubRequest) bool { return s.DeviceClassName != e.Class })
}

func power(base, exponent int) int {
	n := 1
	for range exponent {
		if n *= base; n > maxCombinations {
			return n
		}
	}
	return n
}

// tier is all GPUs of one speed.
type tier struct {
	peak int64 // TFLOP/s
	room bool  // one of them is free, as far as one can tell
}

// recent is how long a claim that waits counts as one that is about to get the strongest GPU: whoever waits longer waits for something
// else.
const recent = 10 * time.Second

// tiers are those that the request can get, the strongest first.
func (e Expander) tiers(ctx context.Context, r resourceapi.ExactDeviceRequest, class *resourceapi.DeviceClass) []tier {
	asked := map[resourceapi.QualifiedName]resource.Quantity{}
	if r.Capacity != nil {
		asked = r.Capacity.Requests
	}
	eligible := map[string]bool{} // by kind
	var all []tier
	for _, kind := range e.View.Kinds() {
		if ctx.Err() != nil {
			return nil // nothing is better than an answer that comes too late
		}
		if kind.Type() != gpu.TypeGPU || !e.accepts(ctx, kind, class.Spec.Selectors) || !e.accepts(ctx, kind, r.Selectors) || !kind.Has(asked) {
			continue
		}
		eligible[kind.ID] = true
		if !slices.ContainsFunc(all, func(t tier) bool { return t.peak == kind.PeakCompute() }) {
			all = append(all, tier{peak: kind.PeakCompute()})
		}
	}
	slices.SortFunc(all, func(a, b tier) int { return cmp.Compare(b.peak, a.peak) })
	if len(all) < 2 {
		return all
	}
	room := e.room(eligible, asked, max(1, r.Count))
	ahead := e.View.Waiting(e.Class, time.Now().Add(-recent))
	for i, t := range all {
		free := room[t.peak]
		all[i].room = free > ahead
		ahead -= min(ahead, free)
	}
	return all
}

// accepts leaves what cannot be said to the scheduler.
func (e Expander) accepts(ctx context.Context, kind *view.Kind, selectors []resourceapi.DeviceSelector) bool {
	return !slices.ContainsFunc(selectors, func(s resourceapi.DeviceSelector) bool {
		ok, err := e.View.Accepts(ctx, kind, s)
		return err == nil && !ok
	})
}

// room is how many devices of each speed, of eligible kinds, are free now for requests that want so many of one node.
func (e Expander) room(eligible map[string]bool, asked map[resourceapi.QualifiedName]resource.Quantity, count int64) map[int64]int64 {
	type place struct {
		node string
		peak int64
	}
	free := map[place]int64{}
	for g := range e.View.GPUs {
		if eligible[g.Kind.ID] && g.Fits(asked) {
			free[place{g.Node, g.Kind.PeakCompute()}]++
		}
	}
	room := map[int64]int64{}
	for at, n := range free {
		room[at.peak] += n / count * count
	}
	return room
}

// rank joins tiers until there are no more than most, the strongest first. Those in front of the first that has room are joined first,
// since nobody is likely to get them; then the last ones.
func rank(tiers []tier, most int) [][]tier {
	var ranks [][]tier
	if len(tiers) <= most {
		for _, t := range tiers {
			ranks = append(ranks, []tier{t})
		}
		return ranks
	}
	first := max(0, slices.IndexFunc(tiers, func(t tier) bool { return t.room }))
	behind := len(tiers) - first
	// As many in front as the ones behind leave, but at least one.
	front := min(first, max(1, most-behind))
	for i := range front {
		end := i + 1
		if i == front-1 {
			end = first
		}
		ranks = append(ranks, tiers[i:end])
	}
	for i := first; len(ranks) < most && i < len(tiers); i++ {
		end := i + 1
		if len(ranks) == most-1 {
			end = len(tiers)
		}
		ranks = append(ranks, tiers[i:end])
	}
	return ranks
}

// never is the selector of an alternative that only takes a position, and last the name of the one that accepts everything.
const (
	never = "false"
	last  = "any"
)

// list is the request with an alternative for each rank. The last accepts whatever the request accepts: also what is new in the
// cluster, and several GPUs that are not of one rank.
func (e Expander) list(r resourceapi.ExactDeviceRequest, ranks [][]tier) []resourceapi.DeviceSubRequest {
	at := positions[len(ranks)]
	var all []resourceapi.DeviceSubRequest
	for i, tiers := range ranks {
		for len(all) < at[i] {
			all = append(all, resourceapi.DeviceSubRequest{Name: fmt.Sprintf("gap-%d", len(all)), DeviceClassName: e.Class,
				Selectors: expression(never), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1})
		}
		sub := resourceapi.DeviceSubRequest{Name: last, DeviceClassName: e.Class, Selectors: r.Selectors,
			AllocationMode: r.AllocationMode, Count: r.Count, Tolerations: r.Tolerations, Capacity: r.Capacity, DerivedAttributes: r.DerivedAttributes}
		if i < len(ranks)-1 {
			highest, lowest := tiers[0].peak, tiers[len(tiers)-1].peak
			sub.Name = name(highest, lowest)
			sub.Selectors = append(slices.Clone(r.Selectors), expression(e.between(highest, lowest))...)
		}
		all = append(all, sub)
	}
	return all
}

func name(highest, lowest int64) string {
	if highest == lowest {
		return fmt.Sprintf("tflops-%d", highest)
	}
	return fmt.Sprintf("tflops-%d-to-%d", highest, lowest)
}

// between is the selector of the GPUs of a rank.
func (e Expander) between(highest, lowest int64) string {
	driver := e.View.Driver()
	// NVIDIA's driver has the same name, and no such attribute.
	peak := fmt.Sprintf("device.attributes['%s'].?peakCompute.orValue(0)", driver)
	if highest == lowest {
		return fmt.Sprintf("device.driver == '%s' && %s == %d", driver, peak, highest)
	}
	return fmt.Sprintf("device.driver == '%s' && %s <= %d && %s >= %d", driver, peak, highest, peak, lowest)
}

func expression(text string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: text}}}
}
