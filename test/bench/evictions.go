// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

const (
	evictions = 7
	worker    = "worker" // the Deployment whose pod is evicted
)

// evictions times the replacement of the pod of a Deployment, whose GPU gets an XID that evicts.
func (s *sickness) evictions(ctx context.Context) error {
	if err := s.template(ctx, driver); err != nil {
		return err
	}
	pod, err := s.deploy(ctx)
	if err != nil {
		return err
	}
	var whole, own, taint, evict, bind, run samples
	for range evictions {
		e, err := s.evict(ctx, pod)
		if err != nil {
			return err
		}
		whole, own = append(whole, e.running.Sub(e.begin)), append(own, e.tainted.Sub(e.begin)+e.prepare)
		taint, evict = append(taint, e.tainted.Sub(e.begin)), append(evict, e.deleted.Sub(e.tainted))
		bind, run = append(bind, e.bound.Sub(e.deleted)), append(run, e.running.Sub(e.bound))
		pod = e.next
		if err := errors.Join(s.heal(ctx), s.oneClaim(ctx), s.quiet(ctx)); err != nil {
			return err
		}
	}
	s.results["evict"], s.results["evictown"] = []float64{whole.p50()}, []float64{own.p50()}
	s.results["evictparts"] = []float64{taint.p50(), evict.p50(), bind.p50(), run.p50()}
	deployments := s.client.AppsV1().Deployments(s.ns)
	background := metav1.DeletePropagationBackground
	if err := deployments.Delete(ctx, worker, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	return s.empty(ctx)
}

// deploy creates a Deployment of one pod with a GPU, and returns the pod when it runs.
func (s *sickness) deploy(ctx context.Context) (*corev1.Pod, error) {
	spec := withClaim(s.pod(), driver).Spec
	spec.RestartPolicy, spec.TerminationGracePeriodSeconds = corev1.RestartPolicyAlways, ptr.To(int64(0))
	labels := map[string]string{"app": worker}
	if _, err := s.client.AppsV1().Deployments(s.ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: worker},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	var running *corev1.Pod
	err := until(ctx, "the pod of the Deployment", func() (bool, error) {
		pods, err := s.client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + worker})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return false, err
		}
		running = &pods.Items[0]
		return true, nil
	})
	return running, errors.Join(err, s.quiet(ctx))
}

// oneClaim waits until only the claim of the current pod is left.
func (s *sickness) oneClaim(ctx context.Context) error {
	return until(ctx, "the claim of the evicted pod to be gone", func() (bool, error) {
		claims, err := s.claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(claims.Items) == 1, err
	})
}

// eviction is what was seen of one: when the XID was reported, when the taint was seen, the pods, and how long the
// plugin took to prepare the next pod's claim, without the claim's GET.
type eviction struct {
	begin, tainted time.Time
	replacement
	prepare time.Duration
}

// evict lets the GPU of the pod report an XID, and waits for a pod on another GPU.
func (s *sickness) evict(ctx context.Context, pod *corev1.Pod) (e eviction, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	device, err := s.deviceOf(ctx, pod)
	if err != nil {
		return e, err
	}
	// Otherwise the XID ends as soon as NVML is asked which recovery the GPU needs.
	if err := s.change(device, "recovery-action=reboot"); err != nil {
		return e, err
	}
	if _, err := s.slices.until(ctx, "the taint of the recovery action", func(w *sliceWatch) bool {
		return w.count(sick) > 0
	}); err != nil {
		return e, err
	}
	_, pods, err := watchNew(ctx, s.client.CoreV1().Pods(s.ns).List, s.client.CoreV1().Pods(s.ns).Watch,
		metav1.ListOptions{LabelSelector: "app=" + worker})
	if err != nil {
		return e, err
	}
	defer pods.Stop()
	before, err := s.prepares(ctx)
	if err := errors.Join(err, s.quiet(ctx), s.slices.drain()); err != nil {
		return e, err
	}
	if e.begin, err = s.emit(device, evictingXID); err != nil {
		return e, err
	}
	tainted := make(chan error, 1)
	go func() {
		var err error
		e.tainted, err = s.slices.until(ctx, "the taint of "+device, func(w *sliceWatch) bool {
			return w.tainted(device)
		})
		tainted <- err
	}()
	seen, err := replaced(ctx, pods.ResultChan(), pod.Name)
	if err := errors.Join(err, <-tainted); err != nil {
		return e, err
	}
	e.replacement = seen
	after, err := s.prepares(ctx)
	if err != nil {
		return e, err
	}
	if after.count == before.count {
		return e, errors.New("the plugin has counted no Prepare during an eviction")
	}
	e.prepare = time.Duration((after.seconds - before.seconds) * float64(time.Second))
	next, err := s.deviceOf(ctx, e.next)
	if err == nil && next == device {
		err = fmt.Errorf("the replacement of the evicted pod is on %s, as before", next)
	}
	return e, err
}

// deviceOf returns the device of the pod's only claim.
func (s *sickness) deviceOf(ctx context.Context, pod *corev1.Pod) (string, error) {
	current, err := s.client.CoreV1().Pods(s.ns).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	statuses := current.Status.ResourceClaimStatuses
	if len(statuses) != 1 || statuses[0].ResourceClaimName == nil {
		return "", fmt.Errorf("pod %s has %d claims, want 1 with a name", pod.Name, len(statuses))
	}
	claim, err := s.claims.Get(ctx, *statuses[0].ResourceClaimName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		return "", fmt.Errorf("claim %s of pod %s does not have one device", claim.Name, pod.Name)
	}
	return claim.Status.Allocation.Devices.Results[0].Device, nil
}

// replacement is when a watch showed that a pod was deleted, or was about to be, and that the next one was bound to a
// node and ran.
type replacement struct {
	deleted, bound, running time.Time
	next                    *corev1.Pod
}

// replaced waits until the named pod is deleted and another one runs.
func replaced(ctx context.Context, events <-chan watch.Event, name string) (r replacement, err error) {
	for r.deleted.IsZero() || r.running.IsZero() {
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("wait for the replacement of pod %s: %w", name, ctx.Err())
		case event, open := <-events:
			now := time.Now()
			if !open {
				return r, errors.New("wait for pods: the watch ended")
			}
			pod, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok:
				return r, fmt.Errorf("wait for pods: %w", apierrors.FromObject(event.Object))
			case pod.Name == name:
				if r.deleted.IsZero() && (event.Type == watch.Deleted || pod.DeletionTimestamp != nil) {
					r.deleted = now
				}
				continue
			}
			if r.bound.IsZero() && pod.Spec.NodeName != "" {
				r.bound = now
			}
			if r.running.IsZero() && pod.Status.Phase == corev1.PodRunning {
				r.running, r.next = now, pod
			}
		}
	}
	return r, nil
}
