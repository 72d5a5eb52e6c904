// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/page"
)

// pick returns one of them.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomFleet returns up to three nodes. Some of their GPUs are tainted, and some have no attribute rack.
func randomFleet(t testing.TB, r *rand.Rand) *cluster.Snapshot {
	t.Helper()
	var nodes []clustertest.SimNode
	for i := range 1 + r.IntN(3) {
		nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprintf("node-%d", i),
			Profile: pick(r, "t4-x2", "t4-x2", "mixed", "l40s-x4", "rtxpro6000-x2", "workstation"),
			Use: pick(r, gpu.SharingMode{}, gpu.SharingMode{}, exclusive,
				gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2, Isolation: gpu.IsolationNone},
				gpu.SharingMode{Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone})})
	}
	s := fleet(t, nodes...)
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			if r.IntN(3) > 0 {
				rack := pick(r, "r1", "r2")
				slice.Spec.Devices[i].Attributes["rack"] = resourceapi.DeviceAttribute{StringValue: &rack}
			}
			if r.IntN(8) == 0 {
				slice.Spec.Devices[i].Taints = append(slice.Spec.Devices[i].Taints, resourceapi.DeviceTaint{
					Key: pick(r, "gpu.nvidia.com/xid", "example.com/reserved"), Value: pick(r, "", "79"),
					Effect: pick(r, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute)})
			}
		}
	}
	return s
}

// randomRequest returns YAML of the content of a request.
func randomRequest(r *rand.Rand, counts bool) string {
	const attribute, capacity = "device.attributes['gpu.nvidia.com'].", "device.capacity['gpu.nvidia.com']."
	class := pick(r, driver, driver, driver, driver, driver, driver, "mig.nvidia.com", "shared.gpu.nvidia.com")
	var clauses []string
	for range pick(r, 0, 0, 1, 1, 2, 3) {
		clauses = append(clauses, pick(r,
			capacity+"memory.compareTo(quantity('"+pick(r, "10Gi", "20Gi", "40Gi", "1Ti")+"')) "+
				pick(r, ">= 0", "> 0", "<= 0"),
			capacity+"memory.isGreaterThan(quantity('"+pick(r, "16Gi", "40Gi")+"'))",
			attribute+"productName == '"+pick(r, "Tesla T4", "NVIDIA L40S", "NVIDIA B300")+"'",
			"("+attribute+"productName.contains('T4') || "+attribute+"productName.contains('A100'))",
			attribute+"cudaComputeCapability.compareTo(semver('"+pick(r, "8.0.0", "9.0.0", "12.0.0")+"')) "+
				pick(r, ">= 0", "< 0"),
			attribute+"peakCompute "+pick(r, ">=", ">", "<")+" "+pick(r, "1000", "100000"),
			"device.attributes['resource.kubernetes.io'].numaNode == "+pick(r, "0", "1"),
			attribute+"rack == '"+pick(r, "r1", "r2")+"'",
			attribute+"neverPublished == 'x'"))
	}
	text := "deviceClassName: " + class
	if len(clauses) > 0 {
		text += fmt.Sprintf(", selectors: [{cel: {expression: %q}}]", strings.Join(clauses, " && "))
	}
	if r.IntN(3) == 0 {
		text += ", capacity: {requests: {" + pick(r, "memory: 5Gi", "memory: 30Gi", "memory: 200Gi", `cores: "60"`,
			`memory: 12Gi, cores: "120"`, `shares: "2"`) + "}}"
	}
	switch {
	case counts && r.IntN(3) == 0:
		text += fmt.Sprintf(", count: %d", pick(r, 2, 3, 5, 9))
	case counts && r.IntN(12) == 0:
		text += ", allocationMode: All"
	}
	if r.IntN(6) == 0 {
		text += ", tolerations: [{key: gpu.nvidia.com/xid, operator: Exists}]"
	}
	return text
}

// randomClaim returns YAML of spec.devices.
func randomClaim(r *rand.Rand) string {
	var all []string
	for i := range pick(r, 1, 1, 1, 2) {
		if r.IntN(6) == 0 {
			all = append(all, fmt.Sprintf("{name: r%d, firstAvailable: [{name: a, %s}, {name: b, %s}]}", i,
				randomRequest(r, false), randomRequest(r, false)))
			continue
		}
		all = append(all, fmt.Sprintf("{name: r%d, exactly: {%s}}", i, randomRequest(r, true)))
	}
	text := requests("[" + strings.Join(all, ", ") + "]")
	if r.IntN(4) == 0 {
		text += "\nconstraints: [{" + pick(r, "matchAttribute: gpu.nvidia.com/productName",
			"matchAttribute: resource.kubernetes.io/numaNode", "matchAttribute: gpu.nvidia.com/nvlinkDomain",
			"distinctAttribute: gpu.nvidia.com/productName", "distinctAttribute: resource.kubernetes.io/numaNode") +
			"}]"
	}
	return text
}

// fill gives devices to other claims until so many do not fit.
func fill(t testing.TB, r *rand.Rand, s *cluster.Snapshot) {
	t.Helper()
	for i := range r.IntN(14) {
		c := claim(t, fmt.Sprintf("other-%d", i), requests("[{name: gpu, exactly: {deviceClassName: "+
			pick(r, driver, driver, "mig.nvidia.com")+", count: "+pick(r, "1", "1", "1", "2")+
			pick(r, "", ", capacity: {requests: {memory: 4Gi}}")+"}}]"))
		hold(t, s, c)
	}
}

// tally counts answers by number of changes and by kind of change.
type tally struct {
	all, wrong        map[string]int
	total, totalWrong int
}

func (c *tally) add(keys []string, wrong bool) {
	c.total++
	if wrong {
		c.totalWrong++
	}
	for _, key := range keys {
		c.all[key]++
		if wrong {
			c.wrong[key]++
		}
	}
}

// table returns the counts as a table of Markdown.
func (c *tally) table(of string) string {
	text := "| " + of + " | pods | wrong |\n|---|---|---|\n"
	for _, key := range slices.Sorted(maps.Keys(c.all)) {
		text += fmt.Sprintf("| %s | %d | %d |\n", key, c.all[key], c.wrong[key])
	}
	return text
}

// tell writes what the command has found to the page $WHY_PAGE, if the variable is set.
func tell(t *testing.T, command, text string) {
	t.Helper()
	if file := os.Getenv("WHY_PAGE"); file != "" {
		if err := page.Insert(file, command, page.Made(t.Context(), file)+".\n\n"+text); err != nil {
			t.Error(err)
		}
	}
}

// Pods with random claims that do not fit on random fleets: with the advice, the allocator places them. With less, it
// does not.
// WHY_CLAIMS sets how many, and WHY_SEED the first seed.
func TestRandomClaims(t *testing.T) {
	want, seed := 40, uint64(1)
	if text := os.Getenv("WHY_CLAIMS"); text != "" {
		want, _ = strconv.Atoi(text)
	}
	if text := os.Getenv("WHY_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	count := tally{all: map[string]int{}, wrong: map[string]int{}}
	for judged := 0; judged < want; seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		s := randomFleet(t, r)
		fill(t, r, s)
		var claims []*resourceapi.ResourceClaim
		devices := ""
		for i := range pick(r, 1, 1, 1, 2) {
			text := randomClaim(r)
			devices += text + "\n"
			claims = append(claims, claim(t, fmt.Sprint("c", i), text))
		}
		if on, _, err := judge(t, s, nil, claims...); err == nil && on != "" {
			continue
		}
		judged++
		s.Claims = append(s.Claims, claims...)
		s.Pods = append(s.Pods, pod("p", claims...))
		report, err := Pod(t.Context(), s, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		keys, problems := check(t, s, report)
		count.add(keys, len(problems) > 0)
		if len(problems) > 0 {
			t.Errorf("seed %d: %s\n%s\n%s", seed, devices, strings.Join(problems, "\n"), text(t, report))
		}
	}
	table := count.table("the answer")
	t.Log(table)
	tell(t, "make why", fmt.Sprintf("Of %d answers, %d were wrong.\n\n%s", count.total, count.totalWrong, table))
}

// check judges the report. It returns the number and the kinds of the changes, and what is wrong.
func check(t testing.TB, s *cluster.Snapshot, r *Answer) (keys, problems []string) {
	t.Helper()
	if r.Outcome != Waits || r.search == nil {
		return []string{"no answer"}, []string{"outcome " + string(r.Outcome)}
	}
	fits := func(steps []step) bool {
		placed, starts := outcome(t, s, r.search, steps)
		return placed && starts
	}
	if len(r.search.found) == 0 {
		return []string{"nothing helps"}, nothing(r, fits)
	}
	advice := r.search.found[0]
	for _, with := range less(advice) {
		if fits(with.steps) {
			problems = append(problems, with.text)
		}
	}
	if !fits(advice) {
		problems = append(problems, "it does not fit with the advice")
	}
	return keysOf(advice), problems
}

// outcome says what becomes of the workload with the changes: whether it gets devices, and starts then.
func outcome(t testing.TB, s *cluster.Snapshot, of *search, steps []step) (placed, starts bool) {
	t.Helper()
	w := of.w.with(steps)
	on, results, err := judge(t, s, w.ended, w.claims...)
	if placed = err == nil && on != ""; placed {
		starts = newIndex(s).refusal(nil, w, placement{results: results}) == nil
	}
	return placed, starts
}

// keysOf returns the kinds of the changes and their number.
func keysOf(a advice) []string {
	var keys []string
	for _, st := range a {
		keys = append(keys, string(st.kind))
	}
	slices.Sort(keys)
	return append(slices.Compact(keys), []string{"1 change", "2 changes", "3 changes", "4 changes",
		"5 changes or more"}[min(len(a), 5)-1])
}

// lesser is an advice with less than is needed.
type lesser struct {
	steps []step
	key   string // what is less
	text  string // what is wrong if the workload fits with it
}

// less returns the advice without each one of several changes, and with each number one step milder.
func less(a advice) []lesser {
	var all []lesser
	for i, st := range a {
		if len(a) > 1 {
			all = append(all, lesser{slices.Delete(slices.Clone(a), i, i+1), "without " + string(st.kind),
				"not needed: " + st.text(st.level)})
		}
		if st.level > 0 {
			milder := slices.Clone(a)
			milder[i].level--
			all = append(all, lesser{milder, "milder " + string(st.kind),
				"milder would do: " + st.text(st.level-1)})
		}
	}
	return all
}

// mildest is how many levels of a change nothing tries, beside the last one.
const mildest = 50

// nothing tries every change at its mildest levels and the last one, and every pair of changes at their last levels.
func nothing(r *Answer, fits func([]step) bool) []string {
	if !r.Search.Complete {
		return nil // it says so
	}
	r.search.ctx = context.Background() // that of the search has ended
	var err error
	r.search.candidates, err = r.search.compareAll()
	if err != nil {
		return []string{err.Error()}
	}
	ofClaims, waits := r.search.changes()
	all := slices.Concat(ofClaims, waits)
	for i, a := range all {
		for _, level := range append(upTo(min(a.levels-1, mildest)), a.levels-1) {
			if fits([]step{{a, level}}) {
				return []string{"this would help: " + a.text(level)}
			}
		}
		for _, b := range all[i+1:] {
			if a.target != b.target && fits(loosest(a, b)) {
				return []string{"both would help: " + a.text(a.levels-1) + " and " + b.text(b.levels-1)}
			}
		}
	}
	return nil
}
