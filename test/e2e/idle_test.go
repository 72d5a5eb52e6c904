//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testIdlePod: of two pods with GPUs, the one that uses none is marked, and evicted once its namespace has the label,
// with events before and after. The demo of idle GPUs shows that a pod that uses its GPU stays.
func (s *suite) testIdlePod(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	node := s.node(t, "dgx-h100")
	ns := s.namespace(t, "idle")
	idle := s.running(t, s.pod(t, ns, "idle", onNode(node), withTemplate(s.template(t, ns, "one-gpu"))))
	busy := s.allocating(t, ns, "busy", "4Gi", onNode(node), // without MPS, the simulation tells of no process
		withTemplate(s.templateFor(t, ns, "busy", share("gpu", "NVIDIA H100 80GB HBM3", "5Gi", "30"))))
	user := s.kubectlUser(t, ns)

	// On a slow machine the busy one is idle, too, until it has its memory.
	s.must(t, kube.Until(t.Context(), soon, "one idle claim", func(ctx context.Context) (bool, string, error) {
		top, err := kubectlGPU(ctx, "top", "--idle", "-n", ns, "--as", user)
		return strings.Contains(top, " "+idle.Name+" ") && !strings.Contains(top, busy.Name), top, err
	}))
	claim := s.claimOf(t, idle)
	s.waitEvent(t, client.ObjectKeyFromObject(&claim), "no pod of the claim has used "+s.allocated(t, idle).Name)

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	s.must(t, s.Patch(t.Context(), namespace, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata": {"labels": {"gpu.nvidia.com/idle-eviction": "6s"}}}`))))
	s.must(t, kube.Until(t.Context(), soon, "the eviction", func(ctx context.Context) (bool, string, error) {
		var pod corev1.Pod
		err := s.Get(ctx, client.ObjectKeyFromObject(idle), &pod)
		return client.IgnoreNotFound(err) == nil && (err != nil || pod.DeletionTimestamp != nil), pod.Status.String(),
			client.IgnoreNotFound(err)
	}))
	s.waitEvent(t, client.ObjectKeyFromObject(idle), "will be evicted at")
	s.waitEvent(t, client.ObjectKeyFromObject(idle), "evicted: has not used its GPUs since")
	if pod := s.running(t, client.ObjectKeyFromObject(busy)); pod.UID != busy.UID {
		t.Error("the pod that uses its GPU was evicted")
	}
}
