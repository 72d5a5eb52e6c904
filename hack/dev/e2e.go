// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
)

var e2eCluster = cluster{name: "e2e", profiles: map[string]string{
	"node-1": "dgx-h100", "node-2": "l40s-x4", "node-3": "workstation", "node-4": "mixed",
}, audit: []string{"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin",
	"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-controller"},
	flags: []string{"--runtime-config", "resource.k8s.io/v1beta1=true"}, // for clients of the older API
	logs:  "_output/e2e-logs"}

// e2e runs the end-to-end tests on a fresh cluster. It prints nothing after the tests when they succeed.
func e2e(ctx context.Context) error {
	return e2eCluster.fresh(ctx, command{label: "tests", args: []string{"go", "vet", "-tags", "e2e", "./test/e2e"}},
		test)
}

// survive runs the tests that start their own clusters. The images must exist.
func survive(ctx context.Context) error {
	return goTest("./test/e2e/survive").test(ctx)
}

// goTest runs the tests that $E2E_RUN selects, or all.
func goTest(pkg string) command {
	// Parallel tests mostly wait for the cluster, so the number of processors does not limit them.
	args := []string{"go", "test", "-count=1", "-v", "-tags", "e2e", "-timeout", "25m", "-parallel", "8", pkg}
	if pattern := os.Getenv("E2E_RUN"); pattern != "" {
		args = append(args, "-run", pattern)
	}
	return command{args: args}
}

// e2eOn runs the tests on an existing cluster that has the images, and leaves it running.
func e2eOn(ctx context.Context, kubeconfig string) error {
	t, err := given(ctx, kubeconfig)
	if err != nil {
		return err
	}
	return test(ctx, t)
}

func test(ctx context.Context, t target) error {
	if err := t.install(ctx); err != nil {
		return err
	}
	if err := t.partition(ctx); err != nil {
		return err
	}
	return t.runTests(ctx)
}
