// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// profileLabel selects the profile of a node's simulated GPUs.
const profileLabel = "gpu.nvidia.com/sim-profile"

// clusterProgram is the binary of test/cluster.
const clusterProgram = bin + "/cluster"

// cluster is a Kubernetes cluster that test/cluster runs on this machine.
type cluster struct {
	name     string
	profiles map[string]string // node → profile of simulated GPUs
	audit    []string          // users whose requests to the API server are logged
	flags    []string          // more flags of "up"
	// version of Kubernetes, see test/cluster; empty: the newest
	kubernetes string
}

// logs is the directory for what is left of a fresh cluster whose use fails, and of each test that fails.
func (c cluster) logs() (string, error) {
	// The tests run elsewhere.
	return filepath.Abs(filepath.Join("_output/logs", strings.TrimSuffix(c.name+"-"+c.kubernetes, "-")))
}

// buildClusterProgram compiles test/cluster, which is a module of its own.
func buildClusterProgram(ctx context.Context) error {
	output, err := filepath.Abs(clusterProgram)
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"go", "build", "-C", "test/cluster"}, sharedFlags, []string{"-o", output, "."})
	return command{label: "cluster", args: args, env: []string{"CGO_ENABLED=0"}}.run(ctx)
}

// check reports what this machine lacks for a cluster, before anything is built or started.
func check(ctx context.Context) error {
	_, err := command{args: []string{clusterProgram, "check"}}.output(ctx)
	return err
}

// fresh starts a new cluster with the images on its nodes and passes it to use. It runs beside in parallel with the
// start, and always stops the cluster at the end.
func (c cluster) fresh(ctx context.Context, beside command, use func(context.Context, target) error) error {
	return c.around(ctx, func(ctx context.Context) error {
		if err := sideBySide(ctx, c.up, beside); err != nil {
			return err
		}
		return c.load(ctx, archive)
	}, use)
}

// bare is fresh without images.
func (c cluster) bare(ctx context.Context, use func(context.Context, target) error) error {
	return c.around(ctx, c.up, use)
}

// around starts a new cluster, passes it to use, and always stops it at the end.
func (c cluster) around(ctx context.Context, start func(context.Context) error,
	use func(context.Context, target) error) (failure error) {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	if err := check(ctx); err != nil {
		return err
	}
	if err := c.down(ctx); err != nil { // left by an interrupted run
		return err
	}
	logs, err := c.logs()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(logs); err != nil { // of an earlier run
		return err
	}
	defer func() {
		if failure != nil {
			c.keepLogs(ctx, logs)
		}
		if err := c.down(ctx); err != nil && failure == nil {
			failure = err
		}
	}()
	if err := start(ctx); err != nil {
		return err
	}
	t, err := c.target(ctx)
	if err != nil {
		return err
	}
	return use(ctx, t)
}

// sideBySide starts a cluster while it builds the images, and then what else is needed.
func sideBySide(ctx context.Context, start func(context.Context) error, builds ...command) error {
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return start(workCtx) })
	work.Go(func() error {
		if err := buildImages(workCtx); err != nil {
			return err
		}
		for _, build := range builds {
			if err := build.run(workCtx); err != nil {
				return err
			}
		}
		return nil
	})
	return work.Wait()
}

// up starts the cluster. It first builds the components that are not cached, and the tools.
func (c cluster) up(ctx context.Context) error {
	build := []string{clusterProgram, "build", "--kubernetes", c.kubernetes}
	if err := (command{label: "cluster", args: build}).run(ctx); err != nil {
		return err
	}
	args := []string{clusterProgram, "up", "--name", c.name, "--nodes", strconv.Itoa(len(c.profiles)),
		"--kubernetes", c.kubernetes}
	for _, node := range slices.Sorted(maps.Keys(c.profiles)) {
		args = append(args, "--profile", node+"="+c.profiles[node])
	}
	for _, user := range c.audit {
		args = append(args, "--audit", user)
	}
	return command{label: "cluster", args: append(args, c.flags...)}.run(ctx)
}

// down stops the cluster if it runs and removes its files. It also works after ctx is cancelled.
func (c cluster) down(ctx context.Context) error {
	_, err := command{args: []string{clusterProgram, "down", "--name", c.name}}.output(context.WithoutCancel(ctx))
	return err
}

// load imports an image archive on every node.
func (c cluster) load(ctx context.Context, archive string) error {
	return command{label: "load", args: []string{clusterProgram, "load", "--name", c.name, archive}}.run(ctx)
}

// kubeconfig returns the path of the cluster's kubeconfig.
func (c cluster) kubeconfig(ctx context.Context) (string, error) {
	return command{args: []string{clusterProgram, "kubeconfig", "--name", c.name}}.output(ctx)
}

// target returns the cluster as a target.
func (c cluster) target(ctx context.Context) (target, error) {
	kubeconfig, err := c.kubeconfig(ctx)
	if err != nil {
		return target{}, err
	}
	dir, err := tools(ctx)
	if err != nil {
		return target{}, err
	}
	kubectl, err := filepath.EvalSymlinks(filepath.Join(dir, "kubectl"))
	if err != nil {
		return target{}, err
	}
	logs, err := c.logs()
	if err != nil {
		return target{}, err
	}
	t := target{kubeconfig: kubeconfig, logs: logs, helm: filepath.Join(dir, "helm"),
		scheduler: filepath.Join(filepath.Dir(kubectl), "kube-scheduler")} // both are of one component
	if len(c.audit) > 0 {
		program, err := filepath.Abs(clusterProgram) // the tests run elsewhere
		if err != nil {
			return target{}, err
		}
		t.audit = program + " logs --name " + c.name + " audit"
	}
	return t, nil
}

// tools returns the directory with kubectl and helm.
func tools(ctx context.Context) (string, error) {
	return command{args: []string{clusterProgram, "tools"}}.output(ctx)
}

// usable reports whether the cluster runs with all of its nodes. It waits until they are ready, however long that takes
// on this machine.
func (c cluster) usable(ctx context.Context) bool {
	if _, err := (command{args: []string{clusterProgram, "status", "--name", c.name}}).output(ctx); err != nil {
		return false // a part of it has ended
	}
	path, err := c.kubeconfig(ctx)
	if err != nil {
		return false
	}
	connection, err := kube.Connect(path)
	if err != nil {
		return false
	}
	var nodes corev1.NodeList
	err = kube.Until(ctx, kube.Patience, "nodes", func(ctx context.Context) (bool, string, error) {
		err := connection.List(ctx, &nodes)
		return err == nil && len(profiles(nodes.Items)) >= len(c.profiles), fmt.Sprint(profiles(nodes.Items)), err
	})
	return err == nil && maps.Equal(profiles(nodes.Items), c.profiles)
}

// profiles returns the profiles of the nodes that are ready, by node.
func profiles(nodes []corev1.Node) map[string]string {
	got := map[string]string{}
	for i := range nodes {
		if ready(&nodes[i]) {
			got[nodes[i].Name] = nodes[i].Labels[profileLabel]
		}
	}
	return got
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// keepLogs copies the logs of the machines, which the end of the cluster removes, and prints the ends of the driver's.
func (c cluster) keepLogs(ctx context.Context, logs string) {
	kubeconfig, err := c.kubeconfig(context.WithoutCancel(ctx))
	if err != nil {
		return // it was never started
	}
	dir := filepath.Join(logs, "cluster")
	err = os.MkdirAll(dir, 0o755)
	if err == nil {
		_, err = kube.CopyMachineLogs(filepath.Dir(kubeconfig), dir)
	}
	if err != nil {
		say("keep logs: %v", err)
	}
	fmt.Printf("\nthe ends of the driver's logs:\n%s", kube.Ends(dir, endLines))
	say("the cluster's logs are in %s, those of each failed test in folders beside it", dir)
}

// endLines is how many lines of each log are printed. CI keeps nothing but what is printed.
const endLines = 3
