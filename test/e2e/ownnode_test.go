//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// misusedToken is the user agent of requests with misused tokens. They must be rejected, so the test of the audit log
// ignores them.
const misusedToken = "gpu-dra-driver-e2e-thief"

// testOwnNode writes with the tokens of two nodes' plugins, and with one that is not bound to a node.
func (s *suite) testOwnNode(t *testing.T) {
	node, otherNode := s.node(t, brokenProfile), s.node(t, "l40s-x4")
	plugin := s.plugin(t, node)
	own, err := s.AsPod(t.Context(), plugin, misusedToken)
	s.must(t, err)
	other, err := s.AsPod(t.Context(), s.plugin(t, otherNode), misusedToken)
	s.must(t, err)
	nowhere, err := s.AsServiceAccount(t.Context(), plugin.Namespace, plugin.Spec.ServiceAccountName, misusedToken)
	s.must(t, err)
	t.Run("slices", func(t *testing.T) { s.ownSlices(t, node, own, other, nowhere) })
	t.Run("status of claims", func(t *testing.T) { s.ownClaims(t, node, own, other, nowhere) })
	t.Run("events", func(t *testing.T) { s.ownEvents(t, node, own, other, nowhere) })
	t.Run("every right has been tried", func(t *testing.T) {
		for _, right := range s.granted(t, plugin.Namespace, plugin.Spec.ServiceAccountName) {
			verb, _, _ := strings.Cut(right, " ")
			reads := slices.Contains([]string{"get", "list", "watch"}, verb)
			if !reads && !slices.Contains(triedWithStolenTokens, right) {
				t.Errorf("%s: no test tries it with another node's token", right)
			}
		}
	})
	t.Run("and no other", func(t *testing.T) { s.testUngranted(t, node, own) })
}

// triedWithStolenTokens are the plugin's rights to write: what the tests below try with another node's token.
var triedWithStolenTokens = []string{
	"create resource.k8s.io/resourceslices", "update resource.k8s.io/resourceslices",
	"delete resource.k8s.io/resourceslices",
	"patch resource.k8s.io/resourceclaims/status",
	"associated-node:patch resource.k8s.io/resourceclaims/driver",
	"create events.k8s.io/events", "patch events.k8s.io/events",
}

// refusedFor checks that a request was rejected for this reason.
func refusedFor(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: got error %v, want a refusal with %q", what, err, reason)
	}
}

func (s *suite) ownSlices(t *testing.T, node string, own, other, nowhere *kube.Cluster) {
	// A slice of an earlier generation: schedulers ignore it, and the plugin removes it.
	stray := func(change func(*resourceapi.ResourceSliceSpec)) *resourceapi.ResourceSlice {
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-stray-"},
			Spec: resourceapi.ResourceSliceSpec{Driver: *driver, NodeName: &node,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 0, ResourceSliceCount: 1}},
		}
		change(&slice.Spec)
		return slice
	}
	asIs := func(*resourceapi.ResourceSliceSpec) {}
	refusedFor(t, "create with another node's token", other.Create(t.Context(), stray(asIs)),
		"may write only the ResourceSlices of that node")
	refusedFor(t, "create with a token of no node", nowhere.Create(t.Context(), stray(asIs)), "bound to no node")
	refusedFor(t, "create for another driver", own.Create(t.Context(),
		stray(func(s *resourceapi.ResourceSliceSpec) { s.Driver = "gpu.example.com" })),
		"only ResourceSlices of driver "+*driver)
	refusedFor(t, "create in another pool", own.Create(t.Context(),
		stray(func(s *resourceapi.ResourceSliceSpec) { s.Pool.Name = "elsewhere" })), "in the pools of that node")
	refusedFor(t, "create for all nodes", own.Create(t.Context(),
		stray(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, new(true) })),
		"may write only the ResourceSlices of that node")

	for _, slice := range s.slicesOf(t, node) {
		slice.Annotations = map[string]string{"e2e": "stolen"}
		refusedFor(t, "update with another node's token", other.Update(t.Context(), slice.DeepCopy()),
			"may write only the ResourceSlices of that node")
		refusedFor(t, "delete with another node's token", other.Delete(t.Context(), slice.DeepCopy()),
			"may write only the ResourceSlices of that node")
		s.must(t, own.Update(t.Context(), slice.DeepCopy(), client.DryRunAll))
		s.must(t, own.Delete(t.Context(), slice.DeepCopy(), client.DryRunAll))
	}
	slice := stray(asIs)
	s.must(t, own.Create(t.Context(), slice))
	s.must(t, kube.Until(t.Context(), soon, "the plugin to remove a slice that it does not know",
		func(ctx context.Context) (bool, string, error) {
			err := s.Get(ctx, client.ObjectKeyFromObject(slice), &resourceapi.ResourceSlice{})
			return apierrors.IsNotFound(err), fmt.Sprint(err), client.IgnoreNotFound(err)
		}))
}

// slicesOf returns the slices that a node's plugin has published.
func (s *suite) slicesOf(t *testing.T, node string) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := s.Slices(t.Context(), *driver)
	s.must(t, err)
	var found []resourceapi.ResourceSlice
	for _, slice := range list {
		if ptr.Deref(slice.Spec.NodeName, "") == node {
			found = append(found, slice)
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no slices", node)
	}
	return found
}

func (s *suite) ownClaims(t *testing.T, node string, own, other, nowhere *kube.Cluster) {
	ns := s.namespace(t, "own-node")
	pod := s.running(t, s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	claim := s.claimOf(t, pod)
	result := claim.Status.Allocation.Devices.Results[0]
	write := func(c *kube.Cluster, change func(*resourceapi.ResourceClaimStatus)) error {
		changed := claim.DeepCopy()
		change(&changed.Status)
		return c.Status().Patch(t.Context(), changed, client.MergeFrom(&claim),
			&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
	}
	lie := func(status *resourceapi.ResourceClaimStatus) {
		status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: result.Driver, Pool: result.Pool,
			Device:  result.Device,
			ShareID: (*string)(result.ShareID),
			Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "E2E",
				LastTransitionTime: metav1.Now()}}}}
	}
	// Validation runs before the policy, and since 1.36 with additional checks (granular status authorization).
	refused := func(what string, err error) {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: got error %v, want a refusal", what, err)
		}
	}
	s.must(t, write(own, lie))
	refused("status with another node's token", write(other, lie))
	refused("status with a token of no node", write(nowhere, lie))
	refused("reservation", write(own, func(status *resourceapi.ResourceClaimStatus) { status.ReservedFor = nil }))
	refused("allocation", write(own,
		func(status *resourceapi.ResourceClaimStatus) { status.Allocation.Devices.Results[0].Device = "other" }))
	refused("what another driver says", write(own, func(status *resourceapi.ResourceClaimStatus) {
		lie(status)
		status.Devices[0].Driver = "gpu.example.com"
	}))
}

// ownEvents: a plugin writes events with its node in them, and changes no others.
func (s *suite) ownEvents(t *testing.T, node string, own, other, nowhere *kube.Cluster) {
	ns := s.namespace(t, "own-events")
	event := func(change func(*eventsv1.Event)) *eventsv1.Event {
		e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "e2e-"},
			EventTime: metav1.NowMicro(), ReportingController: *driver, ReportingInstance: "e2e", Action: "E2E",
			Reason: "E2E", Type: corev1.EventTypeNormal, Note: "a test",
			Regarding: corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: ns,
				Name: "claim"},
			Related: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node}}
		change(e)
		return e
	}
	asIs := func(*eventsv1.Event) {}
	const ofItsOwn = "may write only events of its own"
	refusedFor(t, "an event with another node's token", other.Create(t.Context(), event(asIs)), ofItsOwn)
	refusedFor(t, "an event with a token of no node", nowhere.Create(t.Context(), event(asIs)), "bound to no node")
	refusedFor(t, "an event of the kubelet", own.Create(t.Context(),
		event(func(e *eventsv1.Event) { e.ReportingController = "kubelet" })), ofItsOwn)
	refusedFor(t, "an event about a secret", own.Create(t.Context(),
		event(func(e *eventsv1.Event) { e.Regarding.Kind = "Secret" })),
		"only events about claims, their pods and that node")
	mine := event(asIs)
	s.must(t, own.Create(t.Context(), mine))
	foreign := event(func(e *eventsv1.Event) { e.ReportingController = "kubelet" })
	s.must(t, s.Create(t.Context(), foreign))
	note := func(c *kube.Cluster, e *eventsv1.Event, patch string) error {
		return c.Patch(t.Context(), e.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)),
			client.DryRunAll)
	}
	const again = `{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`
	s.must(t, note(own, mine, again))
	refusedFor(t, "a change of an event with another node's token", note(other, mine, again), ofItsOwn)
	refusedFor(t, "a change of the kubelet's event", note(own, foreign, again), ofItsOwn)
	refusedFor(t, "the kubelet's event becomes its own", note(own, foreign,
		`{"metadata":{"labels":{"a":"b"}},"related":{"kind":"Node","name":"`+node+`"}}`), ofItsOwn)
}

// testUngranted tries to change objects that are not the plugin's, with its own token.
func (s *suite) testUngranted(t *testing.T, node string, own *kube.Cluster) {
	ns := s.namespace(t, "ungranted")
	named := metav1.ObjectMeta{Name: "e2e-ungranted", Namespace: ns}
	global := metav1.ObjectMeta{Name: "e2e-ungranted"}
	objects := []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, &corev1.Namespace{ObjectMeta: global},
		&corev1.Pod{ObjectMeta: named}, &corev1.Secret{ObjectMeta: named}, &corev1.ConfigMap{ObjectMeta: named},
		&corev1.ServiceAccount{ObjectMeta: named}, &corev1.Event{ObjectMeta: named},
		&appsv1.DaemonSet{ObjectMeta: named}, &coordinationv1.Lease{ObjectMeta: named},
		&resourceapi.ResourceClaim{ObjectMeta: named}, &resourceapi.ResourceClaimTemplate{ObjectMeta: named},
		&resourceapi.DeviceClass{ObjectMeta: global}, &rbacv1.ClusterRole{ObjectMeta: global},
		&rbacv1.ClusterRoleBinding{ObjectMeta: global},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: global},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: global},
	}
	lacks, err := s.Lacks(t.Context(), "DRADeviceTaintRules")
	s.must(t, err)
	if len(lacks) == 0 {
		objects = append(objects, &resourceapi.DeviceTaintRule{ObjectMeta: global})
	}
	for _, o := range objects {
		change := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		for verb, err := range map[string]error{
			"create":           own.Create(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll),
			"patch":            own.Patch(t.Context(), o.DeepCopyObject().(client.Object), change, client.DryRunAll),
			"delete":           own.Delete(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll),
			"deletecollection": own.DeleteAllOf(t.Context(), o, client.InNamespace(o.GetNamespace()), client.DryRunAll),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s %T: got error %v, want a refusal", verb, o, err)
			}
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: ns}}
	token := own.SubResource("token").Create(t.Context(), account, &authenticationv1.TokenRequest{})
	if !apierrors.IsForbidden(token) {
		t.Errorf("ask for another token: got error %v, want a refusal", token)
	}
	eviction := own.SubResource("eviction").Create(t.Context(), &corev1.Pod{ObjectMeta: named}, &policyv1.Eviction{})
	if !apierrors.IsForbidden(eviction) {
		t.Errorf("evict a pod: got error %v, want a refusal", eviction)
	}
}
