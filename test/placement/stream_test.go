// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpudra/gpu-dra-driver/test/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// oneAtATime is a scheduler for a node that has room for one pod.
func oneAtATime(ctx context.Context, t *testing.T, c kubernetes.Interface, w watch.Interface) {
	taken := ""
	for e := range w.ResultChan() {
		pod := e.Object.(*corev1.Pod)
		switch {
		case e.Type == watch.Deleted && pod.Name == taken:
			taken = ""
		case e.Type != watch.Added:
		case taken != "":
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable, Message: "full"}}
			if _, err := c.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		default:
			taken = pod.Name
			pod.Spec.NodeName = "node"
			if _, err := c.CoreV1().Pods(namespace).Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
}

// startTest returns a submitter for a node that has room for one pod.
func startTest(t *testing.T) (*submitter, kubernetes.Interface) {
	t.Helper()
	c := fake.NewClientset()
	s, err := newSubmitter(t.Context(), c, controlplane.DefaultScheduler)
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var scheduler sync.WaitGroup
	scheduler.Go(func() { oneAtATime(t.Context(), t, c, w) })
	t.Cleanup(func() { w.Stop(); scheduler.Wait() })
	return s, c
}

// left returns the names of the pods and of the claims.
func left(t *testing.T, c kubernetes.Interface) string {
	t.Helper()
	s, err := read(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range s.pods {
		all = append(all, p.Name)
	}
	for _, claim := range s.claims {
		all = append(all, "claim "+claim.Name)
	}
	return strings.Join(all, ", ")
}

func decisions(all []arrival) (text string) {
	for _, a := range all {
		text += fmt.Sprintf("%s:%s%s ", a.name, a.node, a.why)
	}
	return strings.TrimSpace(text)
}

func TestPodsThatLeaveMakeRoom(t *testing.T) {
	s, c := startTest(t)
	one := trace.Pod{GPUs: 1, Amount: trace.Whole}
	done, remains, err := s.churn(t.Context(), []trace.Visit{{Pod: one, Arrives: 0, Runs: 1},
		{Pod: one, Arrives: 0.5, Runs: 9}, {Pod: one, Arrives: 1.5, Runs: 9}, {Pod: one, Arrives: 2, Runs: 9}},
		func([]arrival) {})
	if err != nil {
		t.Fatal(err)
	}
	const want = "churn-000000:node churn-000001:full churn-000002:node churn-000003:full"
	if got := decisions(done); got != want || remains != trace.Whole {
		t.Errorf("got %s, %d remain; want %s, 1000", got, remains, want)
	}
	if got, want := left(t, c), "churn-000002, claim churn-000002"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRefusedPodsDoNotComeBack(t *testing.T) {
	s, c := startTest(t)
	one := trace.Pod{GPUs: 1, Amount: trace.Whole}
	done, err := s.arrive(t.Context(), "fill", []trace.Pod{one, one, one}, 2, func([]arrival) {})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := decisions(done), "fill-000000:node fill-000001:full fill-000002:full"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := left(t, c), "fill-000000, claim fill-000000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
