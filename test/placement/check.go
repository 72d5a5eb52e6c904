// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// state is what the API server has at the end of a run.
type state struct {
	nodes  []corev1.Node
	slices []resourceapi.ResourceSlice
	claims []resourceapi.ResourceClaim
	pods   []corev1.Pod
}

// device is a published GPU, and what the claims have of it.
type device struct {
	node     string
	model    string
	capacity map[resourceapi.QualifiedName]int64
	used     map[resourceapi.QualifiedName]int64
}

type deviceID struct{ pool, name string }

// allocated counts the GPUs that the claims have, in thousandths, from nothing but the objects. It reports everything
// that contradicts the API: a device over its capacity, a claim whose devices are not on its pod's node or not as
// requested, an allocated claim without a pod, and a node over its CPU, memory or pods.
func (s state) allocated() (total int64, problems []error) {
	devices := s.devices()
	pods := map[string]*corev1.Pod{}
	for i := range s.pods {
		if s.pods[i].Spec.NodeName != "" {
			pods[s.pods[i].Name] = &s.pods[i]
		}
	}
	for _, claim := range s.claims {
		if claim.Status.Allocation == nil {
			if pods[claim.Name] != nil {
				problems = append(problems, fmt.Errorf("pod %s is bound, and its claim is not allocated", claim.Name))
			}
			continue
		}
		pod := pods[claim.Name]
		if pod == nil {
			problems = append(problems, fmt.Errorf("claim %s is allocated, and its pod is not bound", claim.Name))
			continue
		}
		got, errs := take(devices, claim, pod.Spec.NodeName)
		total += got
		problems = append(problems, errs...)
	}
	for _, id := range slices.SortedFunc(maps.Keys(devices), func(a, b deviceID) int {
		return slices.Compare([]string{a.pool, a.name}, []string{b.pool, b.name})
	}) {
		d := devices[id]
		for _, name := range slices.Sorted(maps.Keys(d.capacity)) {
			if d.used[name] > d.capacity[name] {
				problems = append(problems, fmt.Errorf("GPU %s/%s: %d of %s are allocated, it has %d", id.pool, id.name,
					d.used[name], name, d.capacity[name]))
			}
		}
	}
	return total, append(problems, s.overfullNodes()...)
}

// devices returns the published GPUs.
func (s state) devices() map[deviceID]*device {
	all := map[deviceID]*device{}
	for _, slice := range s.slices {
		for _, d := range slice.Spec.Devices {
			kind, model := d.Attributes["type"].StringValue, d.Attributes["productName"].StringValue
			if slice.Spec.NodeName == nil || kind == nil || *kind != "gpu" || model == nil {
				continue
			}
			is := &device{node: *slice.Spec.NodeName, model: *model, capacity: map[resourceapi.QualifiedName]int64{},
				used: map[resourceapi.QualifiedName]int64{}}
			for name, c := range d.Capacity {
				is.capacity[name] = c.Value.Value()
			}
			all[deviceID{slice.Spec.Pool.Name, d.Name}] = is
		}
	}
	return all
}

// take adds what the claim has to the devices and returns it in thousandths of a GPU.
func take(devices map[deviceID]*device, claim resourceapi.ResourceClaim, node string) (total int64, problems []error) {
	results := claim.Status.Allocation.Devices.Results
	asked := claim.Spec.Devices.Requests[0].Exactly
	seen := map[deviceID]bool{}
	for _, r := range results {
		id := deviceID{r.Pool, r.Device}
		d := devices[id]
		switch {
		case d == nil:
			problems = append(problems, fmt.Errorf("claim %s has %s/%s, which is no GPU", claim.Name, r.Pool, r.Device))
			continue
		case d.node != node:
			problems = append(problems, fmt.Errorf("claim %s has a GPU of node %s, its pod is on %s", claim.Name,
				d.node, node))
		}
		seen[id] = true
		if !accepts(asked, d.model) {
			problems = append(problems, fmt.Errorf("claim %s has a %s of %s/%s, which its selector excludes",
				claim.Name, d.model, r.Pool, r.Device))
		}
		for name, q := range r.ConsumedCapacity {
			d.used[name] += q.Value()
		}
		memory := r.ConsumedCapacity["memory"]
		total += memory.Value() / memoryOfThousandth
		if want := wanted(asked, d); memory.Value() != want {
			problems = append(problems, fmt.Errorf("claim %s has %d bytes of %s/%s, want %d", claim.Name,
				memory.Value(), r.Pool, r.Device, want))
		}
	}
	if int64(len(seen)) != asked.Count {
		problems = append(problems, fmt.Errorf("claim %s has %d GPUs, want %d", claim.Name, len(seen), asked.Count))
	}
	return total, problems
}

// accepts reports whether the request has no selector, or one that names the model.
func accepts(asked *resourceapi.ExactDeviceRequest, model string) bool {
	return len(asked.Selectors) == 0 || strings.Contains(asked.Selectors[0].CEL.Expression, "'"+model+"'")
}

// wanted returns how much of the device's memory a request gets.
func wanted(asked *resourceapi.ExactDeviceRequest, d *device) int64 {
	if asked.Capacity == nil {
		return d.capacity["memory"]
	}
	q := asked.Capacity.Requests["memory"]
	return q.Value()
}

// overfullNodes compares the requests of pods with what their nodes have.
func (s state) overfullNodes() (problems []error) {
	type use struct{ cpu, memory, pods int64 }
	used := map[string]use{}
	for _, p := range s.pods {
		if p.Spec.NodeName == "" {
			continue
		}
		u := used[p.Spec.NodeName]
		for _, c := range p.Spec.Containers {
			u.cpu += c.Resources.Requests.Cpu().MilliValue()
			u.memory += c.Resources.Requests.Memory().Value()
		}
		u.pods++
		used[p.Spec.NodeName] = u
	}
	for _, n := range s.nodes {
		u, has := used[n.Name], n.Status.Allocatable
		delete(used, n.Name)
		for _, r := range []struct {
			name      string
			used, has int64
		}{{"thousandths of a core", u.cpu, has.Cpu().MilliValue()}, {"bytes of memory", u.memory, has.Memory().Value()},
			{"pods", u.pods, has.Pods().Value()}} {
			if r.used > r.has {
				problems = append(problems, fmt.Errorf("node %s: %d %s are used, it has %d", n.Name, r.used, r.name,
					r.has))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		problems = append(problems, fmt.Errorf("pods are bound to node %q, which is none", name))
	}
	return problems
}
