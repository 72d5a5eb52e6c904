// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// TestSlimPod: a slim pod requests the same as the pod.
func TestSlimPod(t *testing.T) {
	amount := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"large": "text"}},
		Spec: corev1.PodSpec{NodeName: "a", Overhead: corev1.ResourceList{"cpu": resource.MustParse("1")},
			Resources: ptr.To(amount("40")),
			InitContainers: []corev1.Container{{Resources: amount("2"),
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}, {Resources: amount("8")}},
			Containers: []corev1.Container{{Resources: amount("16"), Env: []corev1.EnvVar{{Name: "LARGE"}}}}}}
	sum := func(p *corev1.Pod) string {
		q := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})["cpu"]
		return q.String()
	}
	slim := slimPod(pod)
	if got, want := sum(slim), sum(pod); got != want || want != "41" {
		t.Errorf("got %s, want %s, 41", got, want)
	}
	if slim.Annotations != nil || slim.Spec.Containers[0].Env != nil || slim.Spec.NodeName != "a" {
		t.Errorf("got %+v, want little more than requests", slim)
	}
	restarted := pod.DeepCopy()
	restarted.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(1000, 0)}}}}
	if got := slimPod(restarted).Status.StartTime; got == nil || !got.Equal(ptr.To(metav1.Unix(1000, 0))) {
		t.Errorf("got start %v, want that of the container, which has restarted", got)
	}
	resized := pod.DeepCopy()
	resized.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}}
	if got := slimPod(resized.DeepCopy()); !reflect.DeepEqual(got.Status, resized.Status) {
		t.Errorf("of one that is resized: got %+v, want its status", got.Status)
	}
	pending := pod.DeepCopy()
	pending.Spec.NodeName = ""
	without := pending.DeepCopy()
	without.Annotations = nil
	if got := slimPod(pending); !reflect.DeepEqual(got, without) {
		t.Errorf("without a node: got %+v, want all of it but annotations", got)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if got := SlimObject(pod); got != nil {
		t.Errorf("of one that has ended: got %+v, want nothing", got)
	}
}

// waits returns a pod that a scheduler has refused, with that many claims.
func waits(name string, claims int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"x": "y"}},
		Spec: corev1.PodSpec{SchedulerName: "gpu-first", Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/1 nodes are available"}}}}
	for i := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint("c", i),
			ResourceClaimName: ptr.To(fmt.Sprint("c", i))})
	}
	return pod
}

// Little is kept of a pod, however much its user writes, and the same when it is made slim again.
func TestSlim(t *testing.T) {
	extended := waits("extended", 0)
	extended.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LARGE"}}
	extended.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"),
		"nvidia.com/gpu": resource.MustParse("2")}
	gang := waits("gang", 1)
	gang.Labels["scheduling.k8s.io/group-name"] = "g"
	annotated := waits("annotations and gates", 1)
	annotated.Annotations = map[string]string{ShapeAnnotation: strings.Repeat("x", 1000),
		PauseAnnotation: strings.Repeat("x", 1000), "large": strings.Repeat("x", 1000)}
	annotated.Spec.SchedulingGates = make([]corev1.PodSchedulingGate, 1000)
	annotated.OwnerReferences = []metav1.OwnerReference{{Name: strings.Repeat("x", 1000), Controller: ptr.To(true)}}
	for _, row := range []struct {
		pod  *corev1.Pod
		want string // claims, containers, the scheduler, whether it is refused, in a group, and has a shape
	}{
		{waits("none", 0), "0 0 \"\" false false false"},
		{waits("one", 1), "1 0 \"gpu-first\" true false true"},
		{extended, "0 1 \"gpu-first\" true false true"},
		{gang, "1 0 \"gpu-first\" true true true"},
		{annotated, "1 0 \"gpu-first\" false false true"},
		{waits("256 claims", 256), "256 0 \"gpu-first\" true false true"},
		{waits("as many as an object can have", 20000), "0 0 \"\" false false false"},
	} {
		slim := Slim(row.pod)
		got := fmt.Sprintf("%d %d %q %t %t %t", len(slim.Spec.ResourceClaims), len(slim.Spec.Containers),
			slim.Spec.SchedulerName, IsRefused(slim), slim.Spec.SchedulingGroup != nil,
			slim.Annotations[ShapeAnnotation] != "")
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.pod.Name, got, row.want)
		}
		if text := slim.String(); strings.Contains(text, "LARGE") || strings.Contains(text, "0/1 nodes") ||
			strings.Contains(text, "cpu") || len(slim.Labels) > 0 {
			t.Errorf("%s: got %s, want no environment, message, CPU and labels", row.pod.Name, text)
		}
		if size := slim.Size(); len(slim.Spec.ResourceClaims) < 2 && size > 500 {
			t.Errorf("%s: got %d bytes, want few", row.pod.Name, size)
		}
		if again := Slim(slim); !reflect.DeepEqual(again, slim) {
			t.Errorf("%s, again: got %+v, want %+v", row.pod.Name, again, slim)
		}
	}
}

// All who ask have the pods of one watch.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset(waits("none", 0), waits("one", 1))
		p := New(api)
		first, second := p.Follow(t.Context()), p.Follow(t.Context())
		if _, err := api.CoreV1().Pods("ns").Create(t.Context(), waits("two", 2), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, list := range []func() []*corev1.Pod{first, second} {
			if got := list(); len(got) != 2 || len(got[0].Spec.ResourceClaims) == 0 {
				t.Errorf("got %v, want the two pods with claims", got)
			}
		}
		watches := 0
		for _, a := range api.Actions() {
			if a.GetVerb() == "watch" {
				watches++
			}
		}
		if watches != 1 {
			t.Errorf("got %d watches, want one", watches)
		}
	})
}
