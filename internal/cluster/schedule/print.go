// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// print returns a text that is equal for nodes whose devices, and what claims hold of them, differ only in order and in
// attributes of other names. nil: all attributes count.
func (s *Group) print(names map[string]bool) string {
	var b strings.Builder
	pools := map[cluster.PoolID][]*resourceapi.ResourceSlice{}
	for _, slice := range s.Slices {
		if ptr.Deref(slice.Spec.NodeName, "") == s.Node.Name {
			pools[cluster.PoolOf(slice)] = append(pools[cluster.PoolOf(slice)], slice)
			continue
		}
		// A slice of several nodes is the same for all that it matches.
		fmt.Fprintln(&b, slice.Name, allocator.Near(s.Node, slice, nil))
		if ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) {
			fmt.Fprintln(&b, s.Node.Name) // its devices may be of single nodes
		}
	}
	uses := s.uses()
	var texts []string
	for id, of := range pools {
		texts = append(texts, strings.TrimPrefix(id.Pool, s.Node.Name)+" "+poolPrint(id, of, uses, names))
	}
	slices.Sort(texts)
	b.WriteString(strings.Join(texts, "\n"))
	return b.String()
}

// uses returns what claims hold of each device. A claim with a single device of the node has no name; others are
// numbered.
func (s *Group) uses() map[cluster.PoolID]map[string]string {
	uses := map[cluster.PoolID]map[string]string{}
	for number, claim := range s.Holders {
		results := cluster.Results(claim)
		who := "one"
		if len(results) > 1 {
			who = fmt.Sprint(number)
		}
		for _, r := range results {
			id := cluster.PoolOfResult(r)
			if uses[id] == nil {
				uses[id] = map[string]string{}
			}
			text := fmt.Sprintf(" %s %t", who, r.ShareID != nil)
			for _, name := range slices.Sorted(maps.Keys(r.ConsumedCapacity)) {
				amount := r.ConsumedCapacity[name]
				text += fmt.Sprintf(" %s=%s", name, amount.String())
			}
			uses[id][r.Device] += text + ";"
		}
	}
	return uses
}

// poolPrint prints a pool. Devices are sorted by what they are, and so are counter sets with the devices that use them.
func poolPrint(id cluster.PoolID, all []*resourceapi.ResourceSlice, uses map[cluster.PoolID]map[string]string,
	names map[string]bool) string {
	current := cluster.Current(all)
	e := cluster.Encoder{Skip: func(name resourceapi.QualifiedName) bool {
		return names != nil && !names[selectors.Identifier(name)]
	}}
	sets := map[string][]string{} // of each counter set, what it has and the devices that use only it
	for _, slice := range current {
		for _, set := range slice.Spec.SharedCounters {
			sets[set.Name] = append(sets[set.Name], "counters"+countersPrint(set.Counters))
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			set, text := "", devicePrint(&e, d)+uses[id][d.Name]
			switch len(d.ConsumesCounters) {
			case 0:
			case 1:
				set = d.ConsumesCounters[0].CounterSet
				text += countersPrint(d.ConsumesCounters[0].Counters)
			default:
				text += d.Name // it joins counter sets: devices with other names are not compared
				for _, use := range d.ConsumesCounters {
					text += use.CounterSet + countersPrint(use.Counters)
				}
			}
			sets[set] = append(sets[set], text)
		}
	}
	var texts []string
	for name, of := range sets {
		slices.Sort(of)
		if name == "" {
			name = "none"
		} else {
			name = "some"
		}
		texts = append(texts, name+"\n"+strings.Join(of, "\n"))
	}
	slices.Sort(texts)
	sum := sha256.Sum256([]byte(strings.Join(texts, "\n\n")))
	return fmt.Sprintf("%s %d of %d %x", id.Driver, len(current), current[0].Spec.Pool.ResourceSliceCount,
		sum)
}

func countersPrint(all map[string]resourceapi.Counter) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name].Value
		b.WriteString(" " + name + "=" + value.String())
	}
	return b.String()
}

// devicePrint prints a device without its name.
func devicePrint(e *cluster.Encoder, d *resourceapi.Device) string {
	text := string(e.Encode(d))
	for _, t := range d.Taints {
		text += " " + cluster.TaintText(t)
	}
	if d.BindsToNode != nil || len(d.BindingConditions) > 0 {
		text += " binding"
	}
	return text
}
