// SPDX-License-Identifier: Apache-2.0

// Command placement measures how many GPUs of a cluster a scheduler can use: pods of a trace arrive, and the real
// kube-scheduler places them on a fleet of simulated nodes, with its default scores and with those of this driver's
// controller. `make placement` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

var start = time.Now()

func say(format string, args ...any) {
	fmt.Printf("[%7.1fs] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
}

// options are the flags.
type options struct {
	programs, controller, classes string
	traces                        string // the folder; empty: generated
	names                         []string
	nodes                         int
	tests, policies               []string
	seeds                         []uint64
	loads                         []float64
	arrivals, outstanding         int
	results                       results
	docs                          string
}

func main() {
	o, err := parse(os.Args[1:])
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		err = o.run(ctx)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "placement:", err)
		os.Exit(1)
	}
}

// generatedNodes is the number of nodes of a generated trace, unless a flag says another.
const generatedNodes = 100

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("placement", flag.ExitOnError)
	f.StringVar(&o.programs, "programs", "", "folder with etcd, kube-apiserver and kube-scheduler")
	f.StringVar(&o.controller, "controller", "", "program dra-controller")
	f.StringVar(&o.classes, "classes", "", "file with the chart's device classes")
	f.StringVar(&o.traces, "trace", "", "folder of the trace openb; empty: a generated trace")
	names := f.String("names", "default", "pod lists of the folder, separated by commas")
	f.IntVar(&o.nodes, "nodes", 0, fmt.Sprintf("use a sample of so many nodes; 0: all; of a generated trace %d",
		generatedNodes))
	tests := f.String("tests", "fill,churn,rate", "fill: pods stay; churn: pods come and go; rate: pods per second")
	policies := f.String("policies", "default,pack", "default: the scheduler's own scores; pack, spread: with the "+
		"controller's")
	seeds := f.String("seeds", "1", "of the order of pods")
	loads := f.String("loads", "0.95,1.1", "of churn: requested GPUs, as a share of all")
	f.IntVar(&o.arrivals, "arrivals", 0, "of churn; 0: 25 for each node")
	f.IntVar(&o.outstanding, "outstanding", 8, "of fill: pods that wait for the scheduler at the same time")
	f.StringVar((*string)(&o.results), "results", "_output/placement", "folder with the results; runs that have one "+
		"are not repeated")
	f.StringVar(&o.docs, "docs", "", "page in which the tables are replaced")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.names, o.tests, o.policies = list(*names), list(*tests), list(*policies)
	for _, text := range strings.Split(*seeds, ",") {
		n, bad := strconv.ParseUint(text, 10, 64)
		if bad != nil {
			return o, fmt.Errorf("-seeds: want whole numbers separated by commas, got %q", *seeds)
		}
		o.seeds = append(o.seeds, n)
	}
	for _, text := range strings.Split(*loads, ",") {
		n, bad := strconv.ParseFloat(text, 64)
		if bad != nil || n <= 0 {
			return o, fmt.Errorf("-loads: want numbers above 0 separated by commas, got %q", *loads)
		}
		o.loads = append(o.loads, n)
	}
	return o, errors.Join(known("-tests", o.tests, testFill, testChurn, testRate),
		known("-policies", o.policies, policyDefault, policyPack, policySpread))
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// known returns an error if a value is none of those that are accepted.
func known(flag string, values []string, accepted ...string) error {
	for _, v := range values {
		if !slices.Contains(accepted, v) {
			return fmt.Errorf("%s: want some of %s, got %q", flag, strings.Join(accepted, ", "), v)
		}
	}
	return nil
}

// run runs everything that has no result yet, and prints all results.
func (o options) run(ctx context.Context) error {
	names := o.names
	if o.traces == "" {
		names = []string{""}
	}
	for _, name := range names {
		t, err := o.read(name)
		if err != nil {
			return err
		}
		if err := o.runTrace(ctx, t); err != nil {
			return fmt.Errorf("trace %s: %w", t.Name, err)
		}
	}
	return o.report(ctx)
}

// read returns the trace with a sample of its nodes.
func (o options) read(name string) (trace.Trace, error) {
	if o.traces == "" {
		count := o.nodes
		if count == 0 {
			count = generatedNodes
		}
		return trace.Generate(1, count), nil
	}
	t, err := trace.Read(o.traces, name)
	return t.Sample(o.nodes), err
}

func (o options) runTrace(ctx context.Context, t trace.Trace) error {
	keys := slices.DeleteFunc(o.keys(t), o.results.has)
	if len(keys) == 0 {
		return nil
	}
	l, err := newLab(ctx, o.programs, o.classes, t.Nodes)
	if err != nil {
		return err
	}
	defer func() { _ = l.close() }()
	r := runner{options: o, lab: l, trace: t}
	for _, k := range keys {
		res, err := r.run(ctx, k)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		if err := o.results.put(res); err != nil {
			return err
		}
		say("%s: %s", k, res.summary())
	}
	return nil
}

// keys returns the runs for the trace in their order: policies alternate, so that what was measured first can be
// compared.
func (o options) keys(t trace.Trace) (all []key) {
	arrivals := o.arrivals
	if arrivals == 0 {
		arrivals = 25 * len(t.Nodes)
	}
	for _, test := range o.tests {
		if test == testRate {
			all = append(all, key{Test: test, Trace: t.Name, Nodes: len(t.Nodes), Seed: o.seeds[0]})
			continue
		}
		loads, pods := o.loads, arrivals
		if test == testFill {
			loads, pods = []float64{0}, 0
		}
		for _, load := range loads {
			for _, seed := range o.seeds {
				for _, policy := range o.policies {
					all = append(all, key{test, t.Name, policy, len(t.Nodes), seed, load, pods})
				}
			}
		}
	}
	return all
}
