// SPDX-License-Identifier: Apache-2.0

// The replay compares scores of nodes in a simulated cluster: how much of the GPUs pods hold when more arrive than fit,
// and how much of what they request they get while pods come and go. It has no scheduler, claims or slices, so it takes
// minutes for a thousand nodes.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/gpudra/gpu-dra-driver/test/page"
	"github.com/gpudra/gpu-dra-driver/test/placement/sim"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// command is in the mark of the page that -write changes.
const command = "go run ./test/placement/replay"

func main() {
	log.SetFlags(0)
	folder := flag.String("trace", "", "folder of the trace's CSV files; without it, a trace is generated")
	seeds := flag.Int("seeds", 3, "number of runs of each policy")
	first := flag.Uint64("first", 1, "seed of the first run")
	names := flag.String("names", "", "pod lists of the folder, separated by commas; without it, all")
	nodes := flag.Int("nodes", 0, "number of nodes, an even sample; 0 for all")
	cpu := flag.Float64("cpu", 1, "part of each node's CPU that there is")
	memory := flag.Float64("memory", 1, "part of each node's host memory that there is")
	arrivals := flag.Int("arrivals", 30_000, "number of pods of a run of churn")
	write := flag.String("write", "", "page that gets the table, between its marks; without it, the table is printed")
	flag.Parse()
	if *seeds < 2 || flag.NArg() > 0 {
		log.Fatalf("-seeds %d, arguments %q: at least 2 seeds, and no arguments, are accepted", *seeds, flag.Args())
	}
	traces, err := read(*folder, *names)
	if err != nil {
		log.Fatal(err)
	}
	for i := range traces {
		traces[i] = traces[i].Sample(*nodes).Scale(*cpu, *memory)
	}
	text := table(traces, *first, *seeds, *arrivals)
	if *write == "" {
		_, _ = os.Stdout.WriteString(text)
		return
	}
	if err := page.Insert(*write, command, page.Made(context.Background(), *write)+".\n\n"+text); err != nil {
		log.Fatal(err)
	}
}

func read(folder, list string) ([]trace.Trace, error) {
	if folder == "" {
		return []trace.Trace{trace.Generate(1, 400)}, nil
	}
	names, err := trace.Names(folder)
	if err != nil {
		return nil, err
	}
	if list != "" {
		names = strings.Split(list, ",")
	}
	var traces []trace.Trace
	for _, name := range names {
		t, err := trace.Read(folder, name)
		if err != nil {
			return nil, err
		}
		traces = append(traces, t)
	}
	return traces, nil
}

// policies are the rows of a trace, in this order.
var policies = []sim.Policy{sim.Default, sim.BestFit, sim.Tight, sim.Simple, sim.Pack}

// published are the figures of the paper's repository for its policy FGD, when pods for 130 % of the GPUs have arrived.
var published = map[string]string{
	"default": "95.39", "cpu200": "95.05", "gpushare100": "86.90", "gpuspec33": "94.55", "multigpu50": "97.18",
}

// columns are what is measured: the results of each run, in percent.
const columns = 4

func run(t trace.Trace, p sim.Policy, seed uint64, arrivals int) (result [columns]float64) {
	result[0], result[1] = sim.Fill(t, p, seed)
	result[2] = sim.Churn(t, p, seed, 0.95, arrivals)
	result[3] = sim.Churn(t, p, seed, 1.1, arrivals)
	return result
}

// table runs each policy with each trace and returns the results as Markdown.
func table(traces []trace.Trace, first uint64, seeds, arrivals int) string {
	results := make([][columns]float64, len(traces)*len(policies)*seeds)
	var running sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range results {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			results[i] = run(traces[i/seeds/len(policies)], policies[i/seeds%len(policies)], first+uint64(i%seeds),
				arrivals)
		})
	}
	running.Wait()
	var out strings.Builder
	out.WriteString("| trace | score | fill, 100 % | fill, 130 % | churn, load 0.95 | churn, load 1.1 |\n")
	out.WriteString("|---|---|---|---|---|---|\n")
	for i, t := range traces {
		for j, p := range policies {
			fmt.Fprintf(&out, "| %s | %s |", t.Name, p.Name)
			for column := range columns {
				mean, deviation := statistics(results[(i*len(policies)+j)*seeds:][:seeds], column)
				fmt.Fprintf(&out, " %.2f ± %.2f |", mean, deviation)
			}
			out.WriteString("\n")
		}
		if figure, ok := published[t.Name]; ok {
			fmt.Fprintf(&out, "| %s | FGD, the paper's figure | | %s | | |\n", t.Name, figure)
		}
	}
	return out.String()
}

// statistics returns the mean of a column and the standard deviation of one run.
func statistics(results [][columns]float64, column int) (mean, deviation float64) {
	n := float64(len(results))
	for _, r := range results {
		mean += r[column] / n
	}
	for _, r := range results {
		deviation += (r[column] - mean) * (r[column] - mean) / (n - 1)
	}
	return mean, math.Sqrt(deviation)
}
