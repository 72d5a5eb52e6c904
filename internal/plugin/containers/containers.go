// SPDX-License-Identifier: Apache-2.0

// Package containers finds the containers of the node that use a claim, run with it, or have started a process. Prepare
// and Unprepare are refused because of what it finds. It must not import its sibling packages.
package containers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Using returns a function that finds the containers that use a claim, and the other devices of the driver that
// they use. It knows only the pods for which the claim is reserved now, and of a PodGroup those that listed names: the
// kubelet prepares a claim once.
func Using(
	client kubernetes.Interface, driver string, listed Listed,
) func(context.Context, *resourceapi.ResourceClaim) ([]sharing.Container, error) {
	return func(ctx context.Context, claim *resourceapi.ResourceClaim) ([]sharing.Container, error) {
		pods, err := reservedPods(ctx, client, listed, claim)
		if err != nil {
			return nil, err
		}
		var found []sharing.Container
		claims := client.ResourceV1().ResourceClaims(claim.Namespace)
		for _, pod := range pods {
			for _, used := range sharing.Users(pod, claim.Name) {
				container := used.Container
				for _, other := range used.Others {
					of, err := claims.Get(ctx, other.Claim, metav1.GetOptions{})
					if err != nil {
						return nil, fmt.Errorf("claim %s, which the same container uses: %w", other.Claim, err)
					}
					container.Others = append(container.Others, other.Devices(of, driver)...)
				}
				found = append(found, container)
			}
		}
		return found, nil
	}
}

// Listed returns the names of the node's pods in the namespace.
type Listed func(ctx context.Context, namespace string) ([]string, error)

// reservedPods returns the pods for which the claim is reserved now, and those of the node in a PodGroup for which it
// is.
func reservedPods(ctx context.Context, client kubernetes.Interface, listed Listed, claim *resourceapi.ResourceClaim) (
	[]*corev1.Pod, error) {
	var names []string
	for _, user := range claim.Status.ReservedFor {
		switch (schema.GroupResource{Group: user.APIGroup, Resource: user.Resource}) {
		case corev1.Resource("pods"):
			names = append(names, user.Name)
		case schedulingapi.Resource("podgroups"): // it does not name its pods
			members, err := listed(ctx, claim.Namespace)
			if err != nil {
				return nil, fmt.Errorf("find the pods of PodGroup %s: %w", user.Name, err)
			}
			names = append(names, members...)
		}
	}
	slices.Sort(names)
	var pods []*corev1.Pod
	for _, name := range slices.Compact(names) {
		pod, err := client.CoreV1().Pods(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil && resourceclaim.IsReservedForPod(pod, claim, true) {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}
