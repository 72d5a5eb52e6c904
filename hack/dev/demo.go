// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// archive is the image archive.
const archive = "_output/images.tar"

var demoCluster = cluster{name: "demo", profiles: map[string]string{
	"node-1": "dgx-h100", "node-2": "l40s-x4", "node-3": "mixed", "node-4": "a16-x4",
}}

// demoRunner is the binary of test/e2e/demo.
const demoRunner = bin + "/demo"

var buildDemoRunner = program("demo", "./test/e2e/demo")

// buildPlugin builds kubectl gpu with its version. kubectl finds it in PATH.
func buildPlugin() (command, error) {
	version, err := os.ReadFile("VERSION")
	flag := "-ldflags=-X main.version=" + strings.TrimSpace(string(version))
	return program("kubectl-gpu", "./kubectl-gpu", flag), err
}

// demosFailed is the exit status of test/e2e/demo if not every demo is as its README says.
const demosFailed = 3

// errDemos stands at the end, below what the demos say.
var errDemos = errors.New("not every demo is as its README says; the lines above \"Use it\" name them, with the reason")

// demo leaves the cluster running, also after a failure, for inspection.
func demo(ctx context.Context) error {
	if err := buildClusterProgram(ctx); err != nil {
		return err
	}
	if err := check(ctx); err != nil {
		return err
	}
	failure := startDemo(ctx)
	kubeconfig, err := demoCluster.kubeconfig(ctx)
	if ctx.Err() != nil || err != nil { // there is no cluster to explain
		return failure
	}
	return errors.Join(failure, explain(ctx, kubeconfig))
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
	if err := t.install(ctx); err != nil {
		return err
	}
	if err := t.partition(ctx); err != nil {
		return err
	}
	return t.runDemos(ctx)
}

// startDemo starts the cluster and runs the demos on it.
func startDemo(ctx context.Context) error {
	plugin, err := buildPlugin()
	if err != nil {
		return err
	}
	if err := sideBySide(ctx, demoCluster.ensure, buildDemoRunner, plugin); err != nil {
		return err
	}
	say("loading the images into the nodes")
	if err := demoCluster.load(ctx, archive); err != nil {
		return err
	}
	t, err := demoCluster.target(ctx)
	if err != nil {
		return err
	}
	if err := t.install(ctx); err != nil {
		return err
	}
	if err := errors.Join(t.partition(ctx), t.recovery(ctx, "none")); err != nil { // an earlier run left it sick
		return err
	}
	return errors.Join(t.runDemos(ctx), t.furnish(ctx))
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
	builder := program("container", "./deployments/container")
	if err := builder.run(ctx); err != nil {
		return err
	}
	return command{label: "images", args: []string{filepath.Join(bin, "container"), "-output",
		filepath.Dir(archive)}}.run(ctx)
}

// explain says what one can do with the cluster, also when demos have failed.
func explain(ctx context.Context, kubeconfig string) error {
	dir, err := tools(ctx)
	if err != nil {
		return err
	}
	programs, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	fmt.Print(useIt(kubeconfig, dir, programs))
	return nil
}

// useIt names the tools, and shows kubectl gpu first.
func useIt(kubeconfig string, path ...string) string {
	return fmt.Sprintf(`
The cluster is running. Use it:
  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl gpu ls                                 # every GPU, what is free, who has it, and one that is sick
  kubectl gpu why worker -n demo-unsatisfiable   # why a pod waits, and what would help
  kubectl gpu ui                                 # the same as a page in the browser
  kubectl get pods,resourceclaims -A
Try a demo by hand, once the GPUs that the last ones hold are free:
  kubectl get namespaces -o name | grep /demo- | xargs kubectl delete
  kubectl apply -f demo/mig-1g/
Run all demos again, on the same cluster:
  make demo
Stop it:
  make demo-down
`, kubeconfig, strings.Join(path, ":"))
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
