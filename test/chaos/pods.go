// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
)

const (
	namespace = "chaos"
	urgent    = "chaos-urgent"
)

// templates are the requests of kinds of pods with a claim.
var templates = map[string][]resourceapi.ExactDeviceRequest{
	"whole":     {{DeviceClassName: "gpu.nvidia.com"}},
	"share":     {share("1Gi")},
	"partition": {{DeviceClassName: "mig-1g.10gb.nvidia.com"}},
	"larger":    {{DeviceClassName: "mig-3g.40gb.nvidia.com"}},
	"several":   {{DeviceClassName: "gpu.nvidia.com"}, {DeviceClassName: "gpu.nvidia.com"}},
	"vm":        {{DeviceClassName: "vfio.gpu.nvidia.com"}},
	"vgpu":      {{DeviceClassName: "vgpu.nvidia.com", Selectors: ofType("A16-4Q")}},
}

// ofType selects vGPUs, of which only those of one type fit beside each other on a GPU.
func ofType(profile string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes['%s'].profile == '%s'", check.Driver, profile)}}}
}

// kinds are the kinds of pods: those of the templates, two claims, a claim that two pods share, two kinds of extended
// resources, an older system's fraction, and no GPU at all.
var kinds = append(slices.Sorted(maps.Keys(templates)), "two claims", "shared claim", "resource", "partition resource",
	"converted", "plain")

func share(memory string) resourceapi.ExactDeviceRequest {
	amounts := map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory),
		"cores": resource.MustParse("20")}
	return resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com",
		Capacity: &resourceapi.CapacityRequirements{Requests: amounts}}
}

func claimSpec(requests []resourceapi.ExactDeviceRequest) resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	for i, r := range requests {
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: fmt.Sprintf("gpu-%d", i), Exactly: &r})
	}
	return spec
}

// prepare creates what all pods need.
func (l *lab) prepare(ctx context.Context) error {
	objects := []client.Object{
		// The label makes the controller convert manifests of older systems.
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace,
			Labels: map[string]string{"gpu.nvidia.com/convert": "on"}}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: urgent}, Value: 1000},
	}
	for name, requests := range templates {
		objects = append(objects, &resourceapi.ResourceClaimTemplate{ObjectMeta: meta(name),
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(requests)}})
	}
	for _, o := range objects {
		if err := l.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }

// objects returns the pods of the plan, after the claim that they share.
func (p podPlan) objects(image string) []client.Object {
	pod := &corev1.Pod{ObjectMeta: meta(p.name), Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{Name: "main", Image: image, Args: []string{"sleep"}}},
	}}
	main := &pod.Spec.Containers[0]
	if p.urgent {
		pod.Spec.PriorityClassName = urgent
	}
	if p.life == 0 {
		main.Args = append(main.Args, "2s")
	}
	claims := func(claims ...corev1.PodResourceClaim) {
		for i, c := range claims {
			c.Name = fmt.Sprintf("claim-%d", i)
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, c)
			main.Resources.Claims = append(main.Resources.Claims, corev1.ResourceClaim{Name: c.Name})
		}
	}
	of := func(template string) corev1.PodResourceClaim {
		return corev1.PodResourceClaim{ResourceClaimTemplateName: &template}
	}
	switch p.kind {
	case "plain": // no GPU
	case "two claims":
		claims(of("share"), of("whole"))
		// A process has one set of limits, so each container has one of the claims.
		second := main.DeepCopy()
		second.Name = "second"
		second.Resources.Claims, main.Resources.Claims = main.Resources.Claims[1:], main.Resources.Claims[:1]
		pod.Spec.Containers = append(pod.Spec.Containers, *second)
	case "resource":
		main.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	case "partition resource":
		main.Resources.Limits = corev1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("1")}
	case "converted":
		pod.Annotations = map[string]string{"gpu-fraction": "0.2"}
	case "shared claim":
		claims(corev1.PodResourceClaim{ResourceClaimName: &p.name})
		second := pod.DeepCopy()
		second.Name += "-second"
		return []client.Object{&resourceapi.ResourceClaim{ObjectMeta: meta(p.name),
			Spec: claimSpec(templates["whole"])}, pod, second}
	default:
		claims(of(p.kind))
	}
	if p.kind == "share" && p.life > 0 {
		main.Args = []string{"alloc", "512Mi", "--stay"} // a client of MPS
	}
	return []client.Object{pod}
}

// live creates the pods of the plan and deletes them when their time is over, whatever has happened to them.
func (l *lab) live(ctx context.Context, p podPlan) {
	if ctx.Err() != nil {
		return
	}
	objects := p.objects(l.image)
	for _, o := range objects {
		l.insist(ctx, func() error { return l.Create(ctx, o.DeepCopyObject().(client.Object)) })
	}
	l.pods.Add(1)
	pause(ctx, max(p.life, 5*time.Second))
	ctx = context.WithoutCancel(ctx)
	for _, o := range slices.Backward(objects) {
		var options []client.DeleteOption
		if _, isPod := o.(*corev1.Pod); isPod && p.force {
			options = append(options, client.GracePeriodSeconds(0))
		}
		l.insist(ctx, func() error { return l.Delete(ctx, o, options...) })
	}
}

// insist repeats a call until it succeeds, because the API server or a webhook may be away.
func (l *lab) insist(ctx context.Context, call func() error) {
	for ctx.Err() == nil {
		err := call()
		if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
			errors.Is(err, context.Canceled) {
			return
		}
		pause(ctx, time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
