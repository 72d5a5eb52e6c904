// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A user without the right to list nodes, where no slice is of a single node.
func TestNoNodesKnown(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4", Use: exclusive})
	for _, slice := range s.Slices {
		slice.Spec.NodeName, slice.Spec.AllNodes = nil, ptr.To(true)
	}
	s.Nodes, s.Unread[cluster.Nodes] = nil, errors.New("forbidden")
	c := claim(t, "c", gpus(""))
	s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
	r, err := Pod(t.Context(), s, "ns", "p")
	if err != nil {
		t.Fatal(err)
	}
	if want := "no answer without the right to list nodes: forbidden"; r.Outcome != Undecided || r.Cause != want {
		t.Errorf("got %s, %q, want %s, %q", r.Outcome, r.Cause, Undecided, want)
	}
}

// A manifest with names that are not rendered yet, or that look like the syntax of an answer.
func TestNamesWithQuotes(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4", Use: exclusive})
	for _, name := range []string{`{{ .Values.name | default "trainer" }}`, `x","outcome":"Waits","cause":"\`, "a\nb",
		"\uE0001\uE000"} {
		c := claim(t, name, gpus(""))
		for _, r := range Fit(t.Context(), s, Manifest{Pods: []*corev1.Pod{pod(name, c)},
			Claims: []*resourceapi.ResourceClaim{c}}) {
			if want := "pod " + name + " fits now on 1 of 1 nodes"; r.Outcome != Fits || r.Cause != want {
				t.Errorf("got %s, %q, want %s, %q", r.Outcome, r.Cause, Fits, want)
			}
		}
	}
}

// Expressions that the API server would refuse, in a manifest that is not created yet.
func TestCallsWithoutArguments(t *testing.T) {
	const memory = "device.capacity['gpu.nvidia.com'].memory"
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4", Use: exclusive})
	for _, expression := range []string{memory + ".compareTo() >= 0", "compareTo() >= 0", memory +
		".isGreaterThan()", memory + ".compareTo(quantity()) >= 0", "quantity() >= 1", "has()", "[].all()"} {
		c := claim(t, "c", ask(expression, ""))
		for _, r := range Fit(t.Context(), s, Manifest{Claims: []*resourceapi.ResourceClaim{c}}) {
			if r.Outcome != Waits {
				t.Errorf("%s: got %s, want %s", expression, r.Outcome, Waits)
			}
		}
	}
}

// selectors returns YAML of a claim whose request has that many selectors with that many clauses each.
func selectorsOf(selectors, clauses int, clause func(number int) string) string {
	var all []string
	for k := range selectors {
		var one []string
		for n := range clauses {
			one = append(one, clause(k*clauses+n))
		}
		all = append(all, fmt.Sprintf("{cel: {expression: %q}}", strings.Join(one, " && ")))
	}
	return requests("[{name: gpu, exactly: {deviceClassName: mig.nvidia.com, selectors: [" + strings.Join(all, ", ") +
		"]}}]")
}

// explained returns the report about a pod with the claim, and the memory that was allocated for it in MiB.
func explained(ctx context.Context, t *testing.T, o Options, devices string) (r *Answer, allocated uint64) {
	t.Helper()
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "rtxpro6000-x2"})
	c := claim(t, "c", devices)
	s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := NewExplainer(s, o).Pod(ctx, "ns", "p")
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	return r, (after.TotalAlloc - before.TotalAlloc) >> 20
}

// A claim of 50 kB with 3,900 clauses. Each clause was compared with each partition, compiled anew each time: gigabytes
// and minutes. Selectors with so many clauses are looked at as a whole.
func TestManyClauses(t *testing.T) {
	r, allocated := explained(t.Context(), t, Options{}, selectorsOf(5, 780, func(n int) string {
		return fmt.Sprintf("'%d'=='x'", n)
	}))
	if !strings.HasPrefix(r.Cause, "pod p waits: request gpu of claim c: none of the ") || allocated > 2000 {
		t.Errorf("got %.200q after %d MiB, want the cause after at most 2,000 MiB", r.Cause, allocated)
	}
}

// An explanation that would take minutes ends: each of 500 selectors is expensive, and is evaluated on each partition.
func TestTheTimeoutEndsTheExplanation(t *testing.T) {
	const list = "[1,1,1,1,1,1,1,1]"
	expensive := selectorsOf(500, 1, func(n int) string {
		return fmt.Sprintf("%s.all(a,%[1]s.all(b,%[1]s.all(c,%[1]s.all(d,a+b+c+d+%d>0))))", list, n)
	})
	r, _ := explained(t.Context(), t, Options{Timeout: 300 * time.Millisecond}, expensive)
	if want := "pod p is not explained: there was no answer within 300ms"; r.Outcome == Fits ||
		!strings.HasPrefix(r.Cause, want) || r.Search.Complete {
		t.Errorf("got %s, %.300q, want %q", r.Outcome, r.Cause, want)
	}
}

// What is too large for an answer says so.
func TestTooLarge(t *testing.T) {
	var many []string
	for i := range 257 {
		many = append(many, fmt.Sprintf("{name: r%d, exactly: {deviceClassName: mig.nvidia.com}}", i))
	}
	for _, row := range []struct{ name, devices, want string }{
		{"requests", requests("[" + strings.Join(many, ", ") + "]"),
			"pod p is not explained: it has 257 requests and alternatives, and 0 selectors"},
		{"selectors", selectorsOf(501, 1, func(n int) string { return fmt.Sprintf("%d > 0", n) }),
			"pod p is not explained: it has 1 requests and alternatives, and 501 selectors"},
		{"bytes", selectorsOf(10, 1, func(int) string { return "'" + strings.Repeat("x", 7000) + "' != ''" }),
			"pod p is not explained: it has 1 requests and alternatives, and 10 selectors with 70080 bytes"},
	} {
		r, _ := explained(t.Context(), t, Options{}, row.devices)
		if !strings.HasPrefix(r.Cause, row.want) || r.Outcome != Undecided {
			t.Errorf("%s: got %s, %.200q, want %q", row.name, r.Outcome, r.Cause, row.want)
		}
	}
	defer func(before schedule.Limits) { schedule.DefaultLimits = before }(schedule.DefaultLimits)
	schedule.DefaultLimits.Candidates = 10
	r, _ := explained(t.Context(), t, Options{}, selectorsOf(1, 1, func(int) string { return "false" }))
	if want := "pod p waits, and is not explained: it asks for too much to compare with all devices"; r.Cause != want {
		t.Errorf("got %q, want %q", r.Cause, want)
	}
}

// Counts whose sum overflows.
func TestHugeCounts(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "l40s-x4", Use: exclusive})
	const huge = "{deviceClassName: gpu.nvidia.com, count: 4611686018427387904}"
	s.Claims = append(s.Claims, claim(t, "c", requests("[{name: a, exactly: "+huge+"}, {name: b, exactly: "+huge+"}]")))
	r, err := Claim(t.Context(), s, "ns", "c")
	if err != nil {
		t.Fatal(err)
	}
	if r.Outcome != Waits {
		t.Errorf("got %s, %q, want %s", r.Outcome, r.Cause, Waits)
	}
}
