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
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

const (
	singles = 16
	eights  = 12
)

// measurePods times pods without a claim, with a claim of the driver, and with a claim of a null floor, without CDI
// hooks and with those of the driver, in turn. The claims come from templates, as users do it.
func measurePods(ctx context.Context, b *bench) (err error) {
	edits, err := b.edits(ctx)
	if err != nil {
		return err
	}
	bare := *edits
	bare.Hooks = nil
	kinds := []func() *corev1.Pod{b.pod, func() *corev1.Pod { return withClaim(b.pod(), driver) }}
	for _, floor := range []struct {
		name  string
		edits *cdispecs.ContainerEdits
	}{{"null", &bare}, {"hooks", edits}} {
		s, failed := b.startFloor(floor.name, floor.edits)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		undo, failed := b.offer(ctx, s.driver)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, undo()) }()
		kinds = append(kinds, func() *corev1.Pod { return withClaim(b.pod(), s.driver) })
	}
	for _, class := range []string{driver, "null" + floorDomain, "hooks" + floorDomain} {
		if err := b.template(ctx, class); err != nil {
			return err
		}
	}
	turn := func(n, repeats int) (took [4]podStarts, err error) {
		for r := range repeats {
			for k := range kinds {
				i := (k + r) % len(kinds)
				if err := b.podsRunning(ctx, kinds[i](), n, &took[i]); err != nil {
					return took, err
				}
			}
		}
		return took, nil
	}
	if _, err := turn(1, 1); err != nil { // the first ones find nothing warm
		return err
	}
	one, err := turn(1, singles)
	if err != nil {
		return err
	}
	eight, err := turn(burst, eights)
	if err != nil {
		return err
	}
	const plain, ours, null, hooks = 0, 1, 2, 3
	for key, took := range map[string][4]podStarts{"pod": one, "pods8": eight} {
		running := func(kind int) float64 { return took[kind].running.p50() }
		b.results[key] = []float64{running(ours) - running(null)}
		b.results[key+"hooks"] = []float64{running(ours) - running(hooks)}
		b.results[key+"plain"] = []float64{running(plain), running(null), running(hooks), running(ours)}
	}
	b.results["pods8bound"] = []float64{eight[null].bound.p50(), eight[hooks].bound.p50(), eight[ours].bound.p50()}
	for key := range eight[ours].used {
		b.results["pods8"+key] = []float64{eight[null].used[key].p50(), eight[hooks].used[key].p50(),
			eight[ours].used[key].p50()}
	}
	return nil
}

// podStarts are bursts of pods that were created in parallel, each until the last of its pods was seen running.
type podStarts struct {
	running, bound samples
	used           processorTimes
}

// offer publishes eight devices of the driver and a class for them, until undo is called.
func (b *bench) offer(ctx context.Context, driver string) (undo func() error, err error) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.driver == %q", driver)}}}}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &b.node,
			Pool: resourceapi.ResourcePool{Name: b.node, Generation: 1, ResourceSliceCount: 1}}}
	for _, name := range b.gpus {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: name})
	}
	api := b.client.ResourceV1()
	if _, err := api.DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := api.ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return func() error {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(api.ResourceSlices().Delete(ctx, driver, metav1.DeleteOptions{}),
			api.DeviceClasses().Delete(ctx, driver, metav1.DeleteOptions{}))
	}, nil
}

// template creates the template of claims for a device of the class, unless it exists.
func (b *bench) template(ctx context.Context, class string) error {
	_, err := b.client.ResourceV1().ResourceClaimTemplates(b.ns).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: request,
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}}}},
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

// withClaim gives the pod a claim from the template for the class.
func withClaim(pod *corev1.Pod, class string) *corev1.Pod {
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: request, ResourceClaimTemplateName: &class}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: request}}
	return pod
}

// podsRunning creates n pods in parallel and adds the times until the last is seen running. It removes them and their
// claims before it returns.
func (b *bench) podsRunning(ctx context.Context, pod *corev1.Pod, n int, took *podStarts) error {
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	pods := b.client.CoreV1().Pods(b.ns)
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer events.Stop()
	if took.used == nil {
		took.used = processorTimes{}
	}
	var begin, bound, running time.Time
	if err := took.used.during(func() (err error) {
		begin = time.Now()
		err = atOnce(n, n, func(int) error { _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); return err })
		if err != nil {
			return fmt.Errorf("create a pod: %w", err)
		}
		bound, running, err = allRunning(ctx, events, n)
		return err
	}); err != nil {
		return err
	}
	took.bound, took.running = append(took.bound, bound.Sub(begin)), append(took.running, running.Sub(begin))
	return errors.Join(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), b.empty(ctx))
}

// allRunning returns when the last of n pods was seen bound to a node, and when the last was seen running.
func allRunning(ctx context.Context, events watch.Interface, n int) (bound, running time.Time, err error) {
	var onNode, run []string
	running, err = await(ctx, events, "pods", func(pod *corev1.Pod, at time.Time) bool {
		if pod.Spec.NodeName != "" && !slices.Contains(onNode, pod.Name) {
			onNode, bound = append(onNode, pod.Name), at
		}
		if pod.Status.Phase == corev1.PodRunning && !slices.Contains(run, pod.Name) {
			run = append(run, pod.Name)
		}
		return len(run) == n
	})
	if err != nil {
		return bound, running, fmt.Errorf("%d of %d pods run: %w", len(run), n, err)
	}
	return bound, running, nil
}

// await passes the objects of a watch to done until it returns true, each with the time when it came, and returns that
// of the last.
func await[T any](ctx context.Context, events watch.Interface, what string,
	done func(object T, at time.Time) bool) (time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case event, open := <-events.ResultChan():
			now := time.Now()
			if !open {
				return time.Time{}, fmt.Errorf("wait for %s: the watch ended", what)
			}
			if object, ok := event.Object.(T); ok && done(object, now) {
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
