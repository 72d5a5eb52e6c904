//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// testKilled kills the plugin with SIGKILL before each step of Prepare and after the last one, each time while a new
// pod waits for it. Then it does the same at each step of Unprepare.
func (n node) testKilled(t *testing.T) {
	ns := n.namespace(t, "killed")
	steps := n.stepsOf(t, func() client.ObjectKey { return n.pod(t, ns, "trial", "") })

	var pods []client.ObjectKey
	gpus := len(strings.Split(n.gpus(t), "\n"))
	for i, point := range crashPoints(t, steps, "prepare") {
		if len(pods) == gpus { // free a GPU
			n.tryAgain(t, pods[0])
			n.running(t, pods[0])
			n.remove(t, pods[0])
			n.gone(t, pods[0])
			pods = pods[1:]
		}
		n.killAt(t, point, func() { pods = append(pods, n.pod(t, ns, fmt.Sprintf("worker-%d", i), "")) })
	}
	n.tryAgain(t, pods...)
	holders := map[string]string{}
	for _, pod := range pods {
		n.running(t, pod)
		device := n.device(t, pod)
		if other, ok := holders[device]; ok {
			t.Errorf("%s and %s both have %s", pod.Name, other, device)
		}
		holders[device] = pod.Name
		n.waitLog(t, pod, n.uuid(t, device))
	}
	if got, want := len(n.records(t)), len(pods); got != want {
		t.Errorf("got %d records of %d claims", got, want)
	}

	ending := slices.Clone(pods)
	for i, point := range crashPoints(t, steps, "unprepare") {
		n.killAt(t, point, func() { n.remove(t, ending[i]) })
	}
	n.remove(t, pods...)
	n.gone(t, pods...)
	n.clean(t)
}

// testKilledPreparingShares does the same at each step of Prepare with shares of a GPU, which also set up the hardware
// and the MPS daemon. testKilledReleasingShares does it at each step of Unprepare, which reset them. Each share is the
// first and the last one on its GPU.
func (n node) testKilledPreparingShares(t *testing.T) { n.testKilledWithShares(t, "prepare") }
func (n node) testKilledReleasingShares(t *testing.T) { n.testKilledWithShares(t, "unprepare") }

func (n node) testKilledWithShares(t *testing.T, verb string) {
	ns := n.namespace(t, "killed-shares")
	factory := n.simctl(t, "print")
	pod := func(name string) client.ObjectKey {
		return n.share(t, ns, name, "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	}
	order := n.stepsOf(t, func() client.ObjectKey { return pod("trial") })
	for _, step := range []string{steps.ConfigureGPU, steps.RequestDaemon, steps.ReleaseDaemon} {
		if !strings.Contains(order, step) {
			t.Fatalf("no step %s in\n%s", step, order)
		}
	}
	for i, point := range crashPoints(t, order, verb) {
		var worker client.ObjectKey
		create := func() { worker = pod(fmt.Sprintf("worker-%d", i)) }
		if verb == "prepare" {
			n.killAt(t, point, create)
			n.tryAgain(t, worker)
		} else {
			create()
		}
		n.running(t, worker)
		uuid := n.uuid(t, n.device(t, worker))
		eventually(t, soon, worker.Name+" to have its memory", func() string {
			if got, want := n.logged(t, worker), "granted 1024MiB of "+uuid; !strings.Contains(got, want) {
				return is(got, want)
			}
			return ""
		})
		if verb == "unprepare" {
			n.killAt(t, point, func() { n.remove(t, worker) })
		} else {
			n.remove(t, worker)
		}
		n.gone(t, worker)
		n.clean(t)
		eventually(t, soon, "the GPU to be as it was", func() string { return is(n.simctl(t, "print"), factory) })
	}
}

// stepsOf returns simctl's list of the steps of preparing and releasing a pod's claim.
func (n node) stepsOf(t *testing.T, trial func() client.ObjectKey) string {
	t.Helper()
	n.clean(t) // no other claim is released meanwhile
	n.simctl(t, "steps", "--record")
	pod := trial()
	n.running(t, pod)
	n.remove(t, pod)
	n.gone(t, pod)
	n.clean(t)
	steps := n.simctl(t, "steps")
	n.simctl(t, "steps", "--off")
	return steps
}

// crashPoints returns the arguments of simctl crash for each step of a verb, from the output of simctl steps ("prepare
// 2 Access Put").
func crashPoints(t *testing.T, steps, verb string) [][]string {
	t.Helper()
	for line := range strings.Lines(steps) {
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != verb {
			continue
		}
		var points [][]string
		for i := range words[2:] {
			points = append(points, []string{"--verb", verb, "--at", fmt.Sprint(i + 1)})
		}
		return append(points, []string{"--verb", verb, "--at", fmt.Sprint(len(words[2:])), "--after"})
	}
	t.Fatalf("no steps of %s in\n%s", verb, steps)
	return nil
}

// tryAgain makes the kubelet sync the pods now, by changing their objects. Its own retry comes after 60 to 90 s.
func (n node) tryAgain(t *testing.T, pods ...client.ObjectKey) {
	t.Helper()
	n.plugin(t) // is ready
	for _, pod := range pods {
		must(t, n.TryAgain(t.Context(), pod))
	}
}

// killAt makes the plugin crash when do makes it reach the point.
func (n node) killAt(t *testing.T, point []string, do func()) {
	t.Helper()
	plugin := n.plugin(t)
	key := client.ObjectKeyFromObject(plugin)
	restarts := plugin.Status.ContainerStatuses[0].RestartCount
	n.simctl(t, append([]string{"crash"}, point...)...)
	do()
	eventually(t, soon, "the plugin to be killed at "+strings.Join(point, " "), func() string {
		status := n.get(t, key).Status.ContainerStatuses[0]
		ended := status.LastTerminationState.Terminated
		switch {
		case status.RestartCount == restarts:
			return "it runs"
		case ended == nil || ended.ExitCode != 137:
			return fmt.Sprintf("it ended otherwise: %v", ended)
		}
		return ""
	})
	// In a new pod the container restarts without the kubelet's back-off. The old pod must be gone, or it would crash
	// instead.
	n.remove(t, key)
	n.gone(t, key)
}
