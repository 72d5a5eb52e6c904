// SPDX-License-Identifier: Apache-2.0

// Command dev implements `make demo`, `make demo-down`, `make test-e2e`, `make test-oldest`, `make test-versions`,
// `make test-survive`, `make strongest`, `make placement`, `make scale`, `make why-scheduler`, `make bench`,
// `make timeline`, `make compare`, `make conformance` and `make chaos`: it starts a cluster, builds the images,
// installs the chart and runs the tests. Run it in the repository root.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `usage: dev demo|demo-down|e2e [-kubeconfig FILE]
       dev oldest|versions|survive|bench|timeline|compare|strongest|placement|scale|why|conformance|chaos

  demo        start the cluster "demo" (or use the one that runs), install the driver, apply every demo
  demo-down   stop the cluster "demo"
  e2e         run the end-to-end tests on a fresh cluster "e2e" and stop it; E2E_RUN selects tests by a pattern
              E2E_KUBERNETES="1.34 with alpha gates" runs them on that Kubernetes, a column of docs/start/compatibility.md
  oldest      run some end-to-end tests on the oldest version of Kubernetes
  versions    run the end-to-end tests on every version and write docs/start/compatibility.md; VERSIONS selects by a pattern
  survive     crash, kill, upgrade and remove the driver on clusters of its own; E2E_RUN selects tests by a pattern
  bench       measure the driver on a fresh cluster "bench" and stop it; BENCH_ROWS selects by a pattern
  timeline    measure the parts of a pod's start on a fresh cluster "bench" and stop it
  compare     measure the driver beside NVIDIA's, without a cluster; PEER is NVIDIA's GPU kubelet plugin
  strongest   ask for the strongest GPU on random fleets and compare with what was free, on a fresh cluster "strongest"
  placement   place the pods of a trace with kube-scheduler, without and with the controller's scores; TRACE is the
              folder of a trace, PLACEMENT has flags of test/placement
  scale       measure large clusters on control planes without nodes; SCALE has flags of test/scale
  conformance run test/conformance with this driver on a fresh cluster "conformance"
  why         put answers of kubectl gpu why to the scheduler of a fresh cluster "why"
  chaos       break a fresh cluster "chaos" while pods come and go, CHAOS_FOR=3m as CHAOS_SEED=1 decides

  -kubeconfig FILE   install, apply and test on this cluster, which has the images and the profiles; leave it running
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var verb, kubeconfig string
	switch {
	case len(args) == 1:
		verb = args[0]
	case len(args) == 3 && args[1] == "-kubeconfig" && args[2] != "":
		verb, kubeconfig = args[0]+" on", args[2]
	}
	switch verb {
	case "demo":
		return demo(ctx)
	case "demo on":
		return demoOn(ctx, kubeconfig)
	case "demo-down":
		return demoDown(ctx)
	case "e2e":
		return e2e(ctx)
	case "e2e on":
		return e2eOn(ctx, kubeconfig)
	case "oldest":
		return oldest(ctx)
	case "versions":
		return versions(ctx)
	case "survive":
		return survive(ctx)
	case "bench":
		return bench(ctx)
	case "timeline":
		return timeline(ctx)
	case "compare":
		return compare(ctx)
	case "strongest":
		return strongest(ctx)
	case "placement":
		return placement(ctx)
	case "scale":
		return scale(ctx)
	case "conformance":
		return conform(ctx)
	case "why":
		return whyScheduler(ctx)
	case "chaos":
		return chaos(ctx)
	}
	return fmt.Errorf("%s", strings.TrimSpace(usage))
}
