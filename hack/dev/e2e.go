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
}, audit: []string{"system:serviceaccount:gpu-dra-driver:gpu-dra-driver-kubelet-plugin"}}

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
	if err := prepareE2E(ctx); err != nil {
		return err
	}
	kubeconfig, err := e2eCluster.kubeconfig(ctx)
	if err != nil {
		return err
	}
	args := []string{"go", "test", "-count=1", "-v", "-tags", "e2e", "-timeout", "9m", "./test/e2e"}
	if pattern := os.Getenv("E2E_RUN"); pattern != "" {
		args = append(args, "-run", pattern)
	}
	program, err := filepath.Abs(clusterProgram)
	if err != nil {
		return err
	}
	auditLog := "E2E_AUDIT_COMMAND=" + program + " logs --name " + e2eCluster.name + " audit"
	return command{args: args, env: []string{"KUBECONFIG=" + kubeconfig, auditLog}}.attach(ctx)
}

func prepareE2E(ctx context.Context) error {
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
	if err := e2eCluster.load(ctx, archive); err != nil {
		return err
	}
	return e2eCluster.install(ctx, archive)
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
