//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testPreemption lets two pods of higher priority take GPUs at the same time. A budget keeps the other pods, and what
// the victims' controller creates at once does not get in between.
func (s *suite) testPreemption(t *testing.T) {
	s.needs(t, "Kubernetes 1.37") // whose rules keep devices
	node := s.node(t, "l40s-x4")
	ns := s.namespace(t, "preempt")
	gpus := len(s.wholeGPUs(t, node))
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-high-"}, Value: 1000}
	s.must(t, s.Create(t.Context(), class))
	t.Cleanup(func() { s.must(t, s.Delete(context.WithoutCancel(t.Context()), class)) })
	template := s.template(t, ns, "one-gpu")
	s.deployment(t, ns, "low", 2, onNode(node), withTemplate(template))
	s.deployment(t, ns, "kept", int32(gpus-2), onNode(node), withTemplate(template))
	kept := s.readyPods(t, ns, "kept", gpus-2)
	low := s.readyPods(t, ns, "low", 2)
	s.must(t, s.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kept"},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}}))

	high := func(p *corev1.PodSpec) { p.PriorityClassName = class.Name }
	first := s.pod(t, ns, "first", onNode(node), withTemplate(template), high)
	second := s.pod(t, ns, "second", onNode(node), withTemplate(template), high)
	s.running(t, first)
	s.running(t, second)
	s.must(t, kube.Until(t.Context(), soon, "the kept devices to be given back", func(ctx context.Context) (bool,
		string, error) {
		var rules resourceapi.DeviceTaintRuleList
		err := s.List(ctx, &rules, client.HasLabels{"gpu.nvidia.com/preemptor"})
		return err == nil && len(rules.Items) == 0, fmt.Sprint(len(rules.Items)), err
	}))
	if now := s.readyPods(t, ns, "kept", gpus-2); !slices.Equal(now, kept) {
		t.Errorf("got the pods %v, want %v, which the budget keeps", now, kept)
	}
	pods, err := s.Pods(t.Context(), ns, client.MatchingLabels{"app": "low"})
	s.must(t, err)
	for _, pod := range pods {
		if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
			t.Errorf("pod %s is on a node (it was there before: %t), want no pod of low there", pod.Name,
				slices.Contains(low, pod.UID))
		}
	}
}

// deployment creates a Deployment whose pods have the label app.
func (s *suite) deployment(t *testing.T, namespace, name string, replicas int32, options ...podOption) {
	t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main", Image: s.image, Args: []string{"show", "--stay"}}}}}}}
	for _, option := range options {
		option(&d.Spec.Template.Spec)
	}
	s.must(t, s.Create(t.Context(), d))
}

// readyPods waits until so many pods of the Deployment are ready, and returns their UIDs, sorted.
func (s *suite) readyPods(t *testing.T, namespace, name string, want int) (all []types.UID) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("%d ready pods of %s", want, name), func(ctx context.Context) (
		bool, string, error) {
		pods, err := s.Pods(ctx, namespace, client.MatchingLabels{"app": name})
		all = nil
		for i := range pods {
			if kube.Ready(&pods[i]) && pods[i].DeletionTimestamp == nil {
				all = append(all, pods[i].UID)
			}
		}
		slices.Sort(all)
		return len(all) == want, fmt.Sprint(len(all)), err
	}))
	return all
}
