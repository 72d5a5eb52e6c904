//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testRescan changes the hardware while the plugin runs.
func (n node) testRescan(t *testing.T) {
	ns := n.namespace(t, "rescan")
	plugin := client.ObjectKeyFromObject(n.plugin(t))
	holder := n.pod(t, ns, "holder", "")
	n.running(t, holder)
	used := n.device(t, holder)
	whole := n.gpus(t)
	all := strings.Split(whole, "\n")
	free := all[slices.IndexFunc(all, func(name string) bool { return name != used })]
	published := func(what, want string) {
		t.Helper()
		eventually(t, soon, what, func() string { return is(n.gpus(t), want) })
	}

	n.simctl(t, "unplug", free)
	n.simctl(t, "unplug", used)
	const lost = " gpu.nvidia.com/gpu-lost:NoSchedule"
	published("lost GPUs to be tainted, used or not", strings.Join(replace(replace(all, used, used+lost), free,
		free+lost), "\n"))
	if got := n.running(t, holder).Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("the pod on the lost GPU: got %d restarts, want none", got)
	}

	n.simctl(t, "plug", free)
	n.simctl(t, "plug", used)
	added := strings.TrimSpace(n.simctl(t, "add", "--like", free))
	more := append(slices.Clone(all), added)
	slices.Sort(more)
	published("GPUs to be back, and a new one beside them", strings.Join(more, "\n"))
	newcomer := n.pod(t, ns, "newcomer", exactly(n.uuid(t, added)))
	n.running(t, newcomer)

	// A lost GPU stays published while NVML counts it, and its claim can be released.
	n.simctl(t, "unplug", used)
	published("the GPU in use to be tainted again", strings.Join(replace(more, used, used+lost), "\n"))
	n.remove(t, holder)
	n.gone(t, holder)
	published("the lost GPU to stay", strings.Join(replace(more, used, used+lost), "\n"))
	n.simctl(t, "plug", used)
	published("the GPU to be back", strings.Join(more, "\n"))

	n.remove(t, newcomer)
	n.gone(t, newcomer)
	n.simctl(t, "remove", added) // the node is as it was
	published("the new GPU to be gone", whole)

	if got := n.get(t, plugin).Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("the plugin: got %d restarts, want none", got)
	}
}

func replace(list []string, old, with string) []string {
	list = slices.Clone(list)
	list[slices.Index(list, old)] = with
	return list
}
