//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

const (
	// foreignDriver is another driver.
	foreignDriver = "nic.example.com"
	// sweepGrace is the controller's grace period in demo/values.yaml.
	sweepGrace = 20 * time.Second
	// hold is a finalizer that only the test removes.
	hold = "e2e.example.com/hold"
	// nobody is a UID without an object.
	nobody types.UID = "00000000-0000-4000-8000-000000000000"
)

// testOrphans creates orphaned objects of this driver and of another one. The garbage collector deletes objects whose
// owner does not exist before the controller does; the tests of internal/controller/sweep cover the controller's part.
// What remains to test are slices of a node without the plugin, and objects with a finalizer.
func (s *suite) testOrphans(t *testing.T) {
	controllers := s.controllers(t)
	if len(controllers) == 0 {
		t.Skip("no controller is installed")
	}
	t.Run("slices", s.orphanSlices)
	t.Run("claims", s.orphanClaims)
	t.Run("the controller's token deletes nothing else, and makes no other secret",
		func(t *testing.T) { s.orphanRights(t, &controllers[0]) })
}

func (s *suite) orphanSlices(t *testing.T) {
	ns := s.namespace(t, "orphan-slices")
	bare, held, exempt := s.nodeWithoutKubelet(t, "bare"), s.nodeWithoutKubelet(t, "held"),
		s.nodeWithoutKubelet(t, "exempt")
	s.must(t, s.Patch(t.Context(), exempt, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"gpu.nvidia.com/sweep": "off"}}}`))))
	nowhere := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e2e-gone", UID: nobody}}
	s.plantClaim(t, ns, "holder", held.Name, nil, *driver)

	foreignBare := s.plantSlice(t, foreignDriver, bare, bare)
	foreignGone := s.plantSlice(t, foreignDriver, nowhere, nil) // with an owner, the garbage collector would delete it
	// NVIDIA's DRA driver has the same driver name.
	namesake := s.plantSlice(t, *driver, bare, bare, func(slice *resourceapi.ResourceSlice) {
		slice.Spec.Pool.Name, slice.Spec.Devices = "e2e-namesake", []resourceapi.Device{{Name: "gpu-0"}}
	})
	nobodys := s.plantSlice(t, *driver, nowhere, nil)
	allocated := s.plantSlice(t, *driver, held, held)
	published := s.plantSlice(t, *driver, exempt, exempt)
	ownGone := s.plantSlice(t, *driver, nowhere, nowhere)
	ownBare := s.plantSlice(t, *driver, bare, bare) // the last one: for the others, the grace is over before

	s.waitRemoved(t, ownGone) // by the garbage collector or the controller
	s.waitRemoved(t, ownBare)
	s.waitEvent(t, about(ownBare), "SliceRemoved", "node "+bare.Name+" has no pod of the plugin")
	s.waitEvent(t, about(nobodys), "NodeGone", "its node "+nowhere.Name+" is gone", "belongs to no node alone")
	s.waitEvent(t, about(held), "PluginGone", "claim "+ns+"/holder has a device of the node")
	for _, slice := range []*resourceapi.ResourceSlice{foreignBare, foreignGone, namesake, nobodys, allocated,
		published} {
		s.requireUnchanged(t, slice)
	}
	for _, slice := range []*resourceapi.ResourceSlice{foreignBare, foreignGone, namesake, published} {
		s.requireNoEvents(t, slice)
	}
}

func (s *suite) orphanClaims(t *testing.T) {
	ns := s.namespace(t, "orphan-claims")
	gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: nobody}}
	foreignHand := s.plantClaim(t, ns, "foreign-hand", "e2e-nowhere", nil, foreignDriver)
	foreignStuck := s.plantClaim(t, ns, "foreign-stuck", "e2e-nowhere", gone, foreignDriver)
	several := s.plantClaim(t, ns, "several-stuck", "e2e-nowhere", gone, *driver, foreignDriver)
	hand := s.plantClaim(t, ns, "hand", "e2e-nowhere", nil, *driver)
	own := s.plantClaim(t, ns, "own-stuck", "e2e-nowhere", gone, *driver)

	// The garbage collector deletes it at once, and the controller's grace period begins.
	time.Sleep(sweepGrace)
	s.waitEvent(t, about(own), "DeletionStuck", "its pod gone is gone", hold)
	s.waitEvent(t, about(several), "DeletionStuck", hold)
	for _, claim := range []*resourceapi.ResourceClaim{foreignHand, foreignStuck, several, hand, own} {
		s.requireUnchanged(t, claim)
	}
	for _, claim := range []*resourceapi.ResourceClaim{foreignHand, foreignStuck, hand} {
		s.requireNoEvents(t, claim)
	}
	s.removeFinalizers(t.Context(), t, own)
	s.waitRemoved(t, own)
}

// orphanRights sends deletions with the controller's token, as dry runs.
func (s *suite) orphanRights(t *testing.T, controller *corev1.Pod) {
	as, err := s.AsServiceAccount(t.Context(), controller.Namespace, controller.Spec.ServiceAccountName, misusedToken)
	s.must(t, err)
	ns := s.namespace(t, "orphan-rights")
	remove := func(o client.Object) error { return as.Delete(t.Context(), o, client.DryRunAll) }
	node := s.node(t, "l40s-x4")
	pod := s.running(t, s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	claim := s.claimOf(t, pod)
	s.must(t, remove(&claim))
	for _, slice := range s.slicesOf(t, node) {
		s.must(t, remove(&slice))
	}
	elsewhere := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e2e-elsewhere"}}
	refusedFor(t, "slice of another driver", remove(s.plantSlice(t, foreignDriver, elsewhere, nil)),
		"only ResourceSlices of driver "+*driver)
	refusedFor(t, "slice without a node", remove(s.plantSlice(t, *driver, elsewhere, nil)),
		"only a ResourceSlice that belongs to a node")
	refusedFor(t, "claim of another driver", remove(s.plantClaim(t, ns, "foreign", "e2e-nowhere", pod, foreignDriver)),
		"claims that have its devices and no others")
	refusedFor(t, "claim of several drivers", remove(s.plantClaim(t, ns, "several", "e2e-nowhere", pod, *driver,
		foreignDriver)), "claims that have its devices and no others")
	refusedFor(t, "claim made by hand", remove(s.plantClaim(t, ns, "hand", "e2e-nowhere", nil, *driver)),
		"a claim that belongs to a pod")
	secret := func(name string, kind corev1.SecretType) error {
		return as.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controller.Namespace,
			Name:        name,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: kind}, client.DryRunAll)
	}
	own := s.certificate(t).Name
	const other = "may create only the secret "
	refusedFor(t, "another secret", secret(own+"-2", corev1.SecretTypeOpaque), other+own)
	refusedFor(t, "a secret that is filled with a token", secret(own, corev1.SecretTypeServiceAccountToken), other+own)
	if err := secret(own, corev1.SecretTypeOpaque); !apierrors.IsAlreadyExists(err) {
		t.Errorf("its own secret: got error %v, want it to be there already", err)
	}
	if err := as.Delete(t.Context(), pod, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("pod: got error %v, want a refusal", err)
	}
}

// nodeWithoutKubelet creates a node without a kubelet. Its lease is renewed until the test ends; otherwise
// kube-controller-manager would soon mark it as unreachable.
func (s *suite) nodeWithoutKubelet(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e2e-" + name},
		Spec: corev1.NodeSpec{Unschedulable: true,
			Taints: []corev1.Taint{{Key: hold, Effect: corev1.TaintEffectNoSchedule}}}}
	s.must(t, s.Create(t.Context(), node))
	s.cleanUp(t, node)
	since := metav1.Now()
	beat := func() error {
		before := node.DeepCopy()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			Reason:            "E2E",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: since}}
		return s.Status().Patch(t.Context(), node.DeepCopy(), client.MergeFrom(before))
	}
	s.must(t, beat())
	go func() {
		for {
			select {
			case <-t.Context().Done():
				return
			case <-time.After(3 * time.Second):
				_ = beat() // fails after the node was deleted at the end of the test
			}
		}
	}()
	return node
}

// plantSlice creates a slice of a node with one device. The owner may be nil, or a node that does not exist.
func (s *suite) plantSlice(t *testing.T, driver string, node, owner *corev1.Node,
	change ...func(*resourceapi.ResourceSlice)) *resourceapi.ResourceSlice {
	t.Helper()
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-orphan-"},
		Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node.Name,
			Pool: resourceapi.ResourcePool{Name: node.Name, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-3b-00-0",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					"isolation": {StringValue: new("none")}}}}},
	}
	if owner != nil {
		slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name,
			UID: owner.UID}}
	}
	for _, c := range change {
		c(slice)
	}
	s.must(t, s.Create(t.Context(), slice))
	s.cleanUp(t, slice)
	return slice
}

// plantClaim creates a claim with a device of each driver allocated in the pool. The owner may be nil or a pod that
// does not exist: then the garbage collector deletes the claim, and a finalizer keeps it. It is not reserved, so
// Kubernetes does not deallocate it.
func (s *suite) plantClaim(t *testing.T, namespace, name, pool string, owner *corev1.Pod,
	drivers ...string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Finalizers: []string{hold}}}
	allocation := &resourceapi.AllocationResult{}
	for i, driver := range drivers {
		request := fmt.Sprintf("request-%d", i)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests,
			resourceapi.DeviceRequest{Name: request,
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "e2e.example.com"}})
		allocation.Devices.Results = append(allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: pool,
				Device: "gpu-3b-00-0"})
	}
	s.must(t, s.Create(t.Context(), claim))
	s.cleanUp(t, claim)
	claim.Status.Allocation = allocation
	s.must(t, s.Status().Update(t.Context(), claim))
	if owner != nil {
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner.Name,
			UID: owner.UID, Controller: new(true)}}
		s.must(t, s.Update(t.Context(), claim))
	}
	return claim
}

// cleanUp deletes the object at the end of the test, if it still exists.
func (s *suite) cleanUp(t *testing.T, o client.Object) {
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		s.must(t, client.IgnoreNotFound(s.Delete(ctx, o)))
		s.removeFinalizers(ctx, t, o)
	})
}

// removeFinalizers removes the finalizers of an object.
func (s *suite) removeFinalizers(ctx context.Context, t *testing.T, o client.Object) {
	t.Helper()
	s.must(t, client.IgnoreNotFound(s.Patch(ctx, o, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`)))))
}

// about returns the key of the object in events.
func about(o client.Object) client.ObjectKey {
	if o.GetNamespace() == "" {
		return client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: o.GetName()}
	}
	return client.ObjectKeyFromObject(o)
}

func (s *suite) waitRemoved(t *testing.T, o client.Object) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), sweepGrace+soon, o.GetName()+" to be removed", func(ctx context.Context) (bool,
		string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), fmt.Sprint(err), client.IgnoreNotFound(err)
	}))
}

// requireUnchanged checks that an object still exists unchanged.
func (s *suite) requireUnchanged(t *testing.T, o client.Object) {
	t.Helper()
	before := o.GetUID()
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil || o.GetUID() != before {
		t.Errorf("%s: got error %v and UID %s, want it to survive with %s", o.GetName(), err, o.GetUID(), before)
	}
	if claim, ok := o.(*resourceapi.ResourceClaim); ok && (len(claim.Finalizers) == 0 ||
		claim.Status.Allocation == nil) {
		t.Errorf("%s: got finalizers %v and allocation %v, want both as they were", o.GetName(), claim.Finalizers,
			claim.Status.Allocation)
	}
}

// requireNoEvents checks that no event is about an object.
func (s *suite) requireNoEvents(t *testing.T, o client.Object) {
	t.Helper()
	events, err := s.Events(t.Context(), about(o))
	s.must(t, err)
	if len(events) > 0 {
		t.Errorf("%s: got events\n%s\nwant none", o.GetName(), strings.Join(events, "\n"))
	}
}
