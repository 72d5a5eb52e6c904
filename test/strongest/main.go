// SPDX-License-Identifier: Apache-2.0

// Command strongest requests the strongest GPU on random clusters and compares the scheduler's choice with the
// strongest free GPU. The nodes are a fleet; control plane, scheduler and controller are real. `make strongest` starts
// the cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
	"github.com/gpudra/gpu-dra-driver/test/page"
)

// setting selects how pods are placed: the scheduler profile and the number of ranks.
type setting struct {
	name      string
	scheduler string
	ranks     int
}

var settings = []setting{
	{"default scheduler, up to 4 ranks", "default-scheduler", 4},
	{"default scheduler, up to 8 ranks", "default-scheduler", 8},
	{"profile gpu-first, up to 8 ranks", "gpu-first", 8},
}

func main() {
	var (
		kubeconfig = flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "of the cluster")
		rounds     = flag.Int("rounds", 16, "random clusters for each setting")
		seed       = flag.Uint64("seed", 1, "of the random clusters")
		logs       = flag.String("scheduler-log", "", "command that prints the scheduler's log, written with "+
			"--vmodule=schedule_one=10, for the reasons of misses")
		docs = flag.String("docs", "", "file in which the part between the markers is replaced by the results")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, *kubeconfig, *rounds, *seed, strings.Fields(*logs), *docs)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "strongest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string, rounds int, seed uint64, logs []string, docs string) error {
	cluster, err := kube.Connect(kubeconfig)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	p := &runner{Cluster: cluster, config: config}
	var all []placement
	for i, s := range settings {
		if err := p.setRanks(ctx, s.ranks); err != nil {
			return err
		}
		for n := range rounds {
			// The same clusters for every setting.
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			models := 1 + n%len(gpus)
			placed, err := p.round(ctx, s, fmt.Sprintf("round-%d-%d", i, n), models, random)
			if err != nil {
				return errors.Join(fmt.Errorf("%s, round %d: %w", s.name, n, err), p.end(context.WithoutCancel(ctx)))
			}
			all = append(all, placed...)
		}
	}
	if len(logs) > 0 {
		if err := explain(ctx, logs, all); err != nil {
			return err
		}
	}
	text := report(all, rounds)
	fmt.Println(text)
	if docs == "" {
		return nil
	}
	return page.Insert(docs, "make strongest", page.Made(ctx, docs)+".\n\n"+text)
}
