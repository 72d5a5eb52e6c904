// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// result is a device that was allocated.
type result = resourceapi.DeviceRequestAllocationResult

// holding is what a pod was given.
type holding struct {
	pod        string // namespace/name
	node       string
	containers map[string][]result
	claims     map[types.UID][]result
}

// Checker judges one look after the other. The zero value is ready to use.
type Checker struct {
	Containers int // so many were judged, each at every look
	Specs      int // so many CDI specs of running pods were judged, in the same way

	before World
	given  map[types.UID]holding // by pod, also of pods that are gone
}

// Forget forgets the look before, because the next one is not of the same cluster or much was missed.
func (c *Checker) Forget() { c.before = World{} }

// Look judges what is seen now. A container is judged if it also ran at the look before: then it ran all the time while
// everything else was read, so nothing of it may be missing.
func (c *Checker) Look(now World) []Violation {
	if c.given == nil {
		c.given = map[types.UID]holding{}
	}
	for i := range now.Pods {
		c.remember(now, &now.Pods[i])
	}
	var found []Violation
	for _, problem := range overCapacity(allocated(now.Claims), now.Slices) {
		found = append(found, Violation{Capacity, "allocated to " + problem})
	}
	held := map[types.UID][]result{}
	vgpus := map[string]string{} // which pod has it, by "node device node"
	for _, name := range slices.Sorted(maps.Keys(now.Nodes)) {
		for _, container := range lived(c.before.Nodes[name], now.Nodes[name]) {
			has, known := c.given[container.Pod]
			if !known || has.node != name {
				continue
			}
			c.Containers++
			maps.Copy(held, has.claims)
			given := devices(has.containers[container.Name])
			if problem := now.Nodes[name].compare(container.Devices, given); problem != "" {
				found = append(found, Violation{Sees, fmt.Sprintf("%s of pod %s on %s %s", container.Name, has.pod,
					name, problem)})
			}
			for _, v := range now.Nodes[name].vgpus(container.Devices) {
				if other := vgpus[name+" "+v]; other != "" && other != has.pod {
					found = append(found, Violation{Sees, fmt.Sprintf("pods %s and %s on %s have /dev/%s", other,
						has.pod, name, v)})
				}
				vgpus[name+" "+v] = has.pod
			}
			found = append(found, c.specs(now, name, container.Pod, has)...)
		}
	}
	for _, problem := range overCapacity(held, now.Slices) {
		found = append(found, Violation{Capacity, "in running containers of " + problem})
	}
	c.before = now
	return found
}

// lived returns the containers that ran at both looks.
func lived(before, now Node) []Container {
	var out []Container
	for _, c := range now.Containers {
		if slices.ContainsFunc(before.Containers, func(b Container) bool { return b.ID == c.ID }) {
			out = append(out, c)
		}
	}
	return out
}

// remember notes what the pod was given, if all of it is allocated and reserved for it.
func (c *Checker) remember(w World, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	has := holding{pod: pod.Namespace + "/" + pod.Name, node: pod.Spec.NodeName, containers: map[string][]result{},
		claims: map[types.UID][]result{}}
	byName := map[string][]result{} // by name in the pod
	add := func(inPod, name string) bool {
		i := slices.IndexFunc(w.Claims, func(claim resourceapi.ResourceClaim) bool {
			return claim.Namespace == pod.Namespace && claim.Name == name
		})
		if i < 0 || w.Claims[i].Status.Allocation == nil || !slices.ContainsFunc(w.Claims[i].Status.ReservedFor,
			func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
			return false
		}
		byName[inPod] = ours(&w.Claims[i])
		has.claims[w.Claims[i].UID] = byName[inPod]
		return true
	}
	for _, claim := range pod.Spec.ResourceClaims {
		name := ptr.Deref(claim.ResourceClaimName, "")
		for _, status := range pod.Status.ResourceClaimStatuses {
			if status.Name == claim.Name {
				name = ptr.Deref(status.ResourceClaimName, "")
			}
		}
		if !add(claim.Name, name) {
			return
		}
	}
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		for _, claim := range container.Resources.Claims {
			has.containers[container.Name] = append(has.containers[container.Name], ofRequest(byName[claim.Name],
				claim.Request)...)
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		if !add("", extended.ResourceClaimName) {
			return
		}
		for _, m := range extended.RequestMappings {
			has.containers[m.ContainerName] = append(has.containers[m.ContainerName], ofRequest(byName[""],
				m.RequestName)...)
		}
	}
	c.given[pod.UID] = has
}

// ours returns the driver's devices of an allocated claim.
func ours(claim *resourceapi.ResourceClaim) []result {
	return slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results),
		func(r result) bool { return r.Driver != Driver })
}

// ofRequest returns the devices of a request; empty: of all.
func ofRequest(results []result, request string) []result {
	return slices.DeleteFunc(slices.Clone(results), func(r result) bool {
		parent, _, _ := strings.Cut(r.Request, "/")
		return request != "" && r.Request != request && parent != request
	})
}

func devices(results []result) []string {
	var out []string
	for _, r := range results {
		out = append(out, r.Device)
	}
	return out
}

func allocated(claims []resourceapi.ResourceClaim) map[types.UID][]result {
	out := map[types.UID][]result{}
	for i := range claims {
		if claims[i].Status.Allocation != nil {
			out[claims[i].UID] = ours(&claims[i])
		}
	}
	return out
}

// specs judges the CDI specs of the pod, if it runs.
func (c *Checker) specs(w World, node string, uid types.UID, has holding) []Violation {
	if !slices.ContainsFunc(w.Pods, func(p corev1.Pod) bool {
		return p.UID == uid && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
	}) {
		return nil
	}
	var found []Violation
	for _, claim := range slices.Sorted(maps.Keys(has.claims)) {
		results := has.claims[claim]
		if len(results) == 0 {
			continue
		}
		c.Specs++
		if problem := w.specProblem(node, claim, results); problem != "" {
			found = append(found, Violation{Spec, fmt.Sprintf("claim %s of pod %s on %s: %s", claim, has.pod, node,
				problem)})
		}
	}
	return found
}

// specProblem says what is wrong with the spec of a claim; empty: nothing.
func (w World) specProblem(node string, claim types.UID, results []result) string {
	text, ok := w.Nodes[node].Specs[claim]
	if !ok {
		return "there is none"
	}
	var spec struct {
		Devices []struct {
			ContainerEdits struct {
				Env         []string
				DeviceNodes []struct{ Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err.Error()
	}
	var nodes, env []string
	for _, d := range spec.Devices {
		env = append(env, d.ContainerEdits.Env...)
		for _, n := range d.ContainerEdits.DeviceNodes {
			nodes = append(nodes, strings.TrimPrefix(n.Path, "/dev/"))
		}
	}
	if problem := w.Nodes[node].compare(nodes, devices(results)); problem != "" || len(results) > 1 {
		return problem
	}
	return limitProblem(env, results[0], published(w.Slices)[results[0].Pool+"/"+results[0].Device])
}

// limitProblem says whether the limit of a share is not what was allocated; empty: it is, or the device is not a share.
func limitProblem(env []string, r result, device resourceapi.Device) string {
	const limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="
	consumed, ok := r.ConsumedCapacity["memory"]
	isolation := ptr.Deref(device.Attributes["isolation"].StringValue, "")
	total := device.Capacity["memory"].Value
	if !ok || isolation != "mps" || consumed.Sign() == 0 || consumed.Cmp(total) >= 0 {
		return ""
	}
	want := fmt.Sprintf("%s0=%dM", limit, consumed.Value()>>20)
	if slices.Contains(env, want) {
		return ""
	}
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, limit) })
	if i < 0 {
		return "no limit, want " + want
	}
	return fmt.Sprintf("got %s, want %s", env[i], want)
}

// published returns the devices by pool/device, of the newest generation of each pool.
func published(all []resourceapi.ResourceSlice) map[string]resourceapi.Device {
	out := map[string]resourceapi.Device{}
	for _, s := range newest(all) {
		for _, d := range s.Spec.Devices {
			out[s.Spec.Pool.Name+"/"+d.Name] = d
		}
	}
	return out
}

func newest(all []resourceapi.ResourceSlice) []resourceapi.ResourceSlice {
	generation := map[string]int64{}
	for i := range all {
		pool := all[i].Spec.Pool
		generation[pool.Name] = max(generation[pool.Name], pool.Generation)
	}
	return slices.DeleteFunc(slices.Clone(all), func(s resourceapi.ResourceSlice) bool {
		return s.Spec.Pool.Generation != generation[s.Spec.Pool.Name]
	})
}

// overCapacity says which devices and counters are used beyond what is published, by claims with these devices.
func overCapacity(claims map[types.UID][]result, all []resourceapi.ResourceSlice) []string {
	devices := published(all)
	users := map[string][]string{} // of each device
	used := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
	for _, claim := range slices.Sorted(maps.Keys(claims)) {
		for _, r := range claims[claim] {
			key := r.Pool + "/" + r.Device
			if _, known := devices[key]; !known || ptr.Deref(r.AdminAccess, false) {
				continue
			}
			users[key] = append(users[key], string(claim))
			if used[key] == nil {
				used[key] = map[resourceapi.QualifiedName]resource.Quantity{}
			}
			for name, q := range r.ConsumedCapacity {
				sum := used[key][name]
				sum.Add(q)
				used[key][name] = sum
			}
		}
	}
	var problems []string
	for _, key := range slices.Sorted(maps.Keys(users)) {
		device := devices[key]
		if !ptr.Deref(device.AllowMultipleAllocations, false) && len(users[key]) > 1 {
			problems = append(problems, fmt.Sprintf("%d claims: %s (%s)", len(users[key]), key,
				strings.Join(users[key], ", ")))
		}
		for _, name := range slices.Sorted(maps.Keys(used[key])) {
			sum, total := used[key][name], device.Capacity[name].Value
			if sum.Cmp(total) > 0 {
				problems = append(problems, fmt.Sprintf("claims: %s of %s %s of %s (%s)", sum.String(), total.String(),
					name, key, strings.Join(users[key], ", ")))
			}
		}
	}
	return append(problems, overCounters(users, devices, all)...)
}

// overCounters does so for the counters that devices share. A device consumes them once, however many claims use it.
func overCounters(users map[string][]string, devices map[string]resourceapi.Device,
	all []resourceapi.ResourceSlice) []string {
	used := map[string]resource.Quantity{} // by pool/set/counter
	by := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(users)) {
		for _, consumed := range devices[key].ConsumesCounters {
			for name, c := range consumed.Counters {
				pool := strings.TrimSuffix(key, "/"+devices[key].Name)
				counter := pool + "/" + consumed.CounterSet + "/" + name
				sum := used[counter]
				sum.Add(c.Value)
				used[counter] = sum
				by[counter] = append(by[counter], key)
			}
		}
	}
	var problems []string
	for _, s := range newest(all) {
		for _, set := range s.Spec.SharedCounters {
			for _, name := range slices.Sorted(maps.Keys(set.Counters)) {
				counter := s.Spec.Pool.Name + "/" + set.Name + "/" + name
				if sum, total := used[counter], set.Counters[name].Value; sum.Cmp(total) > 0 {
					problems = append(problems, fmt.Sprintf("devices: %s of %s of %s (%s)", sum.String(),
						total.String(), counter, strings.Join(by[counter], ", ")))
				}
			}
		}
	}
	return problems
}
