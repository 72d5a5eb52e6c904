// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// target is a cluster with the images on its nodes: one of test/cluster, or any other, such as one of kind. What is done with it
// needs nothing but its kubeconfig.
type target struct {
	kubeconfig string
	helm       string
	audit      string // the command that prints the API server's audit log; empty: there is none
}

// errNoProfiles keeps us from a cluster that is not for simulated GPUs.
var errNoProfiles = errors.New("no node has the label " + profileLabel + ", which gives it simulated GPUs: is this the cluster you mean?")

// given returns the cluster of a kubeconfig that a user has named.
func given(ctx context.Context, kubeconfig string) (target, error) {
	kubeconfig, err := filepath.Abs(kubeconfig) // the tests run elsewhere
	if err != nil {
		return target{}, err
	}
	connection, err := kube.Connect(kubeconfig)
	if err != nil {
		return target{}, err
	}
	look, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var nodes corev1.NodeList
	if err := connection.List(look, &nodes, client.HasLabels{profileLabel}); err != nil {
		return target{}, fmt.Errorf("list nodes: %w", err)
	}
	if len(nodes.Items) == 0 {
		return target{}, fmt.Errorf("%s: %w", kubeconfig, errNoProfiles)
	}
	helm, err := findHelm(ctx)
	return target{kubeconfig: kubeconfig, helm: helm}, err
}

// findHelm prefers the helm that is installed: building one takes minutes.
func findHelm(ctx context.Context) (string, error) {
	if helm, err := exec.LookPath("helm"); err == nil {
		return helm, nil
	}
	if err := buildClusterProgram(ctx); err != nil {
		return "", err
	}
	dir, err := tools(ctx)
	return filepath.Join(dir, "helm"), err
}

// install installs the chart with simulated GPUs, or brings it up to date, and waits until the plugin is ready everywhere.
func (t target) install(ctx context.Context) error {
	say("installing the chart")
	if err := t.labelNodes(ctx); err != nil {
		return err
	}
	args := []string{t.helm, "upgrade", "--install", "gpu-dra-driver", "deployments/helm/gpu-dra-driver",
		"--namespace", "gpu-dra-driver", "--create-namespace", "--values", "demo/values.yaml",
		// Helm's other way to wait waits for a DaemonSet whose pods are not replaced, too: that of the MPS supervisor.
		"--wait=legacy", "--timeout", "2m", "--hide-notes"}
	digest, err := digest(archive)
	switch {
	case err == nil:
		// The tag stays the same while one works on the driver; this restarts plugin and controller when the image is another.
		args = append(args, "--set-string", "kubeletPlugin.podAnnotations.images="+digest, "--set-string", "controller.podAnnotations.images="+digest)
	case !errors.Is(err, fs.ErrNotExist): // the nodes may have the images from elsewhere
		return fmt.Errorf("read images: %w", err)
	}
	_, err = command{args: args, env: t.env()}.output(ctx)
	return err
}

// devicePlugin is the label by which nodes choose a file of the device plugin, and which of demo/values.yaml those with that profile
// choose.
var devicePlugin = struct{ profile, label, file string }{"l40s-x4", "nvidia.com/device-plugin.config", "time-sliced"}

// labelNodes lets nodes choose the configuration that demo/values.yaml has for them.
func (t target) labelNodes(ctx context.Context) error {
	connection, err := kube.Connect(t.kubeconfig)
	if err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := connection.List(ctx, &nodes, client.MatchingLabels{profileLabel: devicePlugin.profile}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		before := node.DeepCopy()
		node.Labels[devicePlugin.label] = devicePlugin.file
		if err := connection.Patch(ctx, node, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("label node %s: %w", node.Name, err)
		}
	}
	return nil
}

// byHand is what an administrator has done where demo/mig-static works: in the machine that has an A100 there is one more, in MIG mode
// and with a partition. A step is left out where its sign is in what simctl prints.
var byHand = struct {
	profile string
	steps   []step
}{"mixed", []step{
	{"gpu-c1-00-0", []string{"add", "--like", "gpu-81-00-0", "--pci", "0000:c1:00.0"}},
	{"mig=on", []string{"mig", "gpu-c1-00-0", "on"}},
	{"3g.20gb", []string{"partition", "gpu-c1-00-0", "create", "3g.20gb"}},
}}

type step struct {
	sign string
	args []string
}

// partition does it.
func (t target) partition(ctx context.Context) error {
	connection, err := kube.Connect(t.kubeconfig)
	if err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := connection.List(ctx, &nodes, client.MatchingLabels{profileLabel: byHand.profile}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	plugins, err := connection.Pods(ctx, "gpu-dra-driver", kube.PluginLabels)
	if err != nil {
		return err
	}
	for i := range plugins {
		plugin := &plugins[i]
		if plugin.DeletionTimestamp != nil || !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == plugin.Spec.NodeName }) {
			continue
		}
		for _, step := range byHand.steps {
			simctl := func(args ...string) (string, error) {
				return connection.Exec(ctx, client.ObjectKeyFromObject(plugin), append([]string{"/usr/bin/dra-kubelet-plugin", "simctl"}, args...)...)
			}
			machine, err := simctl("print")
			if err != nil {
				return err
			}
			if strings.Contains(machine, step.sign) {
				continue
			}
			if _, err := simctl(step.args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// runDemos applies every demo and compares it with its README.
func (t target) runDemos(ctx context.Context) error {
	say("applying the demos")
	return command{args: []string{demoRunner}, env: t.env()}.attach(ctx)
}

// runTests runs the end-to-end tests. It prints nothing after them when they succeed.
func (t target) runTests(ctx context.Context) error {
	tests := goTest("./test/e2e")
	tests.env = t.env()
	return tests.test(ctx)
}

func (t target) env() []string {
	env := []string{"KUBECONFIG=" + t.kubeconfig}
	if t.audit != "" {
		env = append(env, "E2E_AUDIT_COMMAND="+t.audit)
	}
	return env
}
