// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

var e2eCluster = cluster{name: "e2e", profiles: map[string]string{
	"node-1": "dgx-h100", "node-2": "l40s-x4", "node-3": "workstation", "node-4": "mixed",
	"node-5": "a16-x4",
}, audit: []string{"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin",
	"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-remote",
	"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-controller"},
	flags: []string{"--runtime-config", "resource.k8s.io/v1beta1=true"}} // for clients of the older API

// e2e runs the end-to-end tests on a fresh cluster. It prints nothing after the tests when they succeed.
// E2E_KUBERNETES selects a version of Kubernetes by its title in docs/start/compatibility.md.
func e2e(ctx context.Context) error {
	run := newest
	if title := os.Getenv("E2E_KUBERNETES"); title != "" {
		i := slices.IndexFunc(kubernetesRuns, func(r kubernetesRun) bool { return r.title == title })
		if i < 0 {
			return fmt.Errorf("E2E_KUBERNETES: want the title of a column of %s, got %q", versionsPage, title)
		}
		run = kubernetesRuns[i]
	}
	return run.test(ctx, os.Getenv("E2E_RUN"))
}

// oldestTests are those that make test runs on the oldest version of Kubernetes.
const oldestTests = "TestCluster/(every_demo|devices_are|the_fields_of_a_claim|each_claim|" +
	"a_container_reaches|the_claim's_status|the_webhook)"

// oldest runs some end-to-end tests on the oldest version of Kubernetes, with its default feature gates.
func oldest(ctx context.Context) error { return kubernetesRuns[0].test(ctx, oldestTests) }

// test runs the end-to-end tests that match the pattern, or all, on a fresh cluster. Their output also goes to the
// writers.
func (r kubernetesRun) test(ctx context.Context, pattern string, also ...io.Writer) error {
	c := e2eCluster
	c.kubernetes = r.version
	if r.gates != "" {
		c.flags = append(slices.Clone(c.flags), "--feature-gates", r.gates)
	}
	if r.apis != "" {
		c.flags = append(slices.Clone(c.flags), "--runtime-config", r.apis)
	}
	vet := command{label: "tests", args: []string{"go", "vet", "-tags", "e2e", "./test/e2e"}}
	return c.fresh(ctx, vet, func(ctx context.Context, t target) error { return t.test(ctx, pattern, also...) })
}

// survive runs the tests that start their own clusters. The images must exist.
func survive(ctx context.Context) error {
	logs, err := filepath.Abs("_output/logs/survive")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(logs); err != nil { // of an earlier run
		return err
	}
	tests := goTest("./test/e2e/survive", os.Getenv("E2E_RUN"))
	tests.env = []string{kube.LogsVariable + "=" + logs}
	if err = tests.test(ctx); err == nil {
		return nil
	}
	// Tests that were interrupted, or ran out of time, leave their clusters.
	if err := buildClusterProgram(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	for _, name := range []string{"nodes", "installation", "gates"} {
		err = errors.Join(err, cluster{name: "survive-" + name}.down(ctx))
	}
	return err
}

// goTest runs the tests that match the pattern, or all.
func goTest(pkg, pattern string) command {
	// Parallel tests mostly wait for the cluster, so the number of processors does not limit them. Each wait ends when
	// nothing happens any more, so the time of all is only for what hangs otherwise.
	args := []string{"go", "test", "-count=1", "-v", "-tags", "e2e", "-timeout", "2h", "-parallel", "10", pkg}
	if pattern != "" {
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
	return t.test(ctx, os.Getenv("E2E_RUN"))
}

// test installs the driver and runs the end-to-end tests that match the pattern, or all. It prints nothing after them
// when they succeed.
func (t target) test(ctx context.Context, pattern string, also ...io.Writer) error {
	if err := t.install(ctx); err != nil {
		return err
	}
	if err := t.partition(ctx); err != nil {
		return err
	}
	tests := goTest("./test/e2e", pattern)
	tests.env = t.env()
	return tests.test(ctx, also...)
}
