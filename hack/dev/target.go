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

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// target is a cluster with the images on its nodes: one of test/cluster or any other, for example of kind. It is used
// only through its kubeconfig.
type target struct {
	kubeconfig string
	helm       string
	logs       string // the directory for the logs of failed tests; empty: the default of the tests
	audit      string // the command that prints the API server's audit log; empty: there is none
	scheduler  string // the newest kube-scheduler that test/cluster builds; empty: there is none on this machine
}

// errNoProfiles protects clusters that are not for simulated GPUs.
var errNoProfiles = errors.New("no node has the label " + profileLabel +
	", which gives it simulated GPUs: is this the cluster you mean?")

// given returns the target of a kubeconfig that the user passed.
func given(ctx context.Context, kubeconfig string) (target, error) {
	kubeconfig, err := filepath.Abs(kubeconfig) // the tests run elsewhere
	if err != nil {
		return target{}, err
	}
	connection, err := kube.Connect(kubeconfig)
	if err != nil {
		return target{}, err
	}
	look, cancel := context.WithTimeout(ctx, kube.Patience) // for a server that does not answer at all
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

// findHelm prefers an installed Helm 4, because building one takes minutes.
func findHelm(ctx context.Context) (string, error) {
	if helm, ok := installedHelm(ctx); ok {
		return helm, nil
	}
	if err := buildClusterProgram(ctx); err != nil {
		return "", err
	}
	dir, err := tools(ctx)
	return filepath.Join(dir, "helm"), err
}

func installedHelm(ctx context.Context) (path string, isHelm4 bool) {
	path, err := exec.LookPath("helm")
	if err != nil {
		return "", false
	}
	version, err := command{args: []string{path, "version", "--short"}}.output(ctx)
	return path, err == nil && strings.HasPrefix(version, "v4.")
}

// install installs or upgrades the chart with simulated GPUs, with more arguments for Helm, and waits until the plugin
// is ready on all nodes.
func (t target) install(ctx context.Context, more ...string) error {
	say("installing the chart")
	if err := t.labelNodes(ctx); err != nil {
		return err
	}
	args := []string{t.helm, "upgrade", "--install", "gpu-dra-driver", "deployments/helm/gpu-dra-driver",
		"--namespace", "gpu-dra-driver", "--create-namespace", "--values", "demo/values.yaml",
		"--hide-notes"} // it does not wait: its waits have a fixed time
	args = append(args, more...)
	digest, err := digest(archive)
	switch {
	case err == nil:
		// During development the tag stays the same. The digest restarts the plugin and the controller when the image
		// changes.
		args = append(args, "--set-string", "kubeletPlugin.podAnnotations.images="+digest, "--set-string",
			"controller.podAnnotations.images="+digest)
	case !errors.Is(err, fs.ErrNotExist): // the nodes may have the images from elsewhere
		return fmt.Errorf("read images: %w", err)
	}
	if _, err = (command{args: args, env: t.env()}).output(ctx); err != nil {
		return err
	}
	return t.await(ctx)
}

// await returns when the pods of the chart are ready, however long that takes on this machine. Those of the MPS
// supervisor's DaemonSet are not replaced by an upgrade.
func (t target) await(ctx context.Context) error {
	connection, err := kube.Connect(t.kubeconfig)
	if err != nil {
		return err
	}
	return connection.WaitRollout(ctx, kube.Patience, "gpu-dra-driver")
}

// devicePlugin is the label by which nodes select a configuration file of the device plugin, and the file of
// demo/values.yaml that nodes with that profile select.
var devicePlugin = struct{ profile, label, file string }{"l40s-x4", "nvidia.com/device-plugin.config", "time-sliced"}

// labelNodes lets nodes select the configuration that demo/values.yaml has for them.
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

// staticMIG is the setup that an administrator does for demo/mig-static: the machine with an A100 gets a second one in
// MIG mode with a partition. A step is skipped if the output of simctl contains its sign.
var staticMIG = struct {
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

// partition runs the steps of staticMIG.
func (t target) partition(ctx context.Context) error {
	return t.simulate(ctx, staticMIG.profile, func(simctl simctl) error {
		for _, step := range staticMIG.steps {
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
		return nil
	})
}

// stay are the demos that run once more at the end, so that there is something to look at. A demo that must be alone on
// the cluster ends those before it.
var stay = []string{"fractions", "mig-two-profiles", "nvlink-pair", "shared-claim", "unsatisfiable"}

// sickGPU is a GPU that is sick when all demos have run, on the machine with that profile.
var sickGPU = struct{ profile, name string }{"l40s-x4", "gpu-38-00-0"}

// furnish leaves a cluster that shows something: shares, partitions, a pod that waits, and a sick GPU.
func (t target) furnish(ctx context.Context) error {
	say("for you to look at: %s, and a sick GPU", strings.Join(stay, ", "))
	if _, err := (command{args: append([]string{demoRunner}, stay...), env: t.env()}).output(ctx); err != nil {
		return err
	}
	return t.recovery(ctx, "reset")
}

// recovery sets what NVML says must be done with the sick GPU.
func (t target) recovery(ctx context.Context, action string) error {
	return t.simulate(ctx, sickGPU.profile, func(simctl simctl) error {
		_, err := simctl("health", sickGPU.name, "recovery-action="+action)
		return err
	})
}

// simctl changes the simulated machine of a node.
type simctl func(args ...string) (string, error)

// simulate calls do for each node with that profile.
func (t target) simulate(ctx context.Context, profile string, do func(simctl) error) error {
	connection, err := kube.Connect(t.kubeconfig)
	if err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := connection.List(ctx, &nodes, client.MatchingLabels{profileLabel: profile}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	plugins, err := connection.Pods(ctx, "gpu-dra-driver", kube.PluginLabels)
	if err != nil {
		return err
	}
	for i := range plugins {
		plugin := &plugins[i]
		if plugin.DeletionTimestamp != nil || !slices.ContainsFunc(nodes.Items,
			func(n corev1.Node) bool { return n.Name == plugin.Spec.NodeName }) {
			continue
		}
		if err := do(func(args ...string) (string, error) {
			return connection.Simctl(ctx, client.ObjectKeyFromObject(plugin), args...)
		}); err != nil {
			return err
		}
	}
	return nil
}

// runDemos applies every demo and compares it with its README.
func (t target) runDemos(ctx context.Context) error {
	say("applying the demos")
	err := command{args: []string{demoRunner}, env: t.env()}.attach(ctx)
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == demosFailed {
		return errDemos
	}
	return err
}

func (t target) env() []string {
	env := []string{"KUBECONFIG=" + t.kubeconfig}
	if t.logs != "" {
		env = append(env, kube.LogsVariable+"="+t.logs)
	}
	if t.audit != "" {
		env = append(env, "E2E_AUDIT_COMMAND="+t.audit)
	}
	if t.scheduler != "" {
		env = append(env, "E2E_KUBE_SCHEDULER="+t.scheduler, "HELM="+t.helm)
	}
	return env
}
