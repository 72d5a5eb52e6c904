//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// partition creates a pod with a small partition of a specific GPU; empty: of any.
func (n node) partition(t *testing.T, namespace, name, of string, options ...podOption) client.ObjectKey {
	t.Helper()
	request := resourceapi.ExactDeviceRequest{DeviceClassName: "mig-1g.10gb.nvidia.com"}
	if of != "" {
		request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['%s'].parentUUID == '%s'", driver, n.uuid(t, of))}}}
	}
	return n.podFor(t, namespace, name, request, options...)
}

// parent returns the GPU of the pod's partition.
func (s *suite) parent(t *testing.T, pod client.ObjectKey) string {
	t.Helper()
	return gpu.ParentName(s.device(t, pod))
}

// made returns the UUID of the pod's partition from its record. It checks that the container sees only this partition
// and that the GPU has no other.
func (n node) made(t *testing.T, pod client.ObjectKey) string {
	t.Helper()
	record := n.record(t, pod)
	if len(record.Plan.Assignments) != 1 || record.Plan.Assignments[0].Partition == nil {
		t.Fatalf("%s: got record %v, want one with a partition", pod.Name, record)
	}
	uuid := string(record.Plan.Assignments[0].Partition.UUID)
	eventually(t, soon, pod.Name+" to see its partition and no other", func() string {
		if got := n.logged(t, pod); !strings.HasPrefix(uuid, "MIG-") || strings.Count(got, "(UUID: MIG-") != 1 ||
			!strings.Contains(got, uuid) {
			return is(got, uuid)
		}
		return ""
	})
	if got := strings.Count(n.simctl(t, "print"), n.parent(t, pod)+"/"); got != 1 {
		t.Errorf("%s: got %d partitions, want one", n.parent(t, pod), got)
	}
	return uuid
}

// testKilledPartitioning kills the plugin before and after each NVML call that creates a partition, each time on
// another GPU, and then in the same way while partitions are removed. Other tests cover steps without hardware.
func (n node) testKilledPartitioning(t *testing.T) {
	ns := n.namespace(t, "killed-partitions")
	factory := n.simctl(t, "print")
	gpus := strings.Split(n.gpus(t), "\n")
	order := n.stepsOf(t, func() client.ObjectKey { return n.partition(t, ns, "trial", gpus[0]) })
	var pods []client.ObjectKey
	for i, point := range pointsAround(t, order, "prepare", steps.EnableMIG, steps.WriteRecord,
		steps.CreatePartition, "create_gpu_instance", "create_compute_instance") {
		n.killAt(t, point, func() { pods = append(pods, n.partition(t, ns, fmt.Sprintf("worker-%d", i), gpus[i])) })
	}
	n.tryAgain(t, pods...)
	uuids := map[string]bool{}
	for _, pod := range pods {
		n.running(t, pod)
		uuids[n.made(t, pod)] = true
	}
	if len(uuids) != len(pods) {
		t.Errorf("got %d partitions, want one for each of %d pods", len(uuids), len(pods))
	}
	ending := slices.Clone(pods)
	for _, point := range pointsAround(t, order, "unprepare", steps.DestroyPartition, "destroy_compute_instance",
		"destroy_gpu_instance", steps.DisableMIG) {
		pod := ending[0]
		ending = ending[1:]
		n.killAt(t, point, func() { n.remove(t, pod) })
	}
	n.remove(t, ending...)
	n.gone(t, pods...)
	n.clean(t)
	eventually(t, soon, "the GPUs to be as they were", func() string { return is(n.simctl(t, "print"), factory) })
}

// pointsAround returns the crash points before each of these consecutive steps, and before the step after them.
func pointsAround(t *testing.T, steps, verb string, names ...string) [][]string {
	t.Helper()
	for line := range strings.Lines(steps) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != verb {
			continue
		}
		first := slices.Index(words, names[0])
		if last := first + len(names); first > 0 && last < len(words) && slices.Equal(words[first:last], names) {
			return crashPoints(t, steps, verb)[first-2 : last-1]
		}
	}
	t.Fatalf("no steps %q of %s in\n%s", names, verb, steps)
	return nil
}

// testPowerCutPartitions cuts the power while a pod has a partition: Hopper loses it, so it is created again.
func (n node) testPowerCutPartitions(t *testing.T) {
	ns := n.namespace(t, "power-cut")
	factory := n.simctl(t, "print")
	pod := n.partition(t, ns, "worker", "")
	n.running(t, pod)
	before, device := n.made(t, pod), n.device(t, pod)
	n.cutPower(t)
	eventually(t, soon, "the pod to be restarted", func() string {
		if n.running(t, pod).Status.ContainerStatuses[0].RestartCount == 0 {
			return "not yet"
		}
		return ""
	})
	if got := n.made(t, pod); got == before {
		t.Errorf("got the partition %s, which the machine has forgotten", got)
	}
	if got := n.device(t, pod); got != device {
		t.Errorf("got %s, want %s again", got, device)
	}
	n.remove(t, pod)
	n.gone(t, pod)
	n.clean(t)
	eventually(t, soon, "the GPUs to be as they were", func() string { return is(n.simctl(t, "print"), factory) })
}
