// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testCallers calls the webhooks from a pod of a tenant, as an API server would: with the paths without what only API
// servers know, and with the path that the message of a failed call has.
func (s *suite) testCallers(t *testing.T) {
	attacked := s.labelled(t, "attacked", map[string]string{"gpu.nvidia.com/quota": "on"})
	quota := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GPUQuota",
		"metadata": map[string]any{"namespace": attacked, "name": "gpus"},
		"spec":     map[string]any{"hard": map[string]any{"memory": "80Gi", "gpus": 8}}}}
	s.must(t, s.Create(t.Context(), quota))
	counted := func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(quota), quota)
		used, ok, _ := unstructured.NestedString(quota.Object, "status", "used", "memory")
		return ok, used, err
	}
	s.must(t, kube.Until(t.Context(), soon, "the quota to be counted", counted))
	tenant := s.running(t, s.pod(t, s.namespace(t, "tenant"), "tenant", func(p *corev1.PodSpec) {
		p.Containers[0].Args = []string{"sleep"}
	}))

	claim := &resourceapi.ResourceClaim{Spec: claimSpec(),
		ObjectMeta: metav1.ObjectMeta{Namespace: attacked, Name: "forged", UID: "forged"}}
	raw, err := json.Marshal(claim)
	s.must(t, err)
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "x", Namespace: attacked, Name: claim.Name,
			Kind:      metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
			Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}}})
	s.must(t, err)
	post := func(path string, slow ...string) string {
		t.Helper()
		for _, controller := range s.controllers(t) {
			to := "https://" + net.JoinHostPort(controller.Status.PodIP, strconv.Itoa(s.webhookPort(controller))) + path
			got, err := s.Exec(t.Context(), client.ObjectKeyFromObject(tenant), append([]string{"gpu-demo", "post", to,
				string(body)}, slow...)...)
			s.must(t, err)
			if !strings.HasPrefix(got, "403") {
				return got
			}
		}
		return ""
	}
	for _, path := range []string{"/quota", "/validate", "/check", "/strongest", "/convert", "/placement/prioritize",
		"/quota/00000000000000000000000000000000"} {
		if got := post(path + "?timeout=10s"); got != "" {
			t.Errorf("a forged request to %s: got %s, want 403 of every replica", path, got)
		}
		if got := post(path, "slow"); got != "" {
			t.Errorf("a slow request to %s: got %s, want 403 of every replica", path, got)
		}
	}

	// While nobody answers, a tenant makes a call fail, and its message has the path.
	s.scaleController(t, 0)
	err = s.Create(t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: tenant.Namespace,
		Name: "leak"}, Spec: claimSpec(opaque(*driver, gpuConfig+`"environment": {}}`))})
	s.scaleController(t, 2)
	leaked := regexp.MustCompile(`/validate/([0-9a-f]{32})\?`).FindStringSubmatch(fmt.Sprint(err))
	if leaked == nil {
		t.Fatalf("got %v, want the path of the webhook in the message", err)
	}
	refused := func(context.Context) (bool, string, error) {
		got := post("/quota/" + leaked[1])
		return got == "", got, nil
	}
	s.must(t, kube.Until(t.Context(), soon, "the path of the message to be refused", refused))
	// What the forged requests of a moment may have charged is gone with the next count.
	s.must(t, kube.Until(t.Context(), soon, "nothing to be charged", func(ctx context.Context) (bool, string, error) {
		_, used, err := counted(ctx)
		pending, _, _ := unstructured.NestedSlice(quota.Object, "status", "pending")
		return used == "0" && len(pending) == 0, fmt.Sprintf("%s, %d pending", used, len(pending)), err
	}))
}

// webhookPort returns the port of the webhooks.
func (s *suite) webhookPort(controller corev1.Pod) int {
	for _, p := range controller.Spec.Containers[0].Ports {
		if p.Name == "webhook" {
			return int(p.ContainerPort)
		}
	}
	return 0
}
