// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// pendingPhase selects the pods that may wait for GPUs. A cluster has few of them.
const pendingPhase = "status.phase=Pending"

// readPendingPods adds the pending pods to the snapshot: of all namespaces, or of the given one if the user may not
// list all. It returns which, as for a client.
func readPendingPods(ctx context.Context, client kubernetes.Interface, s *cluster.Snapshot, namespace string) string {
	of := metav1.NamespaceAll
	list, err := client.CoreV1().Pods(of).List(ctx, metav1.ListOptions{FieldSelector: pendingPhase})
	if apierrors.IsForbidden(err) {
		of = namespace
		list, err = client.CoreV1().Pods(of).List(ctx, metav1.ListOptions{FieldSelector: pendingPhase})
	}
	if err != nil {
		s.Unread[cluster.Pods] = err
		return of
	}
	for i := range list.Items {
		s.Pods = append(s.Pods, &list.Items[i])
	}
	return of
}

// pending returns the claims without devices or with devices that are not ready, and the pods that wait for GPUs and
// have no such claim, the oldest first.
func pending(s *cluster.Snapshot) []pagePending {
	all := []pagePending{}
	claims := map[types.NamespacedName]bool{}
	for _, c := range s.Claims {
		claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = true
		waits := c.Status.Allocation == nil || len(why.Bindings(c)) > 0
		if waits && c.DeletionTimestamp == nil {
			all = append(all, pagePending{Kind: "claim", Namespace: c.Namespace, Name: c.Name,
				Created: c.CreationTimestamp, Asks: classNames(c)})
		}
	}
	if s.Unread[cluster.Claims] == nil {
		for _, p := range s.Pods {
			if p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
				continue
			}
			if asks := asksOf(p, claims); len(asks) > 0 {
				all = append(all, pagePending{Kind: "pod", Namespace: p.Namespace, Name: p.Name,
					Created: p.CreationTimestamp, Asks: asks})
			}
		}
	}
	slices.SortFunc(all, func(a, b pagePending) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	return all
}

// classNames returns the classes that the claim names, sorted.
func classNames(c *resourceapi.ResourceClaim) []string {
	classes := map[string]bool{}
	for _, s := range cluster.Subrequests(&c.Spec) {
		classes[*s.Class] = true
	}
	return append([]string{}, slices.Sorted(maps.Keys(classes))...)
}

// asksOf returns what the pod asks for and no claim of the cluster shows: extended resources of GPUs, and claims that
// do not exist.
func asksOf(p *corev1.Pod, claims map[types.NamespacedName]bool) []string {
	asks := map[string]bool{}
	for _, ref := range p.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(p, &ref)
		switch {
		case err != nil && ref.ResourceClaimTemplateName != nil: // nobody has made it yet
			asks[fmt.Sprintf("a claim of template %s, which is not there", *ref.ResourceClaimTemplateName)] = true
		case err == nil && name != nil && !claims[types.NamespacedName{Namespace: p.Namespace, Name: *name}]:
			asks[fmt.Sprintf("claim %s, which is not there", *name)] = true
		}
	}
	if p.Status.ExtendedResourceClaimStatus == nil {
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			for name, quantity := range c.Resources.Limits {
				if ofGPUs(name) {
					asks[fmt.Sprintf("%s: %s", name, quantity.String())] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(asks))
}

// ofGPUs reports whether the extended resource is of a class of devices or of NVIDIA.
func ofGPUs(name corev1.ResourceName) bool {
	domain, _, _ := strings.Cut(string(name), "/")
	return domain+"/" == resourceapi.ResourceDeviceClassPrefix || domain == "nvidia.com"
}
