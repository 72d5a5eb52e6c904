//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testKilled kills the plugin by SIGKILL before each step of Prepare and after the last one, while a new pod waits for it each
// time, and then in the same way at each step of Unprepare.
func (n node) testKilled(t *testing.T) {
	ns := n.namespace(t, "killed")
	steps := n.stepsOf(t, func() client.ObjectKey { return n.pod(t, ns, "trial", "") })

	var pods []client.ObjectKey
	for i, point := range crashPoints(t, steps, "prepare") {
		n.killAt(t, point, func() { pods = append(pods, n.pod(t, ns, fmt.Sprintf("worker-%d", i), "")) })
	}
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

// testKilledPreparingShares does the same at each step of Prepare with shares of a GPU, whose hardware and MPS daemon are set up in
// between, and testKilledReleasingShares at each step of Unprepare, where they are set back. Each share is the first on its GPU, and
// the last.
func (n node) testKilledPreparingShares(t *testing.T) { n.testKilledWithShares(t, "prepare") }
func (n node) testKilledReleasingShares(t *testing.T) { n.testKilledWithShares(t, "unprepare") }

func (n node) testKilledWithShares(t *testing.T, verb string) {
	ns := n.namespace(t, "killed-shares")
	factory := n.simctl(t, "print")
	pod := func(name string) client.ObjectKey {
		return n.share(t, ns, name, "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	}
	steps := n.stepsOf(t, func() client.ObjectKey { return pod("trial") })
	for _, step := range []string{"Configure", "Want", "Unwant"} {
		if !strings.Contains(steps, step) {
			t.Fatalf("no step %s in\n%s", step, steps)
		}
	}
	for i, point := range crashPoints(t, steps, verb) {
		var worker client.ObjectKey
		create := func() { worker = pod(fmt.Sprintf("worker-%d", i)) }
		if verb == "prepare" {
			n.killAt(t, point, create)
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

// stepsOf are the steps of preparing and releasing the claim of a pod, as simctl tells them.
func (n node) stepsOf(t *testing.T, trial func() client.ObjectKey) string {
	t.Helper()
	n.clean(t) // nobody else is to be released meanwhile
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

// crashPoints are the arguments of simctl crash for each step of a verb, as simctl steps tells them ("prepare 2 Access Put").
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

// killAt lets the plugin crash when what is done makes it come to the point.
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
	// The kubelet would make a container wait that crashes again: it need not, in a new pod. The old one has to be gone, or it
	// would be the one that crashes.
	n.remove(t, key)
	n.gone(t, key)
}
