//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// The conditions of CoHDI's controllers. The scheduler waits for the first, which they never set. The second makes it
// try again, and take the GPU from the slice of its node.
const (
	fabricReady      = "FabricDeviceReady"
	fabricReschedule = "FabricDeviceReschedule"
)

// fabric stands in for the controllers of a fabric that can attach a GPU of the model to the node.
type fabric struct {
	*suite
	node, model string
	like        resourceapi.Device // a GPU of this model
	plugin      *corev1.Pod
}

// publish offers one GPU of the fabric, with the attributes that selectors of claims need.
func (f fabric) publish(t *testing.T) {
	t.Helper()
	pool := &resourceapi.ResourceSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: "fabric1.e2e.example.com"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: *driver, Pool: resourceapi.ResourcePool{Name: "e2e-fabric1", Generation: 1, ResourceSliceCount: 1},
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
					Operator: corev1.NodeSelectorOpIn, Values: []string{f.node}}}}}},
			Devices: []resourceapi.Device{{
				Name: "e2e-0",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"type": {StringValue: new("gpu")}, "productName": {StringValue: &f.model}},
				BindsToNode: new(true), BindingConditions: []string{fabricReady},
				BindingFailureConditions: []string{fabricReschedule, "FabricDeviceFailed"},
			}},
		},
	}
	t.Cleanup(func() { s := f.suite; s.must(t, s.Delete(context.WithoutCancel(t.Context()), pool)) })
	f.must(t, f.ApplyTyped(t.Context(), pool))
}

// held waits until the pod's claim has a GPU of the fabric.
func (f fabric) held(t *testing.T, pod client.ObjectKey) (claim resourceapi.ResourceClaim) {
	t.Helper()
	what := "a GPU of the fabric for " + pod.Name
	f.must(t, kube.Until(t.Context(), soon, what, func(ctx context.Context) (bool, string, error) {
		var p corev1.Pod
		if err := f.Get(ctx, pod, &p); err != nil {
			return false, "", err
		}
		var err error
		if claim, err = f.findClaim(ctx, &p); err != nil || claim.Status.Allocation == nil {
			return false, "no allocation", err
		}
		got := claim.Status.Allocation.Devices.Results[0]
		return slices.Equal(got.BindingConditions, []string{fabricReady}) && p.Spec.NodeName == "",
			got.Pool + " " + p.Spec.NodeName, nil
	}))
	return claim
}

// attach puts one more GPU into the node, and waits until the driver has published it.
func (f fabric) attach(t *testing.T) resourceapi.Device {
	t.Helper()
	name := strings.TrimSpace(f.simctl(t, f.plugin, "add", "--like", f.like.Name))
	f.waitPublished(t, name, true)
	all := f.gpus(t, f.node)
	return all[slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name == name })]
}

func (f fabric) waitPublished(t *testing.T, name string, want bool) {
	t.Helper()
	what := name + " to be published or not"
	f.must(t, kube.Until(t.Context(), soon, what, func(context.Context) (bool, string, error) {
		var names []string
		for _, d := range f.gpus(t, f.node) {
			names = append(names, d.Name)
		}
		return slices.Contains(names, name) == want, strings.Join(names, " "), nil
	}))
}

// reschedule tells the scheduler to try again, because the GPU is on the node now.
func (f fabric) reschedule(t *testing.T, claim resourceapi.ResourceClaim) {
	t.Helper()
	f.must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := f.Get(t.Context(), client.ObjectKeyFromObject(&claim), &claim); err != nil {
			return err
		}
		got := claim.Status.Allocation.Devices.Results[0]
		claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: got.Driver, Pool: got.Pool,
			Device: got.Device, Conditions: []metav1.Condition{{Type: fabricReschedule, Status: metav1.ConditionTrue,
				Reason: "Attached", LastTransitionTime: metav1.NewTime(time.Now())}}}}
		return f.Status().Update(t.Context(), &claim)
	}))
}

// testComposable attaches a GPU for a pod that waits for one, and detaches it when it is free again.
func (s *suite) testComposable(t *testing.T) {
	s.needs(t, "DRADeviceBindingConditions")
	node := s.node(t, brokenProfile)
	like := s.gpus(t, node)[0]
	f := fabric{suite: s, node: node, model: stringAttribute(like, "productName"), like: like,
		plugin: s.plugin(t, node)}
	ns := s.namespace(t, "composable")
	request := gpus("gpu", 1)
	request.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.attributes['" + *driver + "'].productName == '" + f.model + "'"}}}
	template := s.templateFor(t, ns, "model", request)
	for i := range s.gpus(t, node) {
		s.running(t, s.pod(t, ns, "holder-"+string(rune('a'+i)), onNode(node), withTemplate(template)))
	}
	before, quiet := s.published(t, node), s.eventsOf(t, node)
	f.publish(t)

	pod := s.pod(t, ns, "worker", onNode(node), withTemplate(template))
	claim := f.held(t, pod)
	attached := f.attach(t)
	f.reschedule(t, claim)
	if got := s.allocated(t, s.running(t, pod)); got.Name != attached.Name {
		t.Errorf("got %s, want the attached %s", got.Name, attached.Name)
	}
	s.waitLog(t, pod, seen([]resourceapi.Device{attached}))
	s.deletePod(t, pod)
	s.simctl(t, f.plugin, "remove", attached.Name)
	f.waitPublished(t, attached.Name, false)
	if got := s.published(t, node); !apiequality.Semantic.DeepEqual(got, before) {
		t.Errorf("after the detachment: got %v, want %v", got, before)
	}
	if got := s.eventsOf(t, node); !slices.Equal(got, quiet) {
		t.Errorf("events of the node: got %q, want %q", got, quiet)
	}
}

func (s *suite) eventsOf(t *testing.T, node string) []string {
	t.Helper()
	events, err := s.Events(t.Context(), client.ObjectKey{Name: node})
	s.must(t, err)
	return events
}
