// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
)

// containersOf finds the containers that use a claim, in the pods for which it is reserved. A pod that comes later is not asked
// about: the kubelet prepares a claim once.
func containersOf(client kubernetes.Interface) func(context.Context, *resourceapi.ResourceClaim) ([]claims.Container, error) {
	return func(ctx context.Context, claim *resourceapi.ResourceClaim) ([]claims.Container, error) {
		var containers []claims.Container
		for _, user := range claim.Status.ReservedFor {
			if user.Resource != "pods" || user.APIGroup != "" {
				continue
			}
			pod, err := client.CoreV1().Pods(claim.Namespace).Get(ctx, user.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && pod.UID != user.UID {
				continue
			}
			if err != nil {
				return nil, err
			}
			containers = append(containers, users(pod, claim.Name)...)
		}
		return containers, nil
	}
}

// users are the containers of the pod that use the claim.
func users(pod *corev1.Pod, claim string) []claims.Container {
	var containers []claims.Container
	for _, ref := range pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(pod, &ref); err == nil && name != nil && *name == claim {
			containers = append(containers, using(pod, ref.Name)...)
		}
	}
	// The claim that the scheduler has made for what the pod has in its resources.limits.
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil && extended.ResourceClaimName == claim {
		for _, m := range extended.RequestMappings {
			i := slices.IndexFunc(containers, func(c claims.Container) bool { return c.Name == m.ContainerName })
			if i < 0 {
				i = len(containers)
				containers = append(containers, claims.Container{Name: m.ContainerName})
			}
			containers[i].Requests = append(containers[i].Requests, m.RequestName)
		}
	}
	return containers
}

// using are the containers of the pod that use the claim which the pod calls by that name.
func using(pod *corev1.Pod, claim string) []claims.Container {
	var containers []claims.Container
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		used := claims.Container{Name: c.Name}
		uses, all := false, false
		for _, r := range c.Resources.Claims {
			if r.Name != claim {
				continue
			}
			uses, all = true, all || r.Request == ""
			used.Requests = append(used.Requests, r.Request)
		}
		if all {
			used.Requests = nil
		}
		if uses {
			containers = append(containers, used)
		}
	}
	return containers
}
