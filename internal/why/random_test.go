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
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
	"github.com/gpudra/gpu-dra-driver/test/page"
)

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
		for i := range fleettest.Pick(r, 1, 1, 1, 2) {
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
	fits := func(steps []advice.Step) bool {
		placed, starts := outcome(t, s, r.search, steps)
		return placed && starts
	}
	if len(r.search.Found) == 0 {
		return []string{"nothing helps"}, nothing(r, fits)
	}
	first := r.search.Found[0]
	for _, with := range less(first) {
		if fits(with.steps) {
			problems = append(problems, with.text)
		}
	}
	if !fits(first) {
		problems = append(problems, "it does not fit with the advice")
	}
	return keysOf(first), problems
}

// outcome says what becomes of the workload with the changes: whether it gets devices, and starts then.
func outcome(t testing.TB, s *cluster.Snapshot, of *advice.Search, steps []advice.Step) (placed, starts bool) {
	t.Helper()
	w := advice.With(of.Workload, steps)
	on, results, err := judge(t, s, w.Ended, w.Claims...)
	if placed = err == nil && on != ""; placed {
		starts = schedule.New(s).Refusal(nil, w, schedule.Placement{Results: results}) == nil
	}
	return placed, starts
}

// keysOf returns the kinds of the changes and their number.
func keysOf(a advice.Advice) []string {
	var keys []string
	for _, st := range a {
		keys = append(keys, string(st.Kind))
	}
	slices.Sort(keys)
	return append(slices.Compact(keys), []string{"1 change", "2 changes", "3 changes", "4 changes",
		"5 changes or more"}[min(len(a), 5)-1])
}

// lesser is an advice with less than is needed.
type lesser struct {
	steps []advice.Step
	key   string // what is less
	text  string // what is wrong if the workload fits with it
}

// less returns the advice without each one of several changes, and with each number one step milder.
func less(a advice.Advice) []lesser {
	var all []lesser
	for i, st := range a {
		if len(a) > 1 {
			all = append(all, lesser{slices.Delete(slices.Clone(a), i, i+1), "without " + string(st.Kind),
				"not needed: " + st.Text(st.Level)})
		}
		if st.Level > 0 {
			milder := slices.Clone(a)
			milder[i].Level--
			all = append(all, lesser{milder, "milder " + string(st.Kind),
				"milder would do: " + st.Text(st.Level-1)})
		}
	}
	return all
}

// mildest is how many levels of a change nothing tries, beside the last one.
const mildest = 50

// nothing tries every change at its mildest levels and the last one, and every pair of changes at their last levels.
func nothing(r *Answer, fits func([]advice.Step) bool) []string {
	if !r.Search.Complete {
		return nil // it says so
	}
	r.search.Context = context.Background() // that of the search has ended
	var err error
	r.search.Candidates, err = r.search.CompareAll()
	if err != nil {
		return []string{err.Error()}
	}
	ofClaims, waits := r.search.Changes()
	all := slices.Concat(ofClaims, waits)
	for i, a := range all {
		for _, level := range append(advice.UpTo(min(a.Levels-1, mildest)), a.Levels-1) {
			if fits([]advice.Step{{Proposal: a, Level: level}}) {
				return []string{"this would help: " + a.Text(level)}
			}
		}
		for _, b := range all[i+1:] {
			if a.Target != b.Target && fits(advice.Loosest(a, b)) {
				return []string{"both would help: " + a.Text(a.Levels-1) + " and " + b.Text(b.Levels-1)}
			}
		}
	}
	return nil
}
