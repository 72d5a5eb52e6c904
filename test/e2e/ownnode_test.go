//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
