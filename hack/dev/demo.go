// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// archive is the image archive.
const archive = "_output/images.tar"

var demoCluster = cluster{name: "demo", profiles: map[string]string{
	"node-1": "dgx-h100", "node-2": "l40s-x4", "node-3": "mixed",
}}

// demoRunner is the binary of test/e2e/demo.
const demoRunner = "_output/bin/demo"

var buildDemoRunner = command{label: "demo", args: []string{"go", "build", "-o", demoRunner, "./test/e2e/demo"}}

// demo leaves the cluster running, also after a failure, for inspection.
func demo(ctx context.Context) (failure error) {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	if err := check(ctx); err != nil {
		return err
	}
	defer func() {
		if failure != nil && demoCluster.usable(context.WithoutCancel(ctx)) {
			say("the cluster is running: make demo tries again with it, make demo-down stops it")
		}
	}()
	if err := startDemo(ctx); err != nil {
		return err
	}
	t, err := demoCluster.target(ctx)
	if err != nil {
		return err
	}
	if err := showDemos(ctx, t); err != nil {
		return err
	}
	return explain(ctx, t.kubeconfig)
}

// demoOn runs the demos on an existing cluster that has the images, and leaves it running.
func demoOn(ctx context.Context, kubeconfig string) error {
	t, err := given(ctx, kubeconfig)
	if err != nil {
		return err
	}
	if err := buildDemoRunner.run(ctx); err != nil {
		return err
	}
	return showDemos(ctx, t)
}

func showDemos(ctx context.Context, t target) error {
	if err := t.install(ctx); err != nil {
		return err
	}
	if err := t.partition(ctx); err != nil {
		return err
	}
	return t.runDemos(ctx)
}

// startDemo returns when the cluster runs and its nodes have the images.
func startDemo(ctx context.Context) error {
	if err := sideBySide(ctx, demoCluster.ensure, buildDemoRunner); err != nil {
		return err
	}
	say("loading the images into the nodes")
	return demoCluster.load(ctx, archive)
}

func demoDown(ctx context.Context) error {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	return demoCluster.down(ctx)
}

// ensure reuses a running cluster if it is usable, and starts a new one otherwise.
func (c cluster) ensure(ctx context.Context) error {
	if c.usable(ctx) {
		say("cluster: %s is running already", c.name)
		return nil
	}
	if err := c.down(ctx); err != nil {
		return err
	}
	if err := c.up(ctx); err != nil {
		if down := c.down(ctx); down != nil {
			say("cluster: %v", down)
		}
		return err
	}
	return nil
}

func buildImages(ctx context.Context) error {
	return command{label: "images", args: []string{"go", "run", "./deployments/container", "-output",
		filepath.Dir(archive)}}.run(ctx)
}

func explain(ctx context.Context, kubeconfig string) error {
	dir, err := tools(ctx)
	if err != nil {
		return err
	}
	fmt.Println()
	say("the cluster is running")
	fmt.Printf(`
Use it:
  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl get resourceslices
  kubectl get pods,resourceclaims -A
Try a demo by hand, once the GPUs that the last ones hold are free:
  kubectl get namespaces -o name | grep /demo- | xargs kubectl delete
  kubectl apply -f demo/mig-1g/
Stop it:
  make demo-down
`, kubeconfig, dir)
	return nil
}

func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}
