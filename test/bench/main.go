// SPDX-License-Identifier: Apache-2.0

// Command bench measures the driver on a cluster that test/cluster runs on this machine, and prints the results as a
// table. `make bench` starts such a cluster, with one node and 8 simulated GPUs, and installs the chart. It reads the
// node's processes from the host, so it needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/page"
)

func main() {
	var (
		kubeconfig = flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "of the cluster")
		docs       = flag.String("docs", "", "file in which the part between the markers is replaced by the results")
		picture    = flag.String("timeline", "", "measure the start of pods alone: write the picture to this file and "+
			"the table to -docs")
		peer = flag.String("peer", "", "NVIDIA's GPU kubelet plugin, gpu-kubelet-plugin: compare this driver with it, "+
			"without a cluster, and write the table to -docs")
		kubernetes = flag.String("programs", "", "folder with etcd and kube-apiserver, for -peer")
		only       = flag.String("rows", "", "measure what matches this pattern; \"list\" names what there is")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var err error
	if *peer != "" {
		err = comparePeer(ctx, *kubernetes, *peer, *docs)
	} else {
		err = run(ctx, *kubeconfig, *docs, *picture, *only)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, docs, picture, only string) error {
	if only == "list" {
		for _, m := range measurements {
			fmt.Println(m.name)
		}
		return nil
	}
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	if !slices.ContainsFunc(measurements, func(m measurement) bool { return pattern.MatchString(m.name) }) {
		return fmt.Errorf(`-rows: got %q, want a pattern for some of what -rows list names`, only)
	}
	if docs != "" && only != "" {
		return errors.New("-docs wants all rows, -rows selects some")
	}
	b, err := newBench(ctx, kubeconfig)
	if err != nil {
		return err
	}
	if picture != "" {
		return errors.Join(timeline(ctx, b, docs, picture), b.cleanUp(ctx))
	}
	for _, m := range measurements {
		if !pattern.MatchString(m.name) {
			continue
		}
		begin := time.Now()
		if err := m.measure(ctx, b); err != nil {
			fmt.Println(b.report("Incomplete:")) // the run took minutes, so print the results so far
			return errors.Join(fmt.Errorf("%s: %w", m.name, err), b.cleanUp(ctx))
		}
		fmt.Printf("[%5.1fs] %s\n", time.Since(begin).Seconds(), m.name)
	}
	if err := b.cleanUp(ctx); err != nil {
		return err
	}
	text := b.report(thisMachine(ctx, b, benchDocs))
	fmt.Println()
	fmt.Println(strings.TrimSpace(text))
	if docs == "" {
		return nil
	}
	return page.Insert(docs, "make bench", text)
}
