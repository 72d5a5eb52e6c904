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
	n.simctl(t, "steps", "--record")
	trial := n.pod(t, ns, "trial", "")
	n.running(t, trial)
	n.remove(t, trial)
	n.gone(t, trial)
	n.clean(t)
	steps := n.simctl(t, "steps")
	n.simctl(t, "steps", "--off")

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
		if got := n.logged(t, pod); !strings.Contains(got, n.uuid(t, device)) {
			t.Errorf("%s: got\n%s\nwant it to see %s", pod.Name, got, device)
		}
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
