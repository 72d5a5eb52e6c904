//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testGPUQuota creates many claims at once, each for an L40S, where the quota has memory for some. When the claims are
// deleted, their amounts come back. Then a pod asks for a GPU as an extended resource, which may be a larger one.
func (s *suite) testGPUQuota(t *testing.T) {
	const (
		claims, room = 500, 40
		each, hard   = "46068Mi", "1842720Mi"
	)
	ns := s.labelled(t, "gpu-quota", map[string]string{"gpu.nvidia.com/quota": "on"})
	quota := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GPUQuota",
		"metadata": map[string]any{"namespace": ns, "name": "gpus"},
		"spec":     map[string]any{"hard": map[string]any{"memory": hard, "gpus": 100}}}}
	s.must(t, s.Create(t.Context(), quota))
	used := func(want string) {
		t.Helper()
		s.must(t, kube.Until(t.Context(), soon, want+" to be used and nothing to be pending",
			func(ctx context.Context) (bool, string, error) {
				err := s.Get(ctx, client.ObjectKeyFromObject(quota), quota)
				memory, _, _ := unstructured.NestedString(quota.Object, "status", "used", "memory")
				pending, _, _ := unstructured.NestedSlice(quota.Object, "status", "pending")
				return memory == want && len(pending) == 0, fmt.Sprintf("%s, %d pending", memory, len(pending)), err
			}))
	}
	used("0") // or claims are refused until then
	full := "it may take " + each + " of GPU memory, and GPUQuota gpus has 0 of " + hard + " left"
	spec := claimSpec()
	spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.attributes['" + *driver + "'].productName == 'NVIDIA L40S'"}}}
	create := func(name string) (created bool, err error) {
		err = s.createInTime(t.Context(), &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: *spec.DeepCopy()})
		if err != nil && strings.Contains(err.Error(), full) {
			return false, nil
		}
		return err == nil, err
	}
	var admitted atomic.Int64
	var all errgroup.Group
	for i := range claims {
		all.Go(func() error {
			created, err := create(fmt.Sprintf("claim-%d", i))
			if created {
				admitted.Add(1)
			}
			return err
		})
	}
	s.must(t, all.Wait())
	// An answer that came too late leaves an amount pending for a while. Then there is room again.
	s.must(t, kube.Until(t.Context(), soon, "room for as many claims as fit", func(context.Context) (bool, string,
		error) {
		for admitted.Load() < room {
			if created, err := create(fmt.Sprintf("more-%d", admitted.Load())); !created {
				return false, fmt.Sprintf("%d claims", admitted.Load()), err
			}
			admitted.Add(1)
		}
		return true, "", nil
	}))
	if admitted.Load() != room {
		t.Errorf("got %d claims, want %d", admitted.Load(), room)
	}
	used(hard)
	s.must(t, s.DeleteAllOf(t.Context(), &resourceapi.ResourceClaim{}, client.InNamespace(ns)))
	used("0")
	s.must(t, s.Patch(t.Context(), quota, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec": {"hard": {"memory": "15Gi"}}}`))))
	s.needs(t, "DRAExtendedResource")
	pod := s.pod(t, ns, "whole", func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	})
	s.waitEvent(t, pod, "quota.gpu.nvidia.com", "it may take")
}
