// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
	of, pendingOnly := metav1.NamespaceAll, metav1.ListOptions{FieldSelector: pendingPhase}
	list, err := client.CoreV1().Pods(of).List(ctx, pendingOnly)
	if apierrors.IsForbidden(err) {
		of = namespace
		list, err = client.CoreV1().Pods(of).List(ctx, pendingOnly)
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

// pendingObject is a pod that asks for devices and has not started, or a claim without such a pod.
type pendingObject struct {
	Kind      string      `json:"kind"` // pod or claim
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Created   metav1.Time `json:"created"`
	Asks      []string    `json:"asks"` // classes, extended resources, or what is missing

	Node string `json:"node,omitempty"` // of a pod that is starting

	early bool // a claim of the pod may have been read before it was allocated
}

// pending returns the pods that ask for devices and have not started, and the claims of no such pod without devices or
// with devices that are not ready, the oldest first.
func pending(s *cluster.Snapshot) []pendingObject {
	all := []pendingObject{}
	claims := map[types.NamespacedName]*resourceapi.ResourceClaim{}
	for _, c := range s.Claims {
		claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	used := map[*resourceapi.ResourceClaim]bool{} // by these pods
	resources := map[corev1.ResourceName]bool{}   // of classes
	for _, class := range s.Classes {
		if name := class.Spec.ExtendedResourceName; name != nil {
			resources[corev1.ResourceName(*name)] = true
		}
	}
	for _, p := range s.Pods {
		if s.Unknown(cluster.Claims, p.Namespace) != nil || p.DeletionTimestamp != nil ||
			p.Status.Phase != corev1.PodPending && p.Status.Phase != "" {
			continue
		}
		if asks, early := asksOf(p, claims, used, resources); len(asks) > 0 {
			all = append(all, pendingObject{"pod", p.Namespace, p.Name, p.CreationTimestamp, asks, p.Spec.NodeName,
				early})
		}
	}
	for _, c := range s.Claims {
		if (c.Status.Allocation == nil || len(why.Bindings(c)) > 0) && c.DeletionTimestamp == nil && !used[c] {
			all = append(all, pendingObject{"claim", c.Namespace, c.Name, c.CreationTimestamp, classNames(c), "",
				false})
		}
	}
	slices.SortFunc(all, func(a, b pendingObject) int {
		return cmp.Or(a.Created.Compare(b.Created.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	return all
}

// classNames returns the classes that the claim names, sorted.
func classNames(c *resourceapi.ResourceClaim) []string {
	classes := sets.New[string]()
	for _, s := range cluster.Subrequests(&c.Spec) {
		classes.Insert(*s.Class)
	}
	return sets.List(classes)
}

// asksOf returns what the pod asks for: the classes of its claims, claims that are not there, and extended resources of
// devices. It adds its claims to used. early reports whether one of them is missing or has no devices, though the pod
// has a node: the pod was read after it.
func asksOf(p *corev1.Pod, claims map[types.NamespacedName]*resourceapi.ResourceClaim,
	used map[*resourceapi.ResourceClaim]bool, resources map[corev1.ResourceName]bool) (all []string, early bool) {
	asks := sets.New[string]()
	of := func(name string) *resourceapi.ResourceClaim {
		claim := claims[types.NamespacedName{Namespace: p.Namespace, Name: name}]
		used[claim] = true
		return claim
	}
	for _, ref := range p.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(p, &ref)
		if err == nil && name == nil { // it needs none
			continue
		}
		var claim *resourceapi.ResourceClaim
		if err == nil {
			claim = of(*name)
		}
		early = early || p.Spec.NodeName != "" && (claim == nil || claim.Status.Allocation == nil)
		switch {
		case claim != nil && len(classNames(claim)) == 0:
			asks.Insert("claim " + *name)
		case claim != nil:
			asks.Insert(classNames(claim)...)
		case err == nil:
			asks.Insert(fmt.Sprintf("claim %s, which is not there", *name))
		case ref.ResourceClaimTemplateName != nil: // nobody has made it yet
			asks.Insert(fmt.Sprintf("a claim of template %s, which is not there", *ref.ResourceClaimTemplateName))
		}
	}
	if status := p.Status.ExtendedResourceClaimStatus; status != nil {
		of(status.ResourceClaimName)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for name, quantity := range c.Resources.Limits {
			if ofGPUs(name) || resources[name] {
				asks.Insert(fmt.Sprintf("%s: %s", name, quantity.String()))
			}
		}
	}
	return sets.List(asks), early
}

// ofGPUs reports whether the extended resource is of a class of devices or of NVIDIA.
func ofGPUs(name corev1.ResourceName) bool {
	domain, _, _ := strings.Cut(string(name), "/")
	return domain+"/" == resourceapi.ResourceDeviceClassPrefix || domain == "nvidia.com"
}
