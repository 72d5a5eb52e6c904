// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

func TestClaimsAskForWhatThePodsOfTheTraceDo(t *testing.T) {
	for _, row := range []struct {
		name string
		pod  trace.Pod
		want string // the request; empty: no claim
	}{
		{"no GPU", trace.Pod{CPU: 1000}, ""},
		{"a share", trace.Pod{GPUs: 1, Amount: 460},
			`{"allocationMode":"ExactCount","capacity":{"requests":{"cores":"46","memory":"7360Mi"}},"count":1,` +
				`"deviceClassName":"gpu.nvidia.com"}`},
		{"a share between two percentages", trace.Pod{GPUs: 1, Amount: 125},
			`{"allocationMode":"ExactCount","capacity":{"requests":{"cores":"12","memory":"2000Mi"}},"count":1,` +
				`"deviceClassName":"gpu.nvidia.com"}`},
		{"several GPUs of two models", trace.Pod{GPUs: 8, Amount: trace.Whole, Models: []string{"G2", "T4"}},
			`{"allocationMode":"ExactCount","count":8,"deviceClassName":"gpu.nvidia.com","selectors":[{"cel":` +
				`{"expression":"device.attributes['gpu.nvidia.com'].productName in ['G2', 'T4']"}}]}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := ""
			if claim := newClaim("a", row.pod); claim != nil {
				text, err := yaml.Marshal(claim.Spec.Devices.Requests[0].Exactly)
				if err != nil {
					t.Fatal(err)
				}
				if text, err = yaml.YAMLToJSON(text); err != nil {
					t.Fatal(err)
				}
				got = string(text)
			}
			if got != row.want {
				t.Errorf("got\n%s, want\n%s", got, row.want)
			}
			uses := len(newPod("a", "s", row.pod).Spec.ResourceClaims) == 1
			if uses != (row.want != "") {
				t.Errorf("the pod uses a claim: %v", uses)
			}
		})
	}
}

func TestNodesOfTheFleet(t *testing.T) {
	dir := t.TempDir()
	nodes, err := fleetNodes([]trace.Node{{Name: "a", CPU: 96_500, Memory: 1024, GPUs: 8, Model: "G2"},
		{Name: "b", CPU: 8000, Memory: 1, GPUs: 1, Model: "V100M16"},
		{Name: "c", CPU: 8000, Memory: 1, GPUs: 8, Model: "G2"}}, dir)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, n := range nodes {
		text, err := os.ReadFile(n.Profile)
		if err != nil {
			t.Fatal(err)
		}
		p, err := simulator.ParseProfile(text)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s: %s, %d GPUs, %s CPU, %s\n", n.Name, p.Name, len(p.GPUs), n.CPU.String(),
			n.Memory.String())
	}
	const want = `a: g2-x8, 8 GPUs, 96500m CPU, 1Gi
b: v100m16-x1, 1 GPUs, 8 CPU, 1Mi
c: g2-x8, 8 GPUs, 8 CPU, 1Mi
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

// Two GPUs: pods for 50, 100 and 150 % of them arrive.
func TestFilled(t *testing.T) {
	one, placed := trace.Pod{GPUs: 1, Amount: trace.Whole}, decision{node: "a"}
	all := []arrival{{pod: one, decision: placed}, {pod: one}, {pod: trace.Pod{CPU: 1}, decision: placed},
		{pod: one, decision: placed}}
	for share, want := range map[float64]float64{0.5: 0.5, 1: 0.5, 1.5: 1, 1.2: 0} {
		if got := filled(all, 2, share); got != want {
			t.Errorf("at %v got %v, want %v", share, got, want)
		}
	}
}

func TestServedLeavesOutTheFirstThird(t *testing.T) {
	one, placed := trace.Pod{GPUs: 1, Amount: trace.Whole}, decision{node: "a"}
	all := []arrival{{pod: one, decision: placed}, {pod: one, decision: placed}, {pod: one},
		{pod: one, decision: placed}, {pod: trace.Pod{GPUs: 2, Amount: trace.Whole}}, {pod: trace.Pod{CPU: 1}}}
	if got := served(all); got != 0.25 {
		t.Errorf("got %v, want 0.25", got)
	}
}

func TestDeparturesAreInOrder(t *testing.T) {
	var d departures
	for _, ends := range []float64{3, 1, 2, 5, 4} {
		d = append(d, departure{arrival: arrival{name: fmt.Sprint(ends)}, ends: ends})
	}
	// A heap from the start, as churn builds it.
	var heaped departures
	for _, one := range d {
		heaped.add(one)
	}
	got := ""
	for _, now := range []float64{0.5, 3, 3, 9} {
		for _, one := range heaped.due(now) {
			got += one.name
		}
		got += "|"
	}
	if want := "|123||45|"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestStateThatContradictsTheAPI(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*state)
		want   string // problems
	}{
		{"none", func(*state) {}, ""},
		{"a GPU over its memory", func(s *state) { amount(s, 0, "memory", 900); request(s, 0, "memory", 900) },
			"GPU a/gpu-0: 23488102400 of memory are allocated, it has 16777216000"},
		{"a GPU over its multiprocessors", func(s *state) { amount(s, 0, "cores", 60) },
			"GPU a/gpu-0: 110 of cores are allocated, it has 100"},
		{"less than requested", func(s *state) { amount(s, 0, "memory", 400) },
			"claim p0 has 6710886400 bytes of a/gpu-0, want 8388608000"},
		{"fewer GPUs than requested", func(s *state) { s.claims[0].Spec.Devices.Requests[0].Exactly.Count = 2 },
			"claim p0 has 1 GPUs, want 2"},
		{"a GPU of another node", func(s *state) { s.pods[0].Spec.NodeName = "b" },
			"claim p0 has a GPU of node a, its pod is on b"},
		{"a GPU that is none", func(s *state) { s.claims[0].Status.Allocation.Devices.Results[0].Device = "gpu-9" },
			"claim p0 has a/gpu-9, which is no GPU\nclaim p0 has 0 GPUs, want 1"},
		{"a pod without its GPU", func(s *state) { s.claims[0].Status.Allocation = nil },
			"pod p0 is bound, and its claim is not allocated"},
		{"a GPU without its pod", func(s *state) { s.pods[0].Spec.NodeName = "" },
			"claim p0 is allocated, and its pod is not bound"},
		{"a model that was not accepted", func(s *state) {
			s.claims[0].Spec.Devices.Requests[0].Exactly.Selectors = newClaim("x", trace.Pod{GPUs: 1, Amount: 500,
				Models: []string{"A100"}}).Spec.Devices.Requests[0].Exactly.Selectors
		}, "claim p0 has a T4 of a/gpu-0, which its selector excludes"},
		{"a node over its CPU", func(s *state) {
			s.nodes[0].Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1500m")
		}, "node a: 2000 thousandths of a core are used, it has 1500"},
		{"a node that is none", func(s *state) { s.nodes = s.nodes[1:] }, `pods are bound to node "a", which is none`},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := example()
			row.change(&s)
			_, problems := s.allocated()
			var got []string
			for _, p := range problems {
				got = append(got, p.Error())
			}
			if got := strings.Join(got, "\n"); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
	if total, _ := example().allocated(); total != 1000 {
		t.Errorf("got %d thousandths, want 1000", total)
	}
}

// example has two nodes with a GPU each, and two pods with half of the first one.
func example() state {
	var s state
	for _, name := range []string{"a", "b"} {
		s.nodes = append(s.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
				corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("110")}}})
		kind, model := "gpu", "T4"
		s.slices = append(s.slices, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{NodeName: &name,
			Pool: resourceapi.ResourcePool{Name: name}, Devices: []resourceapi.Device{{Name: "gpu-0",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind},
					"productName": {StringValue: &model}},
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
					"memory": {Value: quantity("memory", 1000)}, "cores": {Value: quantity("cores", 100)}}}}}})
	}
	for i := range 2 {
		name, p := fmt.Sprintf("p%d", i), trace.Pod{CPU: 1000, Memory: 1024, GPUs: 1, Amount: 500}
		claim := newClaim(name, p)
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Pool: "a", Device: "gpu-0",
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": quantity("memory", 500), "cores": quantity("cores", 50)}}}}}
		pod := newPod(name, "s", p)
		pod.Spec.NodeName = "a"
		s.claims, s.pods = append(s.claims, *claim), append(s.pods, *pod)
	}
	return s
}

// quantity returns an amount of a capacity: memory in thousandths of a GPU.
func quantity(name resourceapi.QualifiedName, n int64) resource.Quantity {
	if name == "memory" {
		n *= memoryOfThousandth
	}
	return *resource.NewQuantity(n, resource.BinarySI)
}

func amount(s *state, claim int, name resourceapi.QualifiedName, n int64) {
	s.claims[claim].Status.Allocation.Devices.Results[0].ConsumedCapacity[name] = quantity(name, n)
}

func request(s *state, claim int, name resourceapi.QualifiedName, n int64) {
	s.claims[claim].Spec.Devices.Requests[0].Exactly.Capacity.Requests[name] = quantity(name, n)
}

func TestResultsAreKept(t *testing.T) {
	dir := results(filepath.Join(t.TempDir(), "new"))
	if all, err := dir.all(); err != nil || len(all) > 0 {
		t.Fatal(all, err)
	}
	one := result{key: key{Test: testChurn, Trace: "default", Policy: policyPack, Nodes: 3, Seed: 2, Load: 0.95,
		Pods: 9}, GPUs: 4, Decided: 9, Seconds: 3, measures: measures{Served: 0.5}}
	if dir.has(one.key) {
		t.Error("there is a result before the run")
	}
	if err := dir.put(one); err != nil {
		t.Fatal(err)
	}
	other := one.key
	other.Load = 1.1
	if !dir.has(one.key) || dir.has(other) {
		t.Error("the run that has a result is not the one that was put")
	}
	all, err := dir.all()
	if err != nil || len(all) != 1 || all[0].String() != one.String() || all[0].rate() != 3 {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestFlags(t *testing.T) {
	for _, row := range []struct{ args, want string }{
		{"-tests fill -seeds 1,2 -policies default", "fill-generated-40-seed1-default fill-generated-40-seed2-default"},
		{"-tests churn,rate -loads 1.1", "churn-generated-40-seed1-default-load1.1-1000 " +
			"churn-generated-40-seed1-pack-load1.1-1000 rate-generated-40-seed1"},
		{"-tests fil", "error: -tests: want some of fill, churn, rate, got \"fil\""},
		{"-policies x", "error: -policies: want some of default, pack, spread, got \"x\""},
		{"-seeds x", "error: -seeds: want whole numbers separated by commas, got \"x\""},
		{"-seeds ,", "error: -seeds: want whole numbers separated by commas, got \",\""},
		{"-loads 0", "error: -loads: want numbers above 0 separated by commas, got \"0\""},
	} {
		t.Run(row.args, func(t *testing.T) {
			o, err := parse(strings.Fields("-nodes 40 " + row.args))
			got := fmt.Sprint("error: ", err)
			if err == nil {
				tr, err := o.read("")
				if err != nil {
					t.Fatal(err)
				}
				got = strings.Trim(fmt.Sprint(o.keys(tr)), "[]")
			}
			if got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func TestTables(t *testing.T) {
	fill := func(trace, policy string, nodes int, seed uint64, at100, at130 float64) result {
		return result{key: key{Test: testFill, Trace: trace, Policy: policy, Nodes: nodes, Seed: seed}, GPUs: 5 * nodes,
			measures: measures{At100: at100, At130: at130}}
	}
	replayed := fill("default", policyPack, 404, 1, 0.9, 0.95)
	replayed.Replay = &measures{At100: 0.91, At130: 0.945}
	got := tables([]result{
		fill("default", policyDefault, 1213, 1, 0.93, 0.94), fill("default", policyPack, 1213, 1, 0.95, 0.96),
		fill("default", policyDefault, 1213, 2, 0.94, 0.95),
		replayed,
		{key: key{Test: testChurn, Trace: "default", Policy: policyPack, Nodes: 404, Seed: 1, Load: 0.95, Pods: 10_000},
			measures: measures{Served: 0.995}, Replay: &measures{Served: 0.99}},
		{key: key{Test: testRate, Trace: "default", Nodes: 1213, Seed: 1}, Without: []float64{20, 5},
			With: []float64{10, 6, 15}, Fast: 0.99,
			P50: 2 * time.Millisecond, P99: 2500 * time.Microsecond, Memory: 80 << 20},
	})
	const want = `| pods | nodes | GPUs | seeds | default: 100 % | 130 % | pack: 100 % | 130 % | best published: 130 % |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
| default | 1,213 | 6,065 | 2, 1 | 93.50 | 94.50 | 95.00 | 96.00 | 95.39 |
| default | 404 | 2,020 | 0, 1 | – | – | 90.00 | 95.00 | – |

| pods | nodes | requested | arrivals | seeds | pack |
|---|---:|---:|---:|---:|---:|
| default | 404 | 95 % | 10,000 | 1 | 99.50 |

| nodes | pods/s without the extender | with it | ratio | scores within 10 ms | answer p50 | p99 | controller's memory |
|---:|---:|---:|---:|---:|---:|---:|---:|
| 1,213 | 8.0 | 9.0 | 1.12 | 99.0 % | 2.0 ms | 2.5 ms | 80 MiB |

| test | pods | nodes | seed | policy | kube-scheduler | replay | difference |
|---|---|---:|---:|---|---:|---:|---:|
| fill, 100 % | default | 404 | 1 | pack | 90.00 | 91.00 | -1.00 |
| fill, 130 % | default | 404 | 1 | pack | 95.00 | 94.50 | +0.50 |
| churn, 95 % | default | 404 | 1 | pack | 99.50 | 99.00 | +0.50 |

`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
