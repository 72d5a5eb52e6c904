// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// conversions is how many pods of each kind wait for their claim.
const conversions = 30

// measureConversion times how long pods wait for their claim: those with a template of a user, and in turn those of an
// older system, with an amount for which the controller creates a template, and with one for which there is one.
func measureConversion(ctx context.Context, b *bench) (err error) {
	const label = `{"metadata":{"labels":{"gpu.nvidia.com/convert":"on"}}}`
	if _, err := b.client.CoreV1().Namespaces().Patch(ctx, b.ns, types.StrategicMergePatchType, []byte(label),
		metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := b.template(ctx, driver); err != nil {
		return err
	}
	claims, err := b.client.ResourceV1().ResourceClaims(b.ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer claims.Stop()
	older := func(gib int64) *corev1.Pod {
		pod := b.pod()
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			"aliyun.com/gpu-mem": *resource.NewQuantity(gib, resource.DecimalSI)}
		return pod
	}
	var own, created, known samples
	for n := range int64(conversions) + 1 {
		for _, turn := range []struct {
			pod  *corev1.Pod
			took *samples
		}{{withClaim(b.pod(), driver), &own}, {older(2 + n), &created}, {older(1), &known}} {
			d, err := b.untilClaim(ctx, claims, turn.pod)
			if err != nil {
				return err
			}
			if n > 0 { // the first ones find nothing warm
				*turn.took = append(*turn.took, d)
			}
		}
	}
	b.results["converted"] = []float64{created.p50() - own.p50(), known.p50() - own.p50()}
	return errors.Join(b.client.CoreV1().Pods(b.ns).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}), b.empty(ctx))
}

// untilClaim creates a pod that fits on no node, and returns the time until its claim exists.
func (b *bench) untilClaim(ctx context.Context, claims watch.Interface, pod *corev1.Pod) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	pod.Spec.NodeSelector = map[string]string{"no": "node"}
	begin := time.Now()
	made, err := b.client.CoreV1().Pods(b.ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	seen, err := await(ctx, claims, "the claim of pod "+made.Name, func(claim *resourceapi.ResourceClaim,
		_ time.Time) bool {
		owner := metav1.GetControllerOf(claim)
		return owner != nil && owner.UID == made.UID
	})
	return seen.Sub(begin), err
}
