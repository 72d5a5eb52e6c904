// SPDX-License-Identifier: Apache-2.0

package why

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

// holdExtended gives the pod the claim that the scheduler makes for its extended resources, with the first GPUs of the
// node.
func holdExtended(t *testing.T, pod *corev1.Pod, node string, count int) *resourceapi.ResourceClaim {
	t.Helper()
	c := claim(t, "p-extended-resources-x", gpus(""))
	c.Namespace = pod.Namespace
	c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, s := range fleettest.SlicesOf(t, clustertest.SimNode{Name: node, Profile: "t4-x2", Use: exclusive}) {
		for _, d := range s.Spec.Devices {
			if s.Spec.Pool.Name == node && len(c.Status.Allocation.Devices.Results) < count {
				c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
					resourceapi.DeviceRequestAllocationResult{Request: "container-0-request-0", Driver: driver,
						Pool: node, Device: d.Name})
			}
		}
	}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: c.Name}
	return c
}

// TestExtendedClaim: the scheduler has allocated the pod's extended resources and has ended before it bound the pod.
func TestExtendedClaim(t *testing.T) {
	t4 := clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive}
	s := extended(t, "", "2", t4)
	pod := s.Pods[0]
	pod.UID = "pod"
	own := holdExtended(t, pod, "a", 2)
	s.Claims = append(s.Claims, own)
	explain := func() Outcome {
		t.Helper()
		r, err := Pod(t.Context(), s, pod.Namespace, pod.Name)
		if err != nil {
			t.Fatal(err)
		}
		return r.Outcome
	}
	if got := explain(); got != Fits {
		t.Errorf("with its own claim: got %v, want that it fits", got)
	}
	own.OwnerReferences[0].UID = "another"
	if got := explain(); got != Waits {
		t.Errorf("with the claim of an earlier pod of the name: got %v, want that it waits", got)
	}

	fits := Fit(t.Context(), s, Manifest{Pods: s.Pods, Claims: []*resourceapi.ResourceClaim{own}})
	if len(fits) != 1 || fits[0].Outcome != Fits {
		t.Errorf("the manifest of the pod and its claim: got %+v, want only the pod, which fits", fits)
	}
}
