// SPDX-License-Identifier: Apache-2.0

// Command scale measures large clusters: how long their nodes take to publish their devices, how many pods a second the
// scheduler binds, and what a restart of all plugins costs the API server. The nodes are a fleet; API server,
// controllers and scheduler are real. `make scale` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

var start = time.Now()

func say(format string, args ...any) {
	fmt.Printf("[%7.1fs] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
}

// options are the flags.
type options struct {
	programs
	parts                *regexp.Regexp
	nodes, batch, rounds int
	fleets               []fleetSize
	results, docs        string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("scale", flag.ExitOnError)
	f.StringVar(&o.kubernetes, "programs", "", "folder with the programs of Kubernetes")
	f.StringVar(&o.controller, "controller", "", "program dra-controller")
	f.StringVar(&o.classes, "classes", "", "file with the chart's device classes")
	parts := f.String("parts", "", "pattern: only measure these parts; the page gets the others from -results")
	f.IntVar(&o.nodes, "nodes", 500, "nodes on which pods are placed")
	f.IntVar(&o.batch, "batch", 100, "pods that are placed at once")
	f.IntVar(&o.rounds, "rounds", 3, "batches of each kind of pod")
	partitioned := f.Int("partitioned", 1000, "nodes, once with partitions on demand and once with all")
	most := f.Int("most", 5000, "nodes with partitions on demand; each takes memory of this program "+
		"while all plugins are restarted at once")
	f.StringVar(&o.results, "results", "_output/scale", "folder with the results of each part")
	f.StringVar(&o.docs, "docs", "", "page in which the tables are replaced")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err error
	if o.parts, err = regexp.Compile(*parts); err != nil {
		return fmt.Errorf("-parts: %w", err)
	}
	if o.nodes < 20 || o.batch < 1 || o.batch > o.nodes/5 || o.rounds < 1 {
		return fmt.Errorf("want -nodes 20 or more, -batch 1 to a fifth of them, -rounds 1 or more: got %d, %d, %d",
			o.nodes, o.batch, o.rounds)
	}
	o.fleets = []fleetSize{{*partitioned, gpu.PartitionsOnDemand, true}, {*partitioned, gpu.PartitionsDynamic, false},
		{*most, gpu.PartitionsOnDemand, true}}
	if err := o.measure(ctx); err != nil {
		return err
	}
	return o.report(ctx)
}

// searchPart is the name of the part that needs no control plane.
const searchPart = "search of one node"

// fleetSize is a fleet whose publishing is measured.
type fleetSize struct {
	nodes      int
	partitions gpu.Partitions
	restarts   bool // the plugins of all nodes are restarted
}

func (f fleetSize) name() string {
	if f.partitions == gpu.PartitionsOnDemand {
		return fmt.Sprintf("%d nodes, partitions on demand", f.nodes)
	}
	return fmt.Sprintf("%d nodes, all partitions", f.nodes)
}

// measure measures the parts that are selected.
func (o options) measure(ctx context.Context) error {
	if err := o.part(searchPart, func() (any, error) { return o.search(ctx) }); err != nil {
		return err
	}
	for _, l := range layouts {
		err := o.part(l.name, func() (any, error) { return l.measure(ctx, o.programs, o.nodes, o.batch, o.rounds) })
		if err != nil {
			return err
		}
	}
	for _, f := range o.fleets {
		err := o.part(f.name(), func() (any, error) { return f.measure(ctx, o.programs) })
		if err != nil {
			return err
		}
	}
	return nil
}

// part measures a part, if it is selected, and keeps its result in a file.
func (o options) part(name string, measure func() (any, error)) error {
	if !o.parts.MatchString(name) {
		return nil
	}
	result, err := measure()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	text, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(o.results, 0o755), os.WriteFile(o.file(name), text, 0o600))
}

func (o options) file(name string) string {
	return filepath.Join(o.results, regexp.MustCompile(`\W+`).ReplaceAllString(name, "-")+".json")
}
