//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const (
	migBlocked = "gpu.nvidia.com/mig-blocked"
	gpuLost    = "gpu.nvidia.com/gpu-lost"
	// small is the smallest profile of an H100, which fits seven times.
	small = "1g.10gb"
)

// partition requests a partition of the profile on the GPU with the UUID of; empty: on any.
func partition(name, profile, of string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "mig-" +
		profile + ".nvidia.com"}}
	if of != "" {
		request.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['%s'].parentUUID == '%s'", *driver, of)}}}
	}
	return request
}

// shareOf requests memory of a specific GPU.
func shareOf(device resourceapi.Device, memory string) resourceapi.DeviceClaim {
	claim := theGPU(device)
	claim.Requests[0].Exactly.Capacity = share("", "", memory, "").Exactly.Capacity
	return claim
}

// withPartition creates a pod with a partition of the GPU.
func (s *suite) withPartition(t *testing.T, namespace, name, profile string, of resourceapi.Device) client.ObjectKey {
	t.Helper()
	return s.pod(t, namespace, name, withTemplate(s.templateFor(t, namespace, name,
		partition("gpu", profile, stringAttribute(of, "uuid")))))
}

// made is the claim status of a running pod's partition.
type made struct {
	Device        string // where it is published
	UUID, Profile string
}

func (s *suite) madeFor(t *testing.T, pod client.ObjectKey) made {
	t.Helper()
	claim := s.claimOf(t, s.running(t, pod))
	var m made
	s.must(t, kube.Until(t.Context(), soon, "the partition in the claim's status", func(ctx context.Context) (bool,
		string, error) {
		if err := s.Get(ctx, client.ObjectKeyFromObject(&claim), &claim); err != nil ||
			len(claim.Status.Devices) != 1 || claim.Status.Devices[0].Data == nil {
			return false, fmt.Sprint(claim.Status.Devices), err
		}
		device := claim.Status.Devices[0]
		m.Device = device.Device
		return meta.IsStatusConditionTrue(device.Conditions, "Ready"), fmt.Sprint(device),
			json.Unmarshal(device.Data.Raw, &m)
	}))
	return m
}

// place returns the placement in simctl's format: gpu-1b-00-0/1g.10gb@4.
func (m made) place() string {
	parent, at, _ := strings.Cut(m.Device, "-mig-")
	return parent + "/" + m.Profile + "@" + at[strings.LastIndex(at, "-")+1:]
}

// listing returns the output of nvidia-smi -L with only these partitions of one GPU.
func listing(parent resourceapi.Device, partitions ...made) string {
	var b strings.Builder
	fmt.Fprintf(&b, "GPU 0: %s (UUID: %s)\n", stringAttribute(parent, "productName"), stringAttribute(parent, "uuid"))
	for i, p := range partitions {
		fmt.Fprintf(&b, "  MIG %-11s Device %2d: (UUID: %s)\n", p.Profile, i, p.UUID)
	}
	return b.String()
}

// partsOf returns the published partitions of a GPU, with UUIDs of existing ones and with taints, and the whole GPU.
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
	// A taint may take two looks, which are ten seconds apart.
	s.must(t, kube.Until(t.Context(), soon, what, func(context.Context) (bool, string, error) {
		got := s.partsOf(t, node, gpu)
		return wanted(got), strings.Join(got, "\n"), nil
	}))
}

// areTainted matches if all partitions have the taint.
func areTainted(taint string) func([]string) bool {
	return func(parts []string) bool {
		return len(parts) > 1 && !slices.ContainsFunc(parts, func(line string) bool {
			return strings.Contains(line, "-mig-") && !strings.HasSuffix(line, " "+taint)
		})
	}
}

// are matches exactly these parts.
func are(want []string) func([]string) bool {
	return func(parts []string) bool { return slices.Equal(parts, want) }
}

// isFree matches the whole GPU, with or without its possible partitions.
func isFree(gpu string, free []string) func([]string) bool {
	return func(parts []string) bool {
		return slices.Equal(parts, free) || slices.Equal(parts, []string{gpu})
	}
}

// waitEvent waits for an event about an object. The namespace of a node's events is "default".
func (s *suite) waitEvent(t *testing.T, about client.ObjectKey, parts ...string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("an event of %s with %q", about.Name, parts),
		func(ctx context.Context) (bool, string, error) {
			events, err := s.Events(ctx, about)
			return slices.ContainsFunc(events, func(e string) bool { return containsAll(e, parts) }),
				strings.Join(events, "\n"), err
		}))
}

// testPartition runs two pods with a partition of the same GPU, and then one with the whole GPU.
func (s *suite) testPartition(t *testing.T) {
	s.needs(t, "DRAPartitionableDevices")
	node := s.node(t, "dgx-h100")
	parent := s.gpus(t, node)[0]
	plugin := s.plugin(t, node)
	before := s.simctl(t, plugin, "print")
	ns := s.namespace(t, "partition")
	pods := []client.ObjectKey{s.withPartition(t, ns, "first", small, parent), s.withPartition(t, ns, "second", small,
		parent)}
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
		file := "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/" + *driver +
			"-metadata.json"
		metadata := strings.ReplaceAll(s.run(t, pod, "gpu-demo", "cat", file), `": "`, `":"`)
		if want := []string{`"name":"` + got.Device + `"`, `"string":"` + got.UUID + `"`, `"string":"` + small + `"`,
			stringAttribute(parent, "uuid")}; !containsAll(metadata, want) {
			t.Errorf("%s: got metadata %s, want %q in it", pod.Name, metadata, want)
		}
	}
	if got := s.hardware(t, node, parent.Name); !containsAll(got, append(lines, "mig=on")) {
		t.Errorf("got\n%s\nwant a GPU in MIG mode with %q", got, lines)
	}
	whole := s.pod(t, ns, "whole", withTemplate(s.claimTemplate(t, ns, "whole", theGPU(parent))))
	s.waitUnschedulable(t, whole)
	s.deletePod(t, pods[0])
	if got := s.run(t, pods[1], "/usr/bin/nvidia-smi", "-L"); !strings.Contains(got, "MIG "+small) {
		t.Errorf("after the other partition went: got\n%s\nwant the pod to keep its own", got)
	}
	s.deletePod(t, pods[1])
	s.running(t, whole)
	if got := s.simctl(t, plugin, "print"); got != before {
		t.Errorf("after the partitions: got\n%s\nwant what was before\n%s", got, before)
	}
}

// testPartitionsChange changes partitions outside the driver, on several GPUs in parallel, because each rescan takes
// time.
func (s *suite) testPartitionsChange(t *testing.T) {
	s.needs(t, "DRAPartitionableDevices")
	machines := map[string]string{}
	for _, profile := range []string{"dgx-h100", "mixed"} {
		node := s.node(t, profile)
		machines[node] = s.simctl(t, s.plugin(t, node), "print")
	}
	s.keepAll(t, s.node(t, "dgx-h100"))
	t.Run("several", func(t *testing.T) { // ends when all subtests have ended
		dgx := s.node(t, "dgx-h100")
		gpus := s.gpus(t, dgx)
		t.Run("on a node with one GPU that can be partitioned", func(t *testing.T) {
			t.Parallel()
			t.Run("a GPU in use is not partitioned, and an event names the process", s.testPartitionBlocked)
			t.Run("partitions that are disabled remain until the last claim has ended",
				s.testPartitionsUnwanted)
		})
		t.Run("partitions of an administrator are published, allocated and not changed",
			func(t *testing.T) {
				t.Parallel()
				s.testPartitionsByHand(t, dgx, gpus[1])
			})
		t.Run("a removed partition of a claim is reported, and its pod can end", func(t *testing.T) {
			t.Parallel()
			s.testPartitionLost(t, dgx, gpus[2])
		})
		t.Run("a claim waits for a process that NVML does not list, and others avoid the GPU", func(t *testing.T) {
			t.Parallel()
			s.testPartitionRefused(t, dgx, gpus[5])
		})
		t.Run("a GPU is lost while it is partitioned", func(t *testing.T) {
			t.Parallel()
			s.testPartitionedGPULost(t, dgx, gpus[3], []string{"unplug"}, "plug")
		})
		t.Run("a GPU does not answer while it is partitioned, and the partition is removed later", func(t *testing.T) {
			t.Parallel()
			s.testPartitionedGPULost(t, dgx, gpus[6], []string{"fail", "all", "ERROR_UNKNOWN"}, "heal")
		})
		t.Run("partitions of an administrator beside those of claims remain", func(t *testing.T) {
			t.Parallel()
			s.testPartitionsOfOthers(t, dgx, gpus[4])
		})
	})
	for node, before := range machines {
		if got := s.simctl(t, s.plugin(t, node), "print"); got != before {
			t.Errorf("%s: got\n%s\nwant what was before\n%s", node, got, before)
		}
	}
}

// testPartitionBlocked runs an exporter that uses the only partitionable GPU of a node.
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

// testPartitionsByHand partitions a free GPU as an administrator. The node configuration does not mention partitions.
func (s *suite) testPartitionsByHand(t *testing.T, node string, gpu resourceapi.Device) {
	free := s.partsOf(t, node, gpu.Name)
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
	s.must(t, s.Empty(t.Context(), soon, ns))
	if got := s.hardware(t, node, gpu.Name); got != hardware {
		t.Errorf("after the claim: got\n%s\nwant what the administrator has made\n%s", got, hardware)
	}
	if got := s.partsOf(t, node, gpu.Name); !slices.Equal(got, []string{static}) {
		t.Errorf("after the claim: got %q, want %s", got, static)
	}
	restore()
	s.waitParts(t, node, gpu.Name, "the GPU to be free", isFree(gpu.Name, free))
}

// testPartitionLost removes a partition while a pod has it.
func (s *suite) testPartitionLost(t *testing.T, node string, gpu resourceapi.Device) {
	free := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "removed")
	pod := s.withPartition(t, ns, "worker", small, gpu)
	lost := s.madeFor(t, pod)
	claim := s.claimOf(t, s.running(t, pod))
	s.simctl(t, s.plugin(t, node), "partition", gpu.Name, "delete", "all")
	s.waitParts(t, node, gpu.Name, "the taint of the partition that is gone, and of no other",
		func(parts []string) bool {
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
	s.deletePod(t, pod)
	s.waitParts(t, node, gpu.Name, "the taint to go", are(free))
	s.madeFor(t, s.withPartition(t, ns, "next", small, gpu))
}

// testPartitionRefused prepares a claim for a GPU with a process that NVML does not list.
func (s *suite) testPartitionRefused(t *testing.T, node string, gpu resourceapi.Device) {
	free := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "refused")
	healed := false
	heal := func() {
		if !healed {
			s.simctl(t, s.plugin(t, node), "heal", gpu.Name)
		}
		healed = true
	}
	defer heal()
	s.simctl(t, s.plugin(t, node), "fail", gpu.Name, "SetMigMode", "ERROR_IN_USE")
	pod := s.withPartition(t, ns, "worker", small, gpu)
	s.waitWaiting(t, pod, "switch MIG mode on", "nobody that can be seen", "the GPU is in use")
	s.waitParts(t, node, gpu.Name, "the taint of all partitions", areTainted(migBlocked))
	s.waitUnschedulable(t, s.withPartition(t, ns, "another", small, gpu))
	heal()
	s.madeFor(t, pod)
	s.waitParts(t, node, gpu.Name, "the taint to go", are(free))
}

// testPartitionsUnwanted disables partitioning of the GPU in the node configuration while a claim has a partition.
func (s *suite) testPartitionsUnwanted(t *testing.T) {
	node := s.node(t, "mixed")
	gpu := s.gpus(t, node)[0]
	free := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "unwanted")
	pod := s.withPartition(t, ns, "worker", small, gpu)
	held := s.madeFor(t, pod)
	claim := s.claimOf(t, s.running(t, pod))
	label := func(value any) { // without waiting for the plugin's next read
		s.must(t, s.Patch(context.WithoutCancel(t.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
			client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`,
				configLabel, value))))
		s.restartPlugin(t, node)
	}
	labelled := true
	defer func() {
		if labelled {
			label("null")
		}
	}()
	label(`"unpartitioned"`)
	s.waitEvent(t, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: node},
		"ModeChangePending", gpu.Name, "partitions onDemand", "partitions none", ns+"/"+claim.Name)
	if got := s.partsOf(t, node, gpu.Name); !slices.Equal(got, free) {
		t.Errorf("while a claim has a partition: got %q, want %q", got, free)
	}
	if got, want := s.run(t, pod, "/usr/bin/nvidia-smi", "-L"), listing(gpu, held); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.deletePod(t, pod)
	s.waitParts(t, node, gpu.Name, "the partitions to go", are([]string{gpu.Name}))
	label("null")
	labelled = false
	s.waitParts(t, node, gpu.Name, "the partitions to be back", are(free))
}

// testPartitionedGPULost breaks a GPU while a pod has a partition of it, and mends it when the pod has ended.
func (s *suite) testPartitionedGPULost(t *testing.T, node string, gpu resourceapi.Device, breaks []string,
	mends string) {
	free := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "broken-"+mends)
	pod := s.withPartition(t, ns, "worker", small, gpu)
	s.madeFor(t, pod)
	mended := false
	mend := func() {
		if !mended {
			s.simctl(t, s.plugin(t, node), mends, gpu.Name)
		}
		mended = true
	}
	defer mend()
	s.simctl(t, s.plugin(t, node), slices.Insert(breaks, 1, gpu.Name)...)
	lost := slices.Clone(free)
	for i := range lost {
		lost[i] += " " + gpuLost
	}
	s.waitParts(t, node, gpu.Name, "the taint of the GPU and all its partitions", are(lost))
	s.deletePod(t, pod)
	if got := s.partsOf(t, node, gpu.Name); !slices.Equal(got, lost) {
		t.Errorf("after the claim: got %q, want %q", got, lost)
	}
	mend()
	s.waitParts(t, node, gpu.Name, "the GPU to be back", are(free))
	s.madeFor(t, s.withPartition(t, ns, "next", small, gpu))
}

// testPartitionsOfOthers creates a partition as an administrator beside that of a claim.
func (s *suite) testPartitionsOfOthers(t *testing.T, node string, gpu resourceapi.Device) {
	free := s.partsOf(t, node, gpu.Name)
	ns := s.namespace(t, "others")
	pod := s.withPartition(t, ns, "worker", small, gpu)
	held := s.madeFor(t, pod)
	removed := false
	remove := func() {
		if !removed {
			s.simctl(t, s.plugin(t, node), "partition", gpu.Name, "delete", "3g.40gb@0")
		}
		removed = true
	}
	defer remove()
	if place := held.place(); !slices.Contains([]string{"4", "5", "6"}, place[len(place)-1:]) {
		t.Fatalf("got %s, want a place in the other half", place)
	}
	s.simctl(t, s.plugin(t, node), "partition", gpu.Name, "create", "3g.40gb@0")
	s.waitParts(t, node, gpu.Name, "the taint of what is in its way, and of nothing else", func(parts []string) bool {
		return slices.Contains(parts, gpu.Name+"-mig-1g10gb-0 "+migBlocked) && slices.Contains(parts, held.Device) &&
			slices.Contains(parts, gpu.Name+"-mig-7g80gb-0 "+migBlocked)
	})
	s.waitUnschedulable(t, s.withPartition(t, ns, "large", "7g.80gb", gpu))
	s.deletePod(t, pod)
	if got := s.hardware(t, node, gpu.Name); !strings.Contains(got, gpu.Name+"/3g.40gb@0 ") ||
		strings.Count(got, gpu.Name+"/") != 1 {
		t.Errorf("after the claim: got\n%s\nwant the partition that is not the driver's, and no other", got)
	}
	s.must(t, s.Empty(t.Context(), soon, ns))
	remove()
	s.simctl(t, s.plugin(t, node), "mig", gpu.Name, "off") // still on because of the administrator's partition
	s.waitParts(t, node, gpu.Name, "the GPU to be free", isFree(gpu.Name, free))
}

// testPartitionsAndWholeGPUs runs pods with partitions and with whole GPUs on one node.
func (s *suite) testPartitionsAndWholeGPUs(t *testing.T) {
	s.needs(t, "DRAPartitionableDevices", "DRAConsumableCapacity", "Kubernetes 1.36")
	node := s.node(t, "dgx-h100")
	gpus := s.gpus(t, node)
	ns := s.namespace(t, "all-kinds")
	part := s.withPartition(t, ns, "partition", small, gpus[0])
	s.madeFor(t, part)
	others := s.namespace(t, "others")
	beside := s.pod(t, others, "beside", withTemplate(s.claimTemplate(t, others, "beside", shareOf(gpus[1], "5Gi"))),
		withArgs("alloc", "1Gi", "--stay"))
	waiting := []client.ObjectKey{
		s.pod(t, others, "share", withTemplate(s.claimTemplate(t, others, "share", shareOf(gpus[0], "5Gi")))),
		s.withPartition(t, others, "overlapping", "7g.80gb", gpus[0]),
		s.withPartition(t, others, "of-a-shared-one", small, gpus[1]),
	}
	s.waitLog(t, beside, fmt.Sprintf("granted 1024MiB of %s, limit 5120MiB, threads 100%%\n",
		stringAttribute(gpus[1], "uuid")))
	for _, pod := range waiting {
		s.waitUnschedulable(t, pod)
	}
	s.must(t, s.Empty(t.Context(), soon, others))

	whole := s.namespace(t, "whole")
	template := s.template(t, whole, "one-gpu")
	for n := range gpus {
		s.pod(t, whole, fmt.Sprintf("worker-%d", n), onNode(node), withTemplate(template))
	}
	s.waitPhases(t, whole, len(gpus)-1, 1)
	s.deletePod(t, part)
	s.waitPhases(t, whole, len(gpus), 0)
}

// testPartitionsAtOnce runs one pod with a partition of every GPU, which are created in parallel. Another pod has two
// partitions by their extended resource.
func (s *suite) testPartitionsAtOnce(t *testing.T) {
	s.needs(t, "DRAPartitionableDevices")
	node := s.node(t, "dgx-h100")
	plugin := s.plugin(t, node)
	gpus := s.gpus(t, node)
	ns := s.namespace(t, "at-once")
	const slow = 4 * time.Second // one after the other, they would still take less than the kubelet allows
	for _, gpu := range gpus {
		s.simctl(t, plugin, "slow", gpu.Name, "CreateGpuInstanceWithPlacement", slow.String())
		defer s.simctl(t, plugin, "heal", gpu.Name)
	}
	request := partition("gpu", small, "")
	request.Exactly.AllocationMode, request.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, int64(len(gpus))
	distinct := resourceapi.FullyQualifiedName(*driver + "/parentUUID")
	template := s.claimTemplate(t, ns, "all", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request},
		Constraints: []resourceapi.DeviceConstraint{{DistinctAttribute: &distinct}}})
	made, took := s.seconds(t, plugin, "create_partition"), s.seconds(t, plugin, "prepare")
	pod := s.pod(t, ns, "all", onNode(node), withTemplate(template))
	s.running(t, pod)
	made, took = s.seconds(t, plugin, "create_partition")-made, s.seconds(t, plugin, "prepare")-took
	if least := float64(len(gpus)) * slow.Seconds(); made < least || took >= made {
		t.Errorf("%d partitions took %.1fs in a call of %.1fs, want at least %.1fs in a call that is shorter",
			len(gpus), made, took, least)
	}
	if got := s.run(t, pod, "/usr/bin/nvidia-smi", "-L"); strings.Count(got, "MIG "+small) != len(gpus) {
		t.Errorf("got\n%s\nwant a partition of each of %d GPUs", got, len(gpus))
	}
	two := s.pod(t, ns, "two", onNode(node), func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("2")}
	})
	s.running(t, two)
	if got := s.run(t, two, "/usr/bin/nvidia-smi", "-L"); strings.Count(got, "MIG "+small) != 2 {
		t.Errorf("got\n%s\nwant two partitions", got)
	}
}

// seconds returns the time that the plugin has spent on a step or an operation, from its histograms.
func (s *suite) seconds(t *testing.T, plugin *corev1.Pod, what string) float64 {
	t.Helper()
	body, err := s.HTTP(t.Context(), client.ObjectKeyFromObject(plugin), httpPort, "/metrics")
	s.must(t, err)
	sum := 0.0
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(name, "_duration_seconds_sum{") && strings.Contains(name, strconv.Quote(what)) {
			v, err := strconv.ParseFloat(value, 64)
			s.must(t, err)
			sum += v
		}
	}
	return sum
}

// testPartitionsOnDemand publishes possible partitions of one GPU. Pods with more of them than it has get those of
// another, and nothing changes for pods with whole GPUs. A pod that names a GPU makes its node publish those of all.
func (s *suite) testPartitionsOnDemand(t *testing.T) {
	s.needs(t, "DRAPartitionableDevices")
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "on-demand")
	first := s.publishAnew(t, node)
	template := s.templateFor(t, ns, "one", partition("gpu", small, ""))
	defer s.configure(t, node, "null")
	const parts = 7 // of a GPU
	for n := range parts {
		s.pod(t, ns, fmt.Sprintf("part-%d", n), onNode(node), withTemplate(template))
	}
	s.waitPhases(t, ns, parts, 0)
	s.waitPartitions(t, node, 2) // before a pod is refused, for which the controller would ask
	s.running(t, s.pod(t, ns, "another", onNode(node), withTemplate(template)))
	all := s.waitPartitions(t, node, 4) // of two GPUs in use, and of as many more
	if !slices.Contains(all, first[0]) {
		t.Errorf("got %v, want the first among them, %s", all, first[0])
	}
	written := func() (all []string) {
		var list resourceapi.ResourceSliceList
		s.must(t, s.List(t.Context(), &list, client.MatchingFields{resourceapi.ResourceSliceSelectorNodeName: node}))
		for _, slice := range list.Items {
			all = append(all, slice.Name+" "+slice.ResourceVersion)
		}
		return all
	}
	before := written()
	s.running(t, s.pod(t, ns, "whole", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	if after := written(); !slices.Equal(after, before) {
		t.Errorf("a pod with a whole GPU changes the slices: got %s, before %s", after, before)
	}
	gpus := s.gpus(t, node)
	last := len(gpus) - 1 // whole GPUs are taken from the front
	for slices.Contains(all, gpus[last].Name) {
		last--
	}
	s.running(t, s.withPartition(t, ns, "names-a-gpu", small, gpus[last]))
	s.waitPartitions(t, node, len(gpus)-1) // but of the one that a pod has as a whole
	s.must(t, s.Empty(t.Context(), soon, ns))

	s.publishAll(t, node)
	// The other nodes have a node configuration, partitions that somebody has made, or an IOMMU, which is no part of a
	// profile.
	s.requireTemplate(t, "dgx-h100", node)
}

// keepAll lets the node publish the possible partitions of all GPUs, and go on with that on demand: they are free.
func (s *suite) keepAll(t *testing.T, node string) {
	t.Helper()
	s.publishAll(t, node)
	s.configure(t, node, "null")
	s.waitAll(t, node, true)
}

// publishAll lets the node publish the possible partitions of all GPUs.
func (s *suite) publishAll(t *testing.T, node string) {
	t.Helper()
	s.configure(t, node, `"all-partitions"`)
	s.waitAll(t, node, false)
}

// waitAll waits until the node publishes the possible partitions of all GPUs, on demand or always.
func (s *suite) waitAll(t *testing.T, node string, onDemand bool) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("all partitions, on demand: %t", onDemand),
		func(context.Context) (bool, string, error) {
			gpus, parts := s.gpus(t, node), s.partitioned(t, node)
			all := len(gpus) > 0 && len(parts) == len(gpus)
			for _, d := range gpus {
				all = all && ptr.Deref(d.Attributes["partitionsOnDemand"].BoolValue, false) == onDemand
			}
			return all, fmt.Sprint(parts), nil
		}))
}

// publishAnew lets the node publish what it does when no claim has had anything of it, and returns the GPUs of which it
// publishes possible partitions then.
func (s *suite) publishAnew(t *testing.T, node string) []string {
	t.Helper()
	s.configure(t, node, `"unpartitioned"`)
	s.waitPartitions(t, node, 0)
	s.configure(t, node, "null")
	return s.waitPartitions(t, node, 1)
}

// waitPartitions waits until the node publishes possible partitions of so many GPUs, and returns their names.
func (s *suite) waitPartitions(t *testing.T, node string, gpus int) (all []string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("possible partitions of %d GPUs", gpus),
		func(context.Context) (bool, string, error) {
			all = s.partitioned(t, node)
			return len(all) == gpus, fmt.Sprint(all), nil
		}))
	return all
}

// partitioned returns the names of the GPUs of which the node publishes partitions.
func (s *suite) partitioned(t *testing.T, node string) (all []string) {
	t.Helper()
	for _, d := range s.published(t, node) {
		if name, _, part := strings.Cut(d.Name, "-mig-"); part && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}
