//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// published returns the devices of a node in the scheduler's order: those of its own pool, then the monitor device.
func (s *suite) published(t *testing.T, node string) []resourceapi.Device {
	t.Helper()
	return s.devicesIn(t, func(slice resourceapi.ResourceSliceSpec) bool {
		return ptr.Deref(slice.NodeName, "") == node
	})
}

// inPool returns the devices of a pool in the scheduler's order.
func (s *suite) inPool(t *testing.T, pool string) []resourceapi.Device {
	t.Helper()
	return s.devicesIn(t, func(slice resourceapi.ResourceSliceSpec) bool { return slice.Pool.Name == pool })
}

// devicesIn returns the devices of these slices once their pools are complete. While the driver writes a pool of
// several slices, some are of the generation before, and a device may be in two of them.
func (s *suite) devicesIn(t *testing.T, is func(resourceapi.ResourceSliceSpec) bool) []resourceapi.Device {
	t.Helper()
	var devices []resourceapi.Device
	s.must(t, kube.Until(t.Context(), soon, "complete pools", func(ctx context.Context) (bool, string, error) {
		list, err := s.Slices(ctx, *driver)
		devices = nil
		left := map[resourceapi.ResourcePool]int64{} // slices of each pool and generation
		for _, slice := range list {
			if pool := slice.Spec.Pool; is(slice.Spec) {
				devices = append(devices, slice.Spec.Devices...)
				if left[pool]++; left[pool] == pool.ResourceSliceCount {
					delete(left, pool)
				}
			}
		}
		return len(left) == 0, fmt.Sprint(left), err
	}))
	return devices
}

// gpus returns the whole GPUs of a node, strongest first, without the monitor device.
func (s *suite) gpus(t *testing.T, node string) []resourceapi.Device {
	t.Helper()
	return slices.DeleteFunc(s.published(t, node), func(d resourceapi.Device) bool {
		return stringAttribute(d,
			"type") != "gpu"
	})
}

// wholeGPUs returns the GPUs that a claim can get exclusively, without those that are only for shared GPUs.
func (s *suite) wholeGPUs(t *testing.T, node string) []resourceapi.Device {
	t.Helper()
	return slices.DeleteFunc(s.gpus(t, node), func(d resourceapi.Device) bool {
		a := d.Attributes["sharedOnly"]
		return a.BoolValue != nil && *a.BoolValue
	})
}

func stringAttribute(d resourceapi.Device, name string) string {
	if a := d.Attributes[resourceapi.QualifiedName(name)]; a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}

func intAttribute(d resourceapi.Device, name string) int64 {
	if a := d.Attributes[resourceapi.QualifiedName(name)]; a.IntValue != nil {
		return *a.IntValue
	}
	return -1
}

// allocated returns the published device that the pod's only claim got.
func (s *suite) allocated(t *testing.T, pod *corev1.Pod) resourceapi.Device {
	t.Helper()
	claim := s.claimOf(t, pod)
	if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		t.Fatalf("claim %s: got allocation %v, want one device", claim.Name, claim.Status.Allocation)
	}
	result := claim.Status.Allocation.Devices.Results[0]
	for _, device := range s.inPool(t, result.Pool) {
		if device.Name == result.Device {
			return device
		}
	}
	t.Fatalf("claim %s: device %s/%s is not published", claim.Name, result.Pool, result.Device)
	return resourceapi.Device{}
}

func (s *suite) claimOf(t *testing.T, pod *corev1.Pod) resourceapi.ResourceClaim {
	t.Helper()
	claim, err := s.findClaim(t.Context(), pod)
	s.must(t, err)
	return claim
}

func (s *suite) findClaim(ctx context.Context, pod *corev1.Pod) (claim resourceapi.ResourceClaim, err error) {
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			err := s.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: *status.ResourceClaimName}, &claim)
			return claim, err
		}
	}
	for _, made := range pod.Spec.ResourceClaims { // those without a template
		if made.ResourceClaimName != nil {
			err := s.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: *made.ResourceClaimName}, &claim)
			return claim, err
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		err := s.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: extended.ResourceClaimName}, &claim)
		return claim, err
	}
	return claim, fmt.Errorf("pod %s has no claim", pod.Name)
}

var uuid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// text formats the devices of a node with one attribute per line, sorted by name. Partitions that do not exist have
// only their names, because the tests of pkg/inventory cover the rest. It replaces each UUID with the number of its
// first appearance, and the node's name, which is part of the monitor device's names, with <node>.
func text(node string, devices []resourceapi.Device) string {
	var b strings.Builder
	for _, d := range devices {
		fmt.Fprintln(&b, d.Name)
		if id := d.Attributes["uuid"].StringValue; id != nil && *id == d.Name && strings.Contains(d.Name, "-mig-") {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
			fmt.Fprintf(&b, "  %s = %s\n", name, value(d.Attributes[name]))
		}
		for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
			quantity := d.Capacity[name].Value
			fmt.Fprintf(&b, "  capacity %s = %s\n", name, quantity.String())
		}
	}
	seen := map[string]string{}
	return uuid.ReplaceAllStringFunc(strings.ReplaceAll(b.String(), node, "<node>"), func(id string) string {
		if _, ok := seen[id]; !ok {
			seen[id] = fmt.Sprintf("<uuid-%d>", len(seen)+1)
		}
		return seen[id]
	})
}

func value(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return fmt.Sprintf("%q", *a.StringValue)
	case a.VersionValue != nil:
		return "version " + *a.VersionValue
	case a.IntValue != nil:
		return fmt.Sprint(*a.IntValue)
	case a.BoolValue != nil:
		return fmt.Sprint(*a.BoolValue)
	}
	return fmt.Sprintf("%+v", a)
}

// sliceGates are the feature gates that the published devices need.
var sliceGates = []string{"DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceTaints"}

// sharesOfMIG is what shares of a GPU need that can be partitioned.
var sharesOfMIG = []string{"DRAConsumableCapacity", "Kubernetes 1.36"}

// testFieldsDropped compares the event of each node with what the API server lacks.
func (s *suite) testFieldsDropped(t *testing.T) {
	var want []string // beginnings of what is said of gates
	for _, gate := range sliceGates {
		lacks, err := s.Lacks(t.Context(), gate)
		s.must(t, err)
		switch {
		case slices.Contains(lacks, gate):
			want = append(want, gate+",")
		case len(lacks) > 0: // a newer version, which the text may name
			want = append(want, gate)
		}
	}
	if len(want) == 0 {
		older, err := s.Lacks(t.Context(), "Kubernetes 1.36")
		s.must(t, err)
		for range older {
			want = append(want, "DRAConsumableCapacity of Kubernetes 1.36.2 or newer,")
		}
	}
	for _, node := range s.nodes {
		var notes []string
		s.must(t, kube.Until(t.Context(), soon, "the event FieldsDropped of "+node, func(ctx context.Context) (bool,
			string, error) {
			var events eventsv1.EventList
			if err := s.List(ctx, &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
				return false, "", err
			}
			notes = nil
			for _, e := range events.Items {
				if e.Reason == "FieldsDropped" && e.Regarding.Name == node {
					notes = append(notes, e.Note)
				}
			}
			return len(notes) > 0 == (len(want) > 0), fmt.Sprint(notes), nil
		}))
		for _, gate := range want {
			if !strings.Contains(notes[0], "without the feature gate "+gate) {
				t.Errorf("%s: got %q, want the gate %s in it", node, notes[0], gate)
			}
		}
	}
}

// testClaimFieldsDropped creates a claim whose fields need feature gates, and a pod with a template of the same: what
// the API server drops is a warning at once, and an event of the claim.
func (s *suite) testClaimFieldsDropped(t *testing.T) {
	ns := s.namespace(t, "dropped")
	wanted := claimSpec()
	wanted.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}}
	wanted.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: "example.com/any",
		Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: ns}, Spec: wanted}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "template", Namespace: ns},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: wanted}}
	for _, object := range []client.Object{claim, template} {
		warnings := s.Warnings()
		s.must(t, s.Create(t.Context(), object))
		got, lacks := warnings(), lost(&claim.Spec)
		if len(got) != len(lacks) {
			t.Errorf("%s: got warnings %q, want one for each of %q", object.GetName(), got, lacks)
			continue
		}
		for i, gate := range lacks {
			if !strings.Contains(got[i], "feature gate "+gate+" was off") {
				t.Errorf("%s: got warning %q, want the gate %s in it", object.GetName(), got[i], gate)
			}
		}
	}
	// As kubectl replace does it; the whole spec of a template is immutable.
	again := template.DeepCopy()
	again.Spec = resourceapi.ResourceClaimTemplateSpec{Spec: wanted}
	s.must(t, s.Update(t.Context(), again))
	pod := s.pod(t, ns, "pod", withTemplate(template.Name))
	fromTemplate := s.claimOf(t, s.running(t, pod))
	for _, of := range []*resourceapi.ResourceClaim{claim, &fromTemplate} {
		for _, gate := range lost(&of.Spec) {
			s.waitEvent(t, client.ObjectKeyFromObject(of), "FieldsDropped", gate)
		}
	}
	const gate = "DRAConsumableCapacity"
	lacks, err := s.Lacks(t.Context(), gate)
	s.must(t, err)
	if got := lost(&claim.Spec); slices.Contains(lacks, gate) && !slices.Contains(got, gate) {
		t.Errorf("got a claim that has lost what needs %q, want also %s", got, gate)
	}
}

// lost returns the feature gates of the fields that the request does not have. Kubernetes 1.34 keeps tolerations
// without their gate.
func lost(spec *resourceapi.ResourceClaimSpec) (gates []string) {
	request := spec.Devices.Requests[0].Exactly
	if request.Capacity == nil {
		gates = append(gates, "DRAConsumableCapacity")
	}
	if len(request.Tolerations) == 0 {
		gates = append(gates, "DRADeviceTaints")
	}
	return gates
}

func (s *suite) testPublished(t *testing.T) {
	s.needs(t, slices.Concat([]string{"Kubernetes 1.36"}, sliceGates)...)
	for _, profile := range []string{"dgx-h100", "l40s-x4", "workstation", "mixed"} {
		t.Run(profile, func(t *testing.T) {
			node := s.node(t, profile)
			if profile == "dgx-h100" && len(s.partitioned(t, node)) > 1 { // an earlier run had some of it
				s.publishAnew(t, node)
			}
			compareGolden(t, filepath.Join("testdata", profile+".txt"),
				func() string { return text(node, s.published(t, node)) })
			if gpus := s.gpus(t, node); !slices.IsSortedFunc(gpus, strongestFirst) {
				t.Errorf("GPUs are not ordered by peakCompute:\n%s", text(node, gpus))
			}
		})
	}
}

// requireTemplate compares what the controller prints for autoscalers from the node and from its profile.
func (s *suite) requireTemplate(t *testing.T, profile, node string) {
	t.Helper()
	pod := client.ObjectKeyFromObject(&s.controllers(t)[0])
	template := func(from, value string) string {
		return s.run(t, pod, "/usr/bin/dra-controller", "slices", "--driver-name", *driver, from, value)
	}
	if got, want := template("--from-node", node), template("--profile", profile); got != want {
		t.Errorf("template from the node:\n%s\nfrom its profile:\n%s", got, want)
	}
}

func strongestFirst(a, b resourceapi.Device) int {
	return int(intAttribute(b, "peakCompute") - intAttribute(a, "peakCompute"))
}

// compareGolden waits until what look returns is as the file has it: partitions of earlier claims may still be there.
func compareGolden(t *testing.T, file string, look func() string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(look()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if err := kube.Until(t.Context(), soon, file, func(context.Context) (bool, string, error) {
		got = look()
		return got == string(want), got, nil
	}); err != nil {
		t.Errorf("%s: run with -update when the change is meant\ngot\n%s\nwant\n%s", file, got, want)
	}
}
