// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
)

var e2eCluster = cluster{name: "e2e", profiles: map[string]string{
	"node-1": "dgx-h100", "node-2": "l40s-x4", "node-3": "workstation", "node-4": "mixed",
}, audit: []string{"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin", "system:serviceaccount:gpu-dra-driver:gpu-dra-driver-controller"},
	flags: []string{"--runtime-config", "resource.k8s.io/v1beta1=true"}} // for clients that know no newer one

// e2eLogs is where the cluster's logs are kept after a failure.
const e2eLogs = "_output/e2e-logs"

// e2e always stops the cluster. It prints nothing after the tests when they succeed.
func e2e(ctx context.Context) (failure error) {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	if err := check(ctx); err != nil {
		return err
	}
	if err := e2eCluster.down(ctx); err != nil { // what an interrupted run left
		return err
	}
	defer func() {
		if failure != nil {
			keepLogs(ctx)
		}
		if err := e2eCluster.down(ctx); err != nil && failure == nil {
			failure = err
		}
	}()
	if err := startE2E(ctx); err != nil {
		return err
	}
	t, err := e2eCluster.target(ctx)
	if err != nil {
		return err
	}
	return test(ctx, t)
}

// survive runs the tests that start clusters of their own. The images must be there.
func survive(ctx context.Context) error {
	args := []string{"go", "test", "-count=1", "-v", "-tags", "e2e", "-timeout", "25m", "./test/e2e/survive"}
	if pattern := os.Getenv("E2E_RUN"); pattern != "" {
		args = append(args, "-run", pattern)
	}
	return command{args: args}.test(ctx)
}

// e2eOn runs the tests on a cluster that has the images. It stays as it is.
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

// startE2E returns when the cluster runs and its nodes have the images.
func startE2E(ctx context.Context) error {
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return e2eCluster.up(workCtx) })
	work.Go(func() error {
		if err := buildImages(workCtx); err != nil {
			return err
		}
		return command{label: "tests", args: []string{"go", "vet", "-tags", "e2e", "./test/e2e"}}.run(workCtx)
	})
	if err := work.Wait(); err != nil {
		return err
	}
	return e2eCluster.load(ctx, archive)
}

// keepLogs saves what the components have printed, so that a failure can be understood when the cluster is gone.
func keepLogs(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if _, err := e2eCluster.kubeconfig(ctx); err != nil {
		return // it never ran
	}
	if err := os.MkdirAll(e2eLogs, 0o755); err != nil {
		say("keep logs: %v", err)
		return
	}
	components := []string{"kube-apiserver", "kube-scheduler", "kube-controller-manager"}
	for _, node := range slices.Sorted(maps.Keys(e2eCluster.profiles)) {
		components = append(components, node+"/kubelet", node+"/containerd")
	}
	for _, component := range components {
		text, err := command{args: []string{clusterProgram, "logs", "--name", e2eCluster.name, component}}.output(ctx)
		if err != nil {
			say("keep logs: %v", err)
			continue
		}
		file := filepath.Join(e2eLogs, filepath.Base(filepath.Dir(component))+"-"+filepath.Base(component)+".log")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			say("keep logs: %v", err)
		}
	}
	say("the cluster's logs are in %s", e2eLogs)
}
