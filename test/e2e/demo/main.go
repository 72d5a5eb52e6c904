// SPDX-License-Identifier: Apache-2.0

// Command demo applies every folder of demo/ to a cluster. For each it prints what was requested, what was allocated,
// and what the container saw. It exits with status 1 if an output differs from the folder's README.
package main

import (
	"context"
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
	timeout                 time.Duration
	only                    []string // names of folders; empty: all
}

func main() {
	var c config
	flag.StringVar(&c.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster; empty: $KUBECONFIG or the default place")
	flag.StringVar(&c.dir, "dir", "demo", "directory with the demos")
	flag.StringVar(&c.driver, "driver-name", "gpu.nvidia.com", "name of the DRA driver")
	flag.DurationVar(&c.timeout, "timeout", 30*time.Second, "time for each demo to become what its README says")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: demo [flags] [FOLDER...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	c.only = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, c)
	stop()
	if err != nil {
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
	if err := cluster.Empty(ctx, time.Minute, demos.Namespaces(all)...); err != nil {
		return err
	}
	different, skipped := 0, 0
	for _, demo := range selected {
		fmt.Printf("\n== %s\n", demo.Name)
		lacks, err := demo.Lacks(ctx, cluster)
		if err != nil {
			return err
		}
		if len(lacks) > 0 {
			skipped++
			fmt.Printf("skipped: the cluster lacks %s\n", strings.Join(lacks, ", "))
			continue
		}
		if err := demo.FreeGPUs(ctx, cluster, all, time.Minute); err != nil {
			return err
		}
		lines, err := demo.Run(ctx, cluster, c.driver, c.timeout)
		for _, line := range lines {
			fmt.Println(line)
		}
		if err != nil {
			different++
			fmt.Println(err)
			for _, namespace := range demo.Namespaces() {
				fmt.Print(cluster.Diagnose(ctx, namespace))
			}
		}
	}
	if different > 0 {
		return fmt.Errorf("%d of %d demos are not what their README says", different, len(selected))
	}
	fmt.Printf("\n%d demos, each as its README says\n", len(selected)-skipped)
	if skipped > 0 {
		fmt.Printf("%d demos skipped\n", skipped)
	}
	return nil
}
