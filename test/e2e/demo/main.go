// SPDX-License-Identifier: Apache-2.0

// Command demo applies every folder of demo/ to a cluster. For each it prints what was requested, what was allocated,
// and what the container saw. It exits with status 3 if an output differs from the folder's README, or did not come.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

type config struct {
	kubeconfig, dir, driver string
	patience                time.Duration
	only                    []string // names of folders; empty: all
}

// notAll is the exit status if not every demo is as its README says.
const notAll = 3

var errNotAll = errors.New("not every demo is as its README says")

func main() {
	var c config
	flag.StringVar(&c.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster; empty: $KUBECONFIG or the default place")
	flag.StringVar(&c.dir, "dir", "demo", "directory with the demos")
	flag.StringVar(&c.driver, "driver-name", "gpu.nvidia.com", "name of the DRA driver")
	flag.DurationVar(&c.patience, "patience", kube.Patience, "how long to wait for a demo while nothing new happens")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: demo [flags] [FOLDER...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	c.only = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, c)
	stop()
	switch {
	case errors.Is(err, errNotAll): // has been said
		os.Exit(notAll)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config) error {
	cluster, err := kube.Connect(c.kubeconfig)
	if err != nil {
		return err
	}
	all, err := demos.Load(c.dir)
	if err != nil {
		return err
	}
	selected, err := demos.Select(all, c.only)
	if err != nil {
		return err
	}
	// Objects of an earlier run would hold GPUs.
	if err := cluster.Empty(ctx, c.patience, demos.Namespaces(all)...); err != nil {
		return err
	}
	var s summary
	for _, demo := range selected {
		fmt.Printf("\n== %s\n", demo.Name)
		begun := time.Now()
		lines, err := c.show(ctx, cluster, demo, all)
		for _, line := range lines {
			if err == nil {
				line = meant(line)
			}
			fmt.Println(line)
		}
		s.add(demo, time.Since(begun), err)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errSkipped):
			fmt.Println(err)
		case err != nil:
			fmt.Println(err)
			for _, namespace := range demo.Namespaces() {
				fmt.Print(cluster.Diagnose(ctx, namespace))
			}
		}
	}
	fmt.Printf("\n%s", &s)
	if s.bad() > 0 {
		return errNotAll
	}
	return nil
}

// show runs a demo and returns its output.
func (c config) show(ctx context.Context, cluster *kube.Cluster, demo demos.Demo, all []demos.Demo) ([]string, error) {
	lacks, err := demo.Lacks(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if len(lacks) > 0 {
		return nil, fmt.Errorf("%w: the cluster lacks %s", errSkipped, strings.Join(lacks, ", "))
	}
	if err := demo.FreeGPUs(ctx, cluster, all, c.patience); err != nil {
		return nil, err
	}
	return demo.Run(ctx, cluster, c.driver, c.patience)
}
