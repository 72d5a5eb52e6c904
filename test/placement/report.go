// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/page"
)

// published are the shares of allocated GPUs at 130 % in the repository of the paper, in percent: of its best policy,
// FGD, on all 1,213 nodes, with a simulated scheduler.
var published = map[string]float64{"default": 95.39, "gpuspec33": 94.55, "gpushare100": 86.90, "multigpu50": 97.18,
	"cpu200": 95.05}

const publishedNodes = 1213

// summary returns what a run has measured, in a line.
func (r result) summary() string {
	var parts []string
	switch r.Test {
	case testFill:
		parts = append(parts, fmt.Sprintf("%.2f %% of the GPUs allocated when 100 %% are requested, %.2f at 130 %%",
			100*r.At100, 100*r.At130))
	case testChurn:
		parts = append(parts, fmt.Sprintf("%.2f %% of the requested GPUs placed", 100*r.Served))
	case testRate:
		parts = append(parts, fmt.Sprintf("pods/s without %.1f, with %.1f", r.Without, r.With))
	}
	parts = append(parts, fmt.Sprintf("%d pods, %d refused, %.1f/s", r.Decided, r.Refused, r.rate()))
	if r.Memory > 0 {
		parts = append(parts, fmt.Sprintf("%.2f %% of the scores within 10 ms, %.1f %% of the pods "+
			"on the best node; answers p50 %.1f ms, p99 %.1f ms, controller %.0f MiB", 100*r.Fast, 100*r.Followed,
			milliseconds(r.P50), milliseconds(r.P99), mebibytes(r.Memory)))
	}
	return strings.Join(parts, "; ")
}

// report prints all results, and writes them into the page.
func (o options) report(ctx context.Context) error {
	all, err := o.results.all()
	if err != nil {
		return err
	}
	text := tables(all)
	fmt.Println(text)
	if o.docs == "" {
		return nil
	}
	return page.Insert(o.docs, "make placement", page.Made(ctx, o.docs)+
		"; what had a result in the folder by then is older.\n\n"+text)
}

// tables returns the results in Markdown.
func tables(all []result) string {
	var b strings.Builder
	for _, test := range []struct {
		name  string
		write func(*strings.Builder, []result)
	}{{testFill, fillTable}, {testChurn, churnTable}, {testRate, costTable}} {
		some := slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.Test != test.name })
		if len(some) > 0 {
			test.write(&b, some)
		}
	}
	if slices.ContainsFunc(all, func(r result) bool { return r.Replay != nil }) {
		replayTable(&b, all)
	}
	return b.String()
}

// replayTable compares each run with the replay of the same pods in the same order. Differences are in percentage
// points.
func replayTable(b *strings.Builder, all []result) {
	b.WriteString("| test | pods | nodes | seed | policy | kube-scheduler | replay | difference |\n" +
		"|---|---|---:|---:|---|---:|---:|---:|\n")
	row := func(test string, r result, real, replay float64) {
		head(b, test, r.Trace, number(r.Nodes), fmt.Sprint(r.Seed), r.Policy, fmt.Sprintf("%.2f", 100*real),
			fmt.Sprintf("%.2f", 100*replay), fmt.Sprintf("%+.2f", 100*(real-replay)))
		b.WriteString("\n")
	}
	for _, r := range all {
		switch {
		case r.Replay == nil:
		case r.Test == testFill:
			row("fill, 100 %", r, r.At100, r.Replay.At100)
			row("fill, 130 %", r, r.At130, r.Replay.At130)
		default:
			row(fmt.Sprintf("churn, %.0f %%", 100*r.Load), r, r.Served, r.Replay.Served)
		}
	}
	b.WriteString("\n")
}

// group is the results of the same runs with other policies and seeds.
type group map[string][]result // by policy

// groups returns the results by what they have in common, in order.
func groups(all []result) (keys []key, by map[key]group) {
	by = map[key]group{}
	for _, r := range all {
		k := r.key
		k.Policy, k.Seed = "", 0
		if by[k] == nil {
			by[k] = group{}
			keys = append(keys, k)
		}
		by[k][r.Policy] = append(by[k][r.Policy], r)
	}
	return keys, by
}

// policies returns the policies of the results: the default first.
func policies(all []result) []string {
	seen := map[string]bool{}
	for _, r := range all {
		seen[r.Policy] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
}

func rank(policy string) int {
	return slices.Index([]string{policyDefault, policyPack, policySpread}, policy)
}

// mean returns the mean of the seeds in percent, or "–" if there is no result.
func mean(some []result, value func(result) float64) string {
	if len(some) == 0 {
		return "–"
	}
	var sum float64
	for _, r := range some {
		sum += 100 * value(r)
	}
	return fmt.Sprintf("%.2f", sum/float64(len(some)))
}

func at100(r result) float64    { return r.At100 }
func at130(r result) float64    { return r.At130 }
func servedOf(r result) float64 { return r.Served }

// seeds returns how many runs of each policy there are.
func (g group) seeds(policies []string) string {
	var counts []string
	for _, p := range policies {
		counts = append(counts, fmt.Sprint(len(g[p])))
	}
	if len(slices.Compact(slices.Clone(counts))) == 1 {
		return counts[0]
	}
	return strings.Join(counts, ", ")
}

func fillTable(b *strings.Builder, all []result) {
	ps := policies(all)
	head(b, "pods", "nodes", "GPUs", "seeds")
	for _, p := range ps {
		fmt.Fprintf(b, " %s: 100 %% | 130 %% |", p)
	}
	b.WriteString(" best published: 130 % |\n|---|" + strings.Repeat("---:|", 3+2*len(ps)+1) + "\n")
	keys, by := groups(all)
	for _, k := range keys {
		g := by[k]
		head(b, k.Trace, number(k.Nodes), number(anyOf(g).GPUs), g.seeds(ps))
		for _, p := range ps {
			fmt.Fprintf(b, " %s | %s |", mean(g[p], at100), mean(g[p], at130))
		}
		best := "–"
		if p, has := published[k.Trace]; has && k.Nodes == publishedNodes {
			best = fmt.Sprintf("%.2f", p)
		}
		fmt.Fprintf(b, " %s |\n", best)
	}
	b.WriteString("\n")
}

func churnTable(b *strings.Builder, all []result) {
	ps := policies(all)
	head(b, append([]string{"pods", "nodes", "requested", "arrivals", "seeds"}, ps...)...)
	b.WriteString("\n|---|" + strings.Repeat("---:|", 4+len(ps)) + "\n")
	keys, by := groups(all)
	for _, k := range keys {
		g := by[k]
		head(b, k.Trace, number(k.Nodes), fmt.Sprintf("%.0f %%", 100*k.Load), number(k.Pods), g.seeds(ps))
		for _, p := range ps {
			fmt.Fprintf(b, " %s |", mean(g[p], servedOf))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

func costTable(b *strings.Builder, all []result) {
	head(b, "nodes", "pods/s without the extender", "with it", "ratio", "scores within 10 ms",
		"answer p50", "p99", "controller's memory")
	b.WriteString("\n|" + strings.Repeat("---:|", 8) + "\n")
	for _, r := range all {
		without, with := overall(r.Without), overall(r.With)
		head(b, number(r.Nodes), fmt.Sprintf("%.1f", without), fmt.Sprintf("%.1f", with),
			fmt.Sprintf("%.2f", with/without), fmt.Sprintf("%.1f %%", 100*r.Fast),
			fmt.Sprintf("%.1f ms", milliseconds(r.P50)),
			fmt.Sprintf("%.1f ms", milliseconds(r.P99)), fmt.Sprintf("%.0f MiB", mebibytes(r.Memory)))
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// head writes the first cells of a row.
func head(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |")
}

func anyOf(g group) result {
	for _, p := range slices.Sorted(maps.Keys(g)) {
		return g[p][0]
	}
	return result{}
}

// number returns the number with a comma before the last three digits.
func number(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", number(n/1000), n%1000)
}

// overall returns the rate of all batches together, which have the same size: all pods by all of the time.
func overall(rates []float64) float64 {
	var took float64
	for _, r := range rates {
		took += 1 / r
	}
	return float64(len(rates)) / took
}

func milliseconds(d time.Duration) float64 { return 1000 * d.Seconds() }

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
