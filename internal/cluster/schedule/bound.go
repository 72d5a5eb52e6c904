// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// boundedFrom is the least number of devices for which a bound is computed before the allocator is asked. For fewer,
// the allocator is fast enough.
const boundedFrom = 8

// tooMany reports whether a request, or all requests together, ask for more devices than the group can give. The
// allocator would try every set of devices before it says so. Where it could return an error, tooMany is false.
func (q *Question) tooMany(claims []*resourceapi.ResourceClaim, s *Group, held allocator.Held) bool {
	var all []cluster.Subrequest
	requests := map[*resourceapi.DeviceRequest][]cluster.Subrequest{}
	for _, claim := range claims {
		total := int64(0)
		for _, p := range cluster.Subrequests(&claim.Spec) {
			if p.All() || p.Admin || *p.Capacity != nil || q.ClassByName[*p.Class] == nil {
				return false
			}
			total += min(*p.Count, resourceapi.AllocationResultsMaxSize+1)
			if total > resourceapi.AllocationResultsMaxSize {
				return false // the allocator says so at once; and no sum overflows
			}
			request := &claim.Spec.Devices.Requests[p.Request]
			all, requests[request] = append(all, p), append(requests[request], p)
		}
	}
	wanted := int64(0)
	for _, alternatives := range requests {
		wanted += least(alternatives)
	}
	if wanted < boundedFrom {
		return false
	}
	most, err := q.Most(s, held, all...) // also finds the errors
	found := most < wanted
	for _, alternatives := range requests {
		if found || err != nil {
			break
		}
		most, err = q.Most(s, held, alternatives...)
		found = most < least(alternatives)
	}
	return found && err == nil
}

// least returns how many devices a request with these alternatives needs at least.
func least(alternatives []cluster.Subrequest) int64 {
	n := *alternatives[0].Count
	for _, p := range alternatives {
		n = min(n, *p.Count)
	}
	return n
}

// counterSetID names a counter set.
type counterSetID struct {
	pool cluster.PoolID
	name string
}

// Most returns a bound for the number of devices that the subrequests together get on the group. It counts devices that
// match one and are free, of each counter set as many as its counters suffice for. The error is that of a selector.
func (q *Question) Most(s *Group, held allocator.Held, parts ...cluster.Subrequest) (int64, error) {
	total, left := int64(0), map[counterSetID]quantitiesByName{}
	wants := map[counterSetID][]map[string]resourceapi.Counter{} // what each device takes of its first counter set
	current := cluster.Current(s.Slices)
	for _, slice := range current {
		for _, set := range slice.Spec.SharedCounters {
			left[counterSetID{cluster.PoolOf(slice), set.Name}] = quantitiesByName{}
			for name, c := range set.Counters {
				left[counterSetID{cluster.PoolOf(slice), set.Name}][name] = c.Value.DeepCopy()
			}
		}
	}
	for _, slice := range current {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			some, all := held.Any(allocator.NameOf(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name))
			if some {
				for _, use := range d.ConsumesCounters {
					left[counterSetID{cluster.PoolOf(slice), use.CounterSet}].subtract(use.Counters)
				}
			}
			if q.Context.Err() != nil {
				return 0, ErrLimit
			}
			matching := int64(0)
			for _, p := range parts {
				ok, err := q.Matches(p, slice, d)
				if err != nil {
					return 0, err
				}
				if ok && len(cluster.Untolerated(d.Taints, *p.Tolerations)) == 0 {
					matching++
				}
			}
			switch {
			case matching == 0 || !allocator.Near(s.Node, slice, d) || all:
			case ptr.Deref(d.AllowMultipleAllocations, false):
				total += matching // requests may share the device, and what it takes of counters
			case len(d.ConsumesCounters) == 0:
				total++
			default:
				set := counterSetID{cluster.PoolOf(slice), d.ConsumesCounters[0].CounterSet}
				wants[set] = append(wants[set], d.ConsumesCounters[0].Counters)
			}
		}
	}
	for set, devices := range wants {
		total += left[set].suffice(devices)
	}
	return total, nil
}

// Matches reports whether the device meets the selectors of the subrequest and of its class.
func (q *Question) Matches(p cluster.Subrequest, slice *resourceapi.ResourceSlice,
	d *resourceapi.Device) (bool, error) {
	for _, selector := range slices.Concat(q.ClassByName[*p.Class].Spec.Selectors, *p.Selectors) {
		program := q.compiled.GetOrCompile(expressionOf(selector))
		if ok, err := Meets(q.Context, slice.Spec.Driver, d, program); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// quantitiesByName are what is left of the counters of a set.
type quantitiesByName map[string]resource.Quantity

func (l quantitiesByName) subtract(used map[string]resourceapi.Counter) {
	for name, c := range used {
		if value, ok := l[name]; ok {
			value.Sub(c.Value)
			l[name] = value
		}
	}
}

// suffice returns for how many of the devices each counter suffices, if those come first that need the least of it.
func (l quantitiesByName) suffice(devices []map[string]resourceapi.Counter) int64 {
	most := len(devices)
	for name, value := range l {
		needs := make([]resource.Quantity, len(devices))
		for i, counters := range devices {
			needs[i] = counters[name].Value
		}
		slices.SortFunc(needs, func(a, b resource.Quantity) int { return a.Cmp(b) })
		rest := value.DeepCopy()
		for n, need := range needs[:most] {
			if rest.Sub(need); rest.Sign() < 0 {
				most = n
				break
			}
		}
	}
	return int64(most)
}
