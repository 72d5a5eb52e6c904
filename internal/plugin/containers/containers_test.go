// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// TestUsing: the containers that use a claim, their requests, and other devices of the driver.
func TestUsing(t *testing.T) {
	const driver = "gpu.nvidia.com"
	claim := func(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Status: resourceapi.ResourceClaimStatus{
				Allocation: &resourceapi.AllocationResult{
					Devices: resourceapi.DeviceAllocationResult{Results: results},
				},
				ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "1"}},
			}}
	}
	share := claim("share", resourceapi.DeviceRequestAllocationResult{Driver: driver, Request: "a", Device: "gpu-0"},
		resourceapi.DeviceRequestAllocationResult{Driver: driver, Request: "b/small", Device: "gpu-1"})
	objects := fake.NewClientset(share,
		claim("whole", resourceapi.DeviceRequestAllocationResult{Driver: driver, Request: "r", Device: "gpu-2"},
			resourceapi.DeviceRequestAllocationResult{Driver: driver, Request: "s/first", Device: "gpu-3"}),
		claim("monitor", resourceapi.DeviceRequestAllocationResult{Driver: driver, Request: "r", Device: "monitor",
			AdminAccess: ptr.To(true)}),
		claim("nic", resourceapi.DeviceRequestAllocationResult{Driver: "nic.example.com", Request: "r",
			Device: "eth0"}),
	)
	for _, row := range []struct {
		name   string
		uses   []corev1.ResourceClaim
		mounts []corev1.VolumeMount
		want   string
	}{
		{"a volume at /dev/shm", []corev1.ResourceClaim{{Name: "share"}},
			[]corev1.VolumeMount{{Name: "v", MountPath: "/dev/shm/"}}, "[{main [] [] {v /dev/shm/ false  []}}]"},
		{"a volume below", []corev1.ResourceClaim{{Name: "share"}}, []corev1.VolumeMount{{MountPath: "/dev/shm/x"}},
			"[{main [] [] {  false  []}}]"},
		{"the claim alone", []corev1.ResourceClaim{{Name: "share"}}, nil, "[{main [] [] {  false  []}}]"},
		{"one of its requests", []corev1.ResourceClaim{{Name: "share", Request: "b"}}, nil,
			"[{main [b] [] {  false  []}}]"},
		{"two of its requests", []corev1.ResourceClaim{{Name: "share", Request: "b"}, {Name: "share", Request: "a"}},
			nil, "[{main [b a] [] {  false  []}}]"},
		{"a request, and all", []corev1.ResourceClaim{{Name: "share", Request: "b"}, {Name: "share"}}, nil,
			"[{main [] [] {  false  []}}]"},
		{"the same claim under another name", []corev1.ResourceClaim{{Name: "share"}, {Name: "again"}}, nil,
			"[{main [] [] {  false  []}}]"},
		{"and a whole GPU", []corev1.ResourceClaim{{Name: "share"}, {Name: "whole"}}, nil,
			"[{main [] [device gpu-2 of claim whole device gpu-3 of claim whole] {  false  []}}]"},
		{"and one request of another claim", []corev1.ResourceClaim{{Name: "share"}, {Name: "whole", Request: "s"}},
			nil,
			"[{main [] [device gpu-3 of claim whole] {  false  []}}]"},
		{"and the monitor", []corev1.ResourceClaim{{Name: "share"}, {Name: "monitor"}}, nil,
			"[{main [] [] {  false  []}}]"},
		{"and a device of another driver", []corev1.ResourceClaim{{Name: "share"}, {Name: "nic"}}, nil,
			"[{main [] [] {  false  []}}]"},
		{"another claim only", []corev1.ResourceClaim{{Name: "whole"}}, nil, "[]"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "1"}}
		for ref, name := range map[string]string{"share": "share", "again": "share", "whole": "whole",
			"monitor": "monitor", "nic": "nic"} {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: ref,
				ResourceClaimName: &name})
		}
		pod.Spec.Containers = []corev1.Container{{Name: "main", VolumeMounts: row.mounts,
			Resources: corev1.ResourceRequirements{Claims: row.uses}}}
		if err := objects.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
		got, err := Using(objects, driver, nil)(t.Context(), share)
		if text := fmt.Sprint(got); err != nil || text != row.want {
			t.Errorf("%s: got %s, error %v, want %s", row.name, text, err, row.want)
		}
		if err := objects.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "pod"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUsingBesideAnUnknownClaim: without the other claim it is unknown whether the container may use both.
func TestUsingBesideAnUnknownClaim(t *testing.T) {
	share := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "share"}}
	share.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "1"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "1"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: ptr.To("share")},
		{Name: "b", ResourceClaimName: ptr.To("gone")}}
	pod.Spec.Containers =
		[]corev1.Container{{Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "a"},
			{Name: "b"}}}}}
	if got, err := Using(fake.NewClientset(pod), "gpu.nvidia.com", nil)(t.Context(), share); err == nil {
		t.Errorf("got %v and no error", got)
	}
}

// TestUsingOfPodGroup: a PodGroup does not name its pods, so those of the node are looked at.
func TestUsingOfPodGroup(t *testing.T) {
	share := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "share"}}
	share.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{ofGroup("ours")}
	client := fake.NewClientset(member("ours", "a", "1"), member("ours", "b", "2"), member("theirs", "c", "3"))
	listed := func(_ context.Context, namespace string) ([]string, error) {
		if namespace != "ns" {
			return nil, fmt.Errorf("got namespace %s", namespace)
		}
		return []string{"c", "a", "gone"}, nil // b is on another node
	}
	got, err := Using(client, "gpu.nvidia.com", listed)(t.Context(), share)
	if err != nil || len(got) != 1 || got[0].Name != "container-of-a" {
		t.Errorf("got %v, error %v, want the container of a", got, err)
	}
	failing := func(context.Context, string) ([]string, error) { return nil, errors.New("no kubelet") }
	if got, err := Using(client, "gpu.nvidia.com", failing)(t.Context(), share); err == nil {
		t.Errorf("without the kubelet: got %v and no error", got)
	}
}

// ofGroup is the reservation of a claim for a PodGroup.
func ofGroup(name string) resourceapi.ResourceClaimConsumerReference {
	return resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: name,
		UID: "group"}
}

// member returns a pod of a PodGroup with a container that uses claim share.
func member(group, name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}, Spec: corev1.PodSpec{
		SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &group},
		ResourceClaims:  []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("share")}},
		Containers: []corev1.Container{{Name: "container-of-" + name,
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}}}
}
