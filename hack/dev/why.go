// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"os"
)

// whyCluster has one node without GPUs. The test adds others, which have no kubelet.
var whyCluster = cluster{name: "why", profiles: map[string]string{"node-1": "none"}}

// whyScheduler judges answers of kubectl gpu why with the scheduler of a fresh cluster. WHY_SCHEDULER is how many.
func whyScheduler(ctx context.Context) error {
	return whyCluster.bare(ctx, func(ctx context.Context, t target) error {
		// Most of the time a test waits for the scheduler.
		args := []string{"go", "test", "-count=1", "-v", "-timeout", "2h", "-parallel", "4", "-run",
			"TestRandomClaimsOnScheduler", "./internal/why"}
		env := append(t.env(), "WHY_SCHEDULER="+cmp.Or(os.Getenv("WHY_SCHEDULER"), "2000"),
			"WHY_PAGE=../../docs/project/results/why-judged.md") // go test runs in the folder of the package
		return command{args: args, env: env}.attach(ctx)
	})
}
