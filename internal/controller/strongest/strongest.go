// SPDX-License-Identifier: Apache-2.0

// Package strongest expands a request for the strongest free GPU into an ordered list of subrequests. The scheduler
// takes the first one that fits on a node, and prefers nodes where an earlier one fits.
package strongest

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Expander expands requests of one class.
type Expander struct {
	View *cluster.View
	// Class is the class whose requests are expanded.
	Class string
	// Ranks is the maximum number of ranks in a list, 2 to 8. With few ranks, the score of one rank outweighs the
	// scheduler's other scores. Many ranks suit a scheduler profile with few other scores.
	Ranks int
}

// maxAlternatives is the maximum number of subrequests, and so of positions.
const maxAlternatives = resourceapi.FirstAvailableDeviceRequestMaxSize

// positions are the positions of the ranks in the list, by number of ranks. The scheduler scores a node 8 for the first
// position down to 1 for the last, and normalizes by the best node. So the ratio of neighboring scores counts. These
// positions make the smallest ratio as large as possible.
var positions = [maxAlternatives + 1][]int{
	2: {0, 7},
	3: {0, 5, 7},
	4: {0, 4, 6, 7},
	5: {0, 3, 5, 6, 7},
	6: {0, 2, 4, 5, 6, 7},
	7: {0, 2, 3, 4, 5, 6, 7},
	8: {0, 1, 2, 3, 4, 5, 6, 7},
}

// maxCombinations limits the combinations of ranks of all requests of one claim. The scheduler may try all of them on a
// node before it finds that the claim does not fit.
const maxCombinations = 64

// Expand replaces every request for the class by a ranked list, in the spec of a new claim. A request with nothing to
// rank stays as it is, and gets any whole GPU.
func (e Expander) Expand(ctx context.Context, spec *resourceapi.ResourceClaimSpec) (changed bool) {
	var indexes []int
	for i, r := range spec.Devices.Requests {
		if r.Exactly != nil && e.rankable(*r.Exactly) {
			indexes = append(indexes, i)
		}
	}
	most := e.Ranks
	for most > 1 && power(most, len(indexes)) > maxCombinations {
		most--
	}
	if len(indexes) == 0 || most < 2 {
		return false
	}
	for _, i := range indexes {
		request, asked := &spec.Devices.Requests[i], cluster.Requests(spec)[i][0]
		tiers := e.tiers(ctx, asked)
		if len(tiers) > most {
			e.findFree(tiers, asked)
		}
		ranks := rank(tiers, most)
		if len(ranks) < 2 {
			continue
		}
		request.FirstAvailable = e.list(*request.Exactly, ranks)
		request.Exactly = nil
		changed = true
	}
	return changed
}

// Asked reports whether a request of the spec can be ranked and is not.
func (e Expander) Asked(spec *resourceapi.ResourceClaimSpec) bool {
	return slices.ContainsFunc(spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && e.rankable(*r.Exactly)
	})
}

// rankable reports whether the request can be ranked. It must not ask for all GPUs of a node, and must have room for
// one more selector.
func (e Expander) rankable(r resourceapi.ExactDeviceRequest) bool {
	return r.DeviceClassName == e.Class && !ptr.Deref(r.AdminAccess, false) &&
		r.AllocationMode != resourceapi.DeviceAllocationModeAll &&
		len(r.Selectors) < resourceapi.DeviceSelectorsMaxSize
}

// Unranked returns a warning for each subrequest that names the class: only whole requests are ranked. root is the path
// of the spec, as the user wrote it.
func (e Expander) Unranked(spec *resourceapi.ResourceClaimSpec, root *field.Path) []string {
	var all []string
	for _, s := range cluster.Subrequests(spec) {
		if s.Alternative >= 0 && *s.Class == e.Class {
			all = append(all, fmt.Sprintf("%s: %s stands for any whole GPU in a list: ranked is a request that names "+
				"it under exactly", root.Child("devices", "requests").Index(s.Request).Child("firstAvailable").Index(
				s.Alternative).Child("deviceClassName"), e.Class))
		}
	}
	return all
}

// Collapse returns the spec as the user wrote it, with requests instead of the lists that Expand has made of them. So
// one mistake is one problem, at a path that the user knows.
func (e Expander) Collapse(spec *resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimSpec {
	ranked := func(r resourceapi.DeviceRequest) bool { return e.Ranked(r.FirstAvailable) }
	if !slices.ContainsFunc(spec.Devices.Requests, ranked) {
		return spec
	}
	collapsed := *spec
	collapsed.Devices.Requests = slices.Clone(spec.Devices.Requests)
	for i, r := range collapsed.Devices.Requests {
		if !ranked(r) {
			continue
		}
		last := r.FirstAvailable[len(r.FirstAvailable)-1]
		collapsed.Devices.Requests[i] = resourceapi.DeviceRequest{Name: r.Name,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: last.DeviceClassName, Selectors: last.Selectors,
				AllocationMode: last.AllocationMode, Count: last.Count, Tolerations: last.Tolerations,
				Capacity: last.Capacity, DerivedAttributes: last.DerivedAttributes}}
	}
	return &collapsed
}

// rankName matches the names of the subrequests of ranks.
var rankName = regexp.MustCompile(`^tflops-\d+(-to-\d+)?$`)

// Ranked reports whether Expand has created the list. Its last subrequest is what the request was.
func (e Expander) Ranked(list []resourceapi.DeviceSubRequest) bool {
	if len(list) != maxAlternatives || list[maxAlternatives-1].Name != anyName {
		return false
	}
	for i, s := range list {
		isGap := s.Name == gapName(i) && len(s.Selectors) == 1 && s.Selectors[0].CEL != nil &&
			s.Selectors[0].CEL.Expression == matchNothing
		if s.DeviceClassName != e.Class || i < maxAlternatives-1 && !isGap && !rankName.MatchString(s.Name) {
			return false
		}
	}
	return true
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
	peak  int64 // TFLOP/s
	kinds []*cluster.DeviceKind
	free  bool // at least one of them seems to be free; known after findFree
}

// recent is how long a pending claim counts as about to get the strongest GPU. A claim that is pending longer waits for
// something else.
const recent = 10 * time.Second

// tiers returns the tiers that match the request, the strongest first.
func (e Expander) tiers(ctx context.Context, asked cluster.Subrequest) []tier {
	var all []tier
	for _, kind := range e.View.Accepted(ctx, asked) {
		if kind.Type() != gpu.TypeGPU {
			continue
		}
		i := slices.IndexFunc(all, func(t tier) bool { return t.peak == kind.PeakCompute() })
		if i < 0 {
			i = len(all)
			all = append(all, tier{peak: kind.PeakCompute()})
		}
		all[i].kinds = append(all[i].kinds, kind)
	}
	if ctx.Err() != nil {
		return nil // too late for a webhook response
	}
	slices.SortFunc(all, func(a, b tier) int { return cmp.Compare(b.peak, a.peak) })
	return all
}

// findFree sets free of each tier. It takes earlier claims into account that are about to get a GPU.
func (e Expander) findFree(tiers []tier, asked cluster.Subrequest) {
	ahead := e.View.Waiting(e.Class, time.Now().Add(-recent))
	for i, t := range tiers {
		var n int64
		for _, kind := range t.kinds {
			n += e.View.Available(kind, asked, ahead+1-n)
		}
		tiers[i].free = n > ahead
		ahead -= min(ahead, n)
	}
}

// rank merges tiers into at most that many ranks, the strongest first. It first merges the tiers before the first free
// one, which are unlikely to be allocated, and then the last ones. Of two ranks the first has the first free tier, too:
// otherwise nothing would be ranked while the strongest GPUs are in use.
func rank(tiers []tier, most int) [][]tier {
	var ranks [][]tier
	if len(tiers) <= most {
		for _, t := range tiers {
			ranks = append(ranks, []tier{t})
		}
		return ranks
	}
	first := max(0, slices.IndexFunc(tiers, func(t tier) bool { return t.free }))
	if most == 2 && first > 0 && first+1 < len(tiers) {
		return [][]tier{tiers[:first+1], tiers[first+1:]}
	}
	behind := len(tiers) - first
	// Ranks before the first free tier: what the tiers after it leave, but at least one.
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

// matchNothing is the selector of a subrequest that only fills a position. anyName is the name of the last subrequest,
// which accepts everything.
const (
	matchNothing = "false"
	anyName      = "any"
)

// list returns the request with one subrequest per rank. The last one accepts everything that the request accepts, also
// new models, and several GPUs of different ranks.
func (e Expander) list(r resourceapi.ExactDeviceRequest, ranks [][]tier) []resourceapi.DeviceSubRequest {
	at := positions[len(ranks)]
	var all []resourceapi.DeviceSubRequest
	for i, tiers := range ranks {
		for len(all) < at[i] {
			all = append(all, resourceapi.DeviceSubRequest{Name: gapName(len(all)),
				DeviceClassName: e.Class,
				Selectors:       expression(matchNothing), AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Count: 1})
		}
		sub := resourceapi.DeviceSubRequest{Name: anyName, DeviceClassName: e.Class, Selectors: r.Selectors,
			AllocationMode: r.AllocationMode, Count: r.Count, Tolerations: r.Tolerations, Capacity: r.Capacity,
			DerivedAttributes: r.DerivedAttributes}
		if i < len(ranks)-1 {
			highest, lowest := tiers[0].peak, tiers[len(tiers)-1].peak
			sub.Name = name(highest, lowest)
			sub.Selectors = append(slices.Clone(r.Selectors), expression(e.between(highest, lowest))...)
		}
		all = append(all, sub)
	}
	return all
}

func gapName(position int) string { return fmt.Sprintf("gap-%d", position) }

func name(highest, lowest int64) string {
	if highest == lowest {
		return fmt.Sprintf("tflops-%d", highest)
	}
	return fmt.Sprintf("tflops-%d-to-%d", highest, lowest)
}

// between returns the selector for the GPUs of a rank.
func (e Expander) between(highest, lowest int64) string {
	driver := e.View.Driver()
	// NVIDIA's DRA driver has the same name but not this attribute.
	peak := fmt.Sprintf("device.attributes['%s'].?peakCompute.orValue(0)", driver)
	if highest == lowest {
		return fmt.Sprintf("device.driver == '%s' && %s == %d", driver, peak, highest)
	}
	return fmt.Sprintf("device.driver == '%s' && %s <= %d && %s >= %d", driver, peak, highest, peak, lowest)
}

func expression(text string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: text}}}
}
