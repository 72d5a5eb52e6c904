//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const (
	migBlocked = "gpu.nvidia.com/mig-blocked"
	gpuLost    = "gpu.nvidia.com/gpu-lost"
	// small is the smallest profile of an H100, which seven partitions can have.
	small = "1g.10gb"
)

// partition asks for a partition of that profile; of is the UUID of the GPU that it is to be of, empty: any.
func partition(name, profile, of string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "mig-" + profile + ".nvidia.com"}}
	if of != "" {
		request.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['%s'].parentUUID == '%s'", *driver, of)}}}
	}
	return request
}

// shareOf asks for memory of one certain GPU.
func shareOf(device resourceapi.Device, memory string) resourceapi.DeviceClaim {
	claim := theGPU(device)
	claim.Requests[0].Exactly.Capacity = share("", "", memory, "").Exactly.Capacity
	return claim
}

// withPartition makes a pod with a partition of the GPU.
func (s *suite) withPartition(t *testing.T, namespace, name, profile string, of resourceapi.Device) client.ObjectKey {
	t.Helper()
	return s.pod(t, namespace, name, withTemplate(s.templateFor(t, namespace, name, partition("gpu", profile, stringAttribute(of, "uuid")))))
}

// made is what the claim's status says of the partition that a running pod has.
type made struct {
	Device        string // where it is published
	UUID, Profile string
}

func (s *suite) madeFor(t *testing.T, pod client.ObjectKey) made {
	t.Helper()
	claim := s.claimOf(t, s.running(t, pod))
	var m made
	s.must(t, kube.Until(t.Context(), soon, "the partition in the claim's status", func(ctx context.Context) (bool, string, error) {
		if err := s.Get(ctx, client.ObjectKeyFromObject(&claim), &claim); err != nil || len(claim.Status.Devices) != 1 || claim.Status.Devices[0].Data == nil {
			return false, fmt.Sprint(claim.Status.Devices), err
		}
		device := claim.Status.Devices[0]
		m.Device = device.Device
		return len(device.Conditions) == 1 && device.Conditions[0].Status == metav1.ConditionTrue, fmt.Sprint(device), json.Unmarshal(device.Data.Raw, &m)
	}))
	return m
}

// place is how simctl writes the partition's place: gpu-1b-00-0/1g.10gb@4.
func (m made) place() string {
	parent, at, _ := strings.Cut(m.Device, "-mig-")
	return parent + "/" + m.Profile + "@" + at[strings.LastIndex(at, "-")+1:]
}

// listing is what nvidia-smi -L prints where these partitions of one GPU are all that there is.
func listing(parent resourceapi.Device, partitions ...made) string {
	var b strings.Builder
	fmt.Fprintf(&b, "GPU 0: %s (UUID: %s)\n", stringAttribute(parent, "productName"), stringAttribute(parent, "uuid"))
	for i, p := range partitions {
		fmt.Fprintf(&b, "  MIG %-11s Device %2d: (UUID: %s)\n", p.Profile, i, p.UUID)
	}
	return b.String()
}

// partsOf are the published partitions of a GPU, each with its UUID where there is one, and its taints; and the GPU as a whole.
func (s *suite) partsOf(t *testing.T, node, gpu string) []string {
	t.Helper()
	var lines []string
	for _, d := range s.published(t, node) {
		if d.Name != gpu && !strings.HasPrefix(d.Name, gpu+"-mig-") {
			continue
		}
		line := d.Name
		if uuid := stringAttribute(d, "uuid"); d.Name != gpu && uuid != d.Name {
			line += " " + uuid
		}
		for _, taint := range d.Taints {
			line += " " + taint.Key
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// waitParts waits until the published partitions of a GPU are as wanted.
func (s *suite) waitParts(t *testing.T, node, gpu, what string, wanted func(parts []string) bool) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, what, func(context.Context) (bool, string, error) {
		got := s.partsOf(t, node, gpu)
		return wanted(got), strings.Join(got, "\n"), nil
	}))
}

// areTainted is true of parts of which all partitions have the taint.
func areTainted(taint string) func([]string) bool {
	return func(parts []string) bool {
		return len(parts) > 1 && !slices.ContainsFunc(parts, func(line string) bool {
			return strings.Contains(line, "-mig-") && !strings.HasSuffix(line, " "+taint)
		})
	}
}

// are is true of just these parts.
func are(want []string) func([]string) bool {
	return func(parts []string) bool { return slices.Equal(parts, want) }
}

// waitEvent waits for an event about an object; the namespace of one about a node is "default".
func (s *suite) waitEvent(t *testing.T, about client.ObjectKey, parts ...string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("an event of %s with %q", about.Name, parts), func(ctx context.Context) (bool, string, error) {
		events, err := s.Events(ctx, about)
		return slices.ContainsFunc(events, func(e string) bool { return containsAll(e, parts) }), strings.Join(events, "\n"), err
	}))
}

// testPartition has two pods with a partition each of one GPU, and then one with the whole.
func (s *suite) testPartition(t *testing.T) {
	node := s.node(t, "dgx-h100")
	parent := s.gpus(t, node)[0]
	plugin := s.plugin(t, node)
	before := s.simctl(t, plugin, "print")
	ns := s.namespace(t, "partition")
	pods := []client.ObjectKey{s.withPartition(t, ns, "first", small, parent), s.withPartition(t, ns, "second", small, parent)}
	var lines []string
	seen := map[string]bool{}
	for _, pod := range pods {
		got := s.madeFor(t, pod)
		if got.Profile != small || !strings.HasPrefix(got.UUID, "MIG-") || seen[got.UUID] {
			t.Errorf("%s: got %v, want a %s of its own", pod.Name, got, small)
		}
		seen[got.UUID] = true
		lines = append(lines, got.place()+" gi=")
		if got, want := s.run(t, pod, "/usr/bin/nvidia-smi", "-L"), listing(parent, got); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", pod.Name, got, want)
		}
		file := "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/" + *driver + "-metadata.json"
		metadata := strings.ReplaceAll(s.run(t, pod, "gpu-demo", "cat", file), `": "`, `":"`)
		if want := []string{`"name":"` + got.Device + `"`, `"string":"` + got.UUID + `"`, `"string":"` + small + `"`, stringAttribute(parent, "uuid")}; !containsAll(metadata, want) {
			t.Errorf("%s: got metadata %s, want %q in it", pod.Name, metadata, want)
		}
	}
	if got := s.hardware(t, node, parent.Name); !containsAll(got, append(lines, "mig=on")) {
		t.Errorf("got\n%s\nwant a GPU in MIG mode with %q", got, lines)
	}
	whole := s.pod(t, ns, "whole", withTemplate(s.claimTemplate(t, ns, "whole", theGPU(parent))))
	s.waitUnschedulable(t, whole)
	s.gone(t, pods[0])
	if got := s.run(t, pods[1], "/usr/bin/nvidia-smi", "-L"); !strings.Contains(got, "MIG "+small) {
		t.Errorf("after the other partition went: got\n%s\nwant the pod to keep its own", got)
	}
	s.gone(t, pods[1])
	s.running(t, whole)
	if got := s.simctl(t, plugin, "print"); got != before {
		t.Errorf("after the partitions: got\n%s\nwant what was before\n%s", got, before)
	}
}

// testPartitionsChange has what happens to partitions from outside, on several GPUs at once: every look at the machine takes its time.
func (s *suite) testPartitionsChange(t *testing.T) {
	machines := map[string]string{}
	for _, profile := range []string{"dgx-h100", "mixed"} {
		node := s.node(t, profile)
		machines[node] = s.simctl(t, s.plugin(t, node), "print")
	}
	t.Run("several", func(t *testing.T) { // which ends when all have
		dgx := s.node(t, "dgx-h100")
		gpus := s.gpus(t, dgx)
		t.Run("mixed", func(t *testing.T) {
			t.Parallel()
			t.Run("a GPU that somebody uses is not partitioned, and an event says who", s.testPartitionBlocked)
		})
		t.Run("partitions that somebody makes and removes by hand are noticed, given out and left alone", func(t *testing.T) {
			t.Parallel()
			s.testPartitionsByHand(t, dgx, gpus[1])
		})
		t.Run("a partition that is removed under a claim is told of, and its pod can go", func(t *testing.T) {
			t.Parallel()
			s.testPartitionLost(t, dgx, gpus[2])
		})
	})
	for node, before := range machines {
		if got := s.simctl(t, s.plugin(t, node), "print"); got != before {
			t.Errorf("%s: got\n%s\nwant what was before\n%s", node, got, before)
		}
	}
}

// testPartitionBlocked puts an exporter on the only GPU of a node that can be partitioned.
func (s *suite) testPartitionBlocked(t *testing.T) {
	node := s.node(t, "mixed")
	gpu := s.gpus(t, node)[0].Name
	free := s.partsOf(t, node, gpu)
	ns := s.namespace(t, "blocked")
	exporter := func(verb string) { s.simctl(t, s.plugin(t, node), "process", gpu, verb, "dcgm-exporter") }
	exporter("add")
	ended := false
	defer func() {
		if !ended {
			exporter("remove")
		}
	}()
	s.waitParts(t, node, gpu, "the taint of all partitions", areTainted(migBlocked))
	s.waitEvent(t, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: node}, "MIGBlocked", gpu, "dcgm-exporter")
	pod := s.pod(t, ns, "worker", onNode(node), withTemplate(s.templateFor(t, ns, "one", partition("gpu", small, ""))))
	s.waitUnschedulable(t, pod)
	exporter("remove")
	ended = true
	s.waitParts(t, node, gpu, "the taint to go", are(free))
	s.madeFor(t, pod)
}

// testPartitionsByHand has an administrator partition a free GPU, whose configuration says nothing of partitions.
func (s *suite) testPartitionsByHand(t *testing.T, node string, gpu resourceapi.Device) {
	dynamic := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "by-hand")
	administrator := func(args ...string) { s.simctl(t, s.plugin(t, node), args...) }
	whole := false
	restore := func() {
		if !whole {
			administrator("partition", gpu.Name, "delete", "all")
			administrator("mig", gpu.Name, "off")
		}
		whole = true
	}
	defer restore()
	administrator("mig", gpu.Name, "on")
	administrator("partition", gpu.Name, "create", "2g.20gb@2")
	name := gpu.Name + "-mig-2g20gb-2"
	var static string
	s.waitParts(t, node, gpu.Name, "the partition that is there, and nothing else", func(parts []string) bool {
		static = parts[0]
		return len(parts) == 1 && strings.HasPrefix(static, name+" MIG-")
	})
	hardware := s.hardware(t, node, gpu.Name)

	template := s.templateFor(t, ns, "two", partition("gpu", "2g.20gb", stringAttribute(gpu, "uuid")))
	pod := s.pod(t, ns, "worker", withTemplate(template))
	got := s.madeFor(t, pod)
	if got.Device+" "+got.UUID != static {
		t.Errorf("got %v, want %s", got, static)
	}
	if got, want := s.run(t, pod, "/usr/bin/nvidia-smi", "-L"), listing(gpu, got); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.waitUnschedulable(t, s.pod(t, ns, "too-many", withTemplate(template)))
	s.waitUnschedulable(t, s.pod(t, ns, "whole", withTemplate(s.claimTemplate(t, ns, "whole", theGPU(gpu)))))
	s.waitUnschedulable(t, s.withPartition(t, ns, "other", small, gpu))
	s.must(t, s.Empty(t.Context(), 2*soon, ns))
	if got := s.hardware(t, node, gpu.Name); got != hardware {
		t.Errorf("after the claim: got\n%s\nwant what the administrator has made\n%s", got, hardware)
	}
	if got := s.partsOf(t, node, gpu.Name); !slices.Equal(got, []string{static}) {
		t.Errorf("after the claim: got %q, want %s", got, static)
	}
	restore()
	s.waitParts(t, node, gpu.Name, "the GPU to be as it was", are(dynamic))
}

// testPartitionLost removes a partition while a pod has it.
func (s *suite) testPartitionLost(t *testing.T, node string, gpu resourceapi.Device) {
	free := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "removed")
	pod := s.withPartition(t, ns, "worker", small, gpu)
	lost := s.madeFor(t, pod)
	claim := s.claimOf(t, s.running(t, pod))
	s.simctl(t, s.plugin(t, node), "partition", gpu.Name, "delete", "all")
	s.waitParts(t, node, gpu.Name, "the taint of the partition that is gone, and of no other", func(parts []string) bool {
		return slices.Equal(parts, slices.Sorted(func(yield func(string) bool) {
			for _, line := range free {
				if line == lost.Device {
					line += " " + gpuLost
				}
				if !yield(line) {
					return
				}
			}
		}))
	})
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), "PartitionLost", lost.Device, lost.UUID)
	if got := s.running(t, pod); got.DeletionTimestamp != nil {
		t.Error("the pod was deleted, want it to be its owner's business")
	}
	s.gone(t, pod)
	s.waitParts(t, node, gpu.Name, "the taint to go", are(free))
	s.madeFor(t, s.withPartition(t, ns, "next", small, gpu))
}
