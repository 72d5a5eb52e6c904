// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

const (
	singles = 16
	eights  = 6
)

// measurePods times pods with a claim and the same pods without, alternately. The claim comes from a template, as users
// do it.
func measurePods(ctx context.Context, b *bench) error {
	if err := b.template(ctx); err != nil {
		return err
	}
	var with, without, with8, without8 samples
	turn := func(n, repeats int, with, without *samples) error {
		for range repeats {
			for _, kind := range []struct {
				pod  *corev1.Pod
				took *samples
			}{{b.pod(), without}, {withClaim(b.pod()), with}} {
				took, err := b.podsRunning(ctx, kind.pod, n)
				if err != nil {
					return err
				}
				*kind.took = append(*kind.took, took)
			}
		}
		return nil
	}
	err := errors.Join(
		turn(1, 1, &samples{}, &samples{}), // the first ones find nothing warm
		turn(1, singles, &with, &without),
		turn(burst, eights, &with8, &without8))
	if err != nil {
		return err
	}
	b.results["pod"] = []float64{with.p50() - without.p50()}
	b.results["pods8"] = []float64{with8.p50() - without8.p50()}
	b.results["podplain"] = []float64{without.p50(), without8.p50()}
	return nil
}

// template creates the template of claims for a whole GPU, unless it exists.
func (b *bench) template(ctx context.Context) error {
	_, err := b.client.ResourceV1().ResourceClaimTemplates(b.ns).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: request},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: request,
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver}}}}}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// pod returns a pod that does nothing and ends at once when it is terminated.
func (b *bench) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			NodeSelector:                  map[string]string{corev1.LabelHostname: b.node},
			Containers:                    []corev1.Container{{Name: "main", Image: b.image, Args: []string{"sleep"}}},
		},
	}
}

func withClaim(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: request, ResourceClaimTemplateName: ptr.To(request)}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: request}}
	return pod
}

// podsRunning creates n pods in parallel and returns the time until the last is seen running. It removes them and their
// claims before it returns.
func (b *bench) podsRunning(ctx context.Context, pod *corev1.Pod, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	pods := b.client.CoreV1().Pods(b.ns)
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	begin := time.Now()
	err = atOnce(n, n, func(int) error { _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); return err })
	if err != nil {
		return 0, fmt.Errorf("create a pod: %w", err)
	}
	end, err := allRunning(ctx, events, n)
	if err != nil {
		return 0, err
	}
	return end.Sub(begin), errors.Join(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		b.empty(ctx))
}

// allRunning returns the time at which the last of n pods was seen running.
func allRunning(ctx context.Context, events watch.Interface, n int) (time.Time, error) {
	var running []string
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%d of %d pods run: %w", len(running), n, ctx.Err())
		case event, open := <-events.ResultChan():
			now := time.Now()
			if !open {
				return time.Time{}, errors.New("wait for pods: the watch ended")
			}
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || pod.Status.Phase != corev1.PodRunning || slices.Contains(running, pod.Name) {
				continue
			}
			if running = append(running, pod.Name); len(running) == n {
				return now, nil
			}
		}
	}
}

// empty waits until no pod and no claim remains.
func (b *bench) empty(ctx context.Context) error {
	return until(ctx, "pods and claims to be gone", func() (bool, error) {
		pods, err := b.client.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return false, err
		}
		claims, err := b.claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(claims.Items) == 0, err
	})
}
