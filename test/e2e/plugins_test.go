//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// plugin returns the driver's plugin pod on a node.
func (s *suite) plugin(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	err := kube.Until(t.Context(), soon, "a ready plugin on "+node, func(ctx context.Context) (bool, string, error) {
		pods, err := s.Pods(ctx, "", kube.PluginLabels)
		for i := range pods {
			if p := &pods[i]; p.Spec.NodeName == node && p.DeletionTimestamp == nil && podReady(p) {
				found = p
			}
		}
		return found != nil, fmt.Sprintf("%d plugin pods", len(pods)), err
	})
	s.must(t, err)
	return found
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// restartPlugin deletes the plugin pod on a node and waits until the next one is ready.
func (s *suite) restartPlugin(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	s.must(t, s.Delete(t.Context(), s.plugin(t, node)))
	return s.plugin(t, node)
}

// simctl changes the simulated GPUs of the plugin's node.
func (s *suite) simctl(t *testing.T, plugin *corev1.Pod, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	output, err := s.Simctl(ctx, client.ObjectKeyFromObject(plugin), args...)
	s.must(t, err)
	return output
}

// idle checks that slices are not written without a reason.
type idle struct {
	*suite
	node    string
	before  string // its slices
	started time.Time
}

// wipingDelay is how long the kubelet waits for a plugin that has gone before it deletes the slices.
const wipingDelay = 30 * time.Second

// restDuration is longer than the resync period of slice controllers.
const restDuration = time.Minute

// startIdle records the slices of a node whose GPUs no test breaks or gives to virtual machines, and restarts the
// plugin there. The node publishes all possible partitions until t ends: on demand, claims change what it publishes.
func (s *suite) startIdle(t *testing.T) *idle {
	t.Helper()
	i := &idle{suite: s, node: s.node(t, "dgx-h100")}
	lacks, err := s.Lacks(t.Context(), "DRAPartitionableDevices")
	s.must(t, err)
	if len(lacks) == 0 {
		t.Cleanup(func() { s.configure(t, i.node, "null") })
		s.publishAll(t, i.node)
	}
	before, begin := i.versions(t), time.Now()
	s.restartPlugin(t, i.node)
	if took := time.Since(begin); took >= wipingDelay {
		t.Logf("the restart took %s: the kubelet may have deleted the slices", took)
		many := strings.Count(before, "\n")
		s.must(t, kube.Until(t.Context(), soon, "the slices of "+i.node, func(context.Context) (bool, string, error) {
			before = i.versions(t)
			return strings.Count(before, "\n") == many, before, nil
		}))
	}
	i.before, i.started = before, time.Now()
	return i
}

// versions returns the UID and the version of every slice of the node.
func (i *idle) versions(t *testing.T) string {
	t.Helper()
	versions, err := i.SliceVersions(t.Context(), *driver, i.node)
	i.must(t, err)
	return versions
}

func (i *idle) check(t *testing.T) {
	if rest := restDuration - time.Since(i.started); rest > 0 {
		select {
		case <-time.After(rest): // the test is that nothing happens
		case <-t.Context().Done():
		}
	}
	if got := i.versions(t); got != i.before {
		t.Errorf("%s: got\n%s\nwant\n%s", i.node, got, i.before)
	}
}

// brokenProfile is the profile of the node with the broken GPU. That test runs after those that need the whole node.
const brokenProfile = "workstation"

// machinesProfile is the profile of the node that has virtual machines.
const machinesProfile = "l40s-x4"

func (s *suite) testBrokenGPU(t *testing.T) {
	s.needs(t, "DRADeviceTaints")
	node := s.node(t, brokenProfile)
	all := s.gpus(t, node)
	broken := all[0].Name
	s.simctl(t, s.plugin(t, node), "fail", broken, "all", "ERROR_UNKNOWN")
	defer func() { // restore the node for the next test and the next run
		s.simctl(t, s.plugin(t, node), "heal", broken)
		s.restartPlugin(t, node)
		s.waitHealthy(t, node, len(all))
	}()
	s.restartPlugin(t, node)
	s.waitHealthy(t, node, len(all)-1)
	for _, device := range s.gpus(t, node) {
		lost := len(device.Taints) == 1 && device.Taints[0].Key == "gpu.nvidia.com/gpu-lost"
		if lost != (device.Name == broken) {
			t.Errorf("%s has the taints %v", device.Name, device.Taints)
		}
	}
	ns := s.namespace(t, "broken")
	s.running(t, s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
}

// waitHealthy waits until that number of GPUs of the node is published without a taint.
func (s *suite) waitHealthy(t *testing.T, node string, want int) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("%d GPUs without a taint on %s", want, node),
		func(context.Context) (bool, string, error) {
			got := len(slices.DeleteFunc(s.gpus(t, node),
				func(d resourceapi.Device) bool { return len(d.Taints) > 0 }))
			return got == want, fmt.Sprintf("%d GPUs", got), nil
		}))
}
