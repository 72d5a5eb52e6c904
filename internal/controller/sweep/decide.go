// SPDX-License-Identifier: Apache-2.0

// Package sweep clears away what nobody owns any more: slices of nodes that are gone or have lost their plugin, and claims whose pod
// is gone. Kubernetes does that itself, by its garbage collector, its kubelets and its controllers; what is found here is what they
// have left.
package sweep

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// World is what decides whether something is left behind.
type World struct {
	Driver string
	Nodes  map[string]Node // all of the cluster
	// Plugins are the nodes with a pod of the plugin. None at all: the plugin runs in another way, and nothing is said about it.
	Plugins map[string]bool
	// Returned are the nodes whose slices came back after they had been removed: somebody publishes them.
	Returned map[types.UID]bool
	// Gone are the pods that were asked for and are not there. What is not known to be gone counts as alive.
	Gone map[types.UID]bool
	// Holders has a claim, as namespace/name, of each pool of which devices of the driver are allocated.
	Holders map[string]string

	Slices []resourceapi.ResourceSlice
	Claims []resourceapi.ResourceClaim
}

// Node is one of the cluster.
type Node struct {
	UID types.UID
	// Exempt are those whose slices come from elsewhere than a pod of the plugin: none is missed there.
	Exempt bool
	Ready  bool // only known of those that are in Bare
}

// exemptLabel of a node, with the value "off", makes it exempt.
const exemptLabel = "gpu.nvidia.com/sweep"

// Finding is an object that is left behind.
type Finding struct {
	Event  Event // that tells of it
	Object corev1.ObjectReference
	About  corev1.ObjectReference // of the event, when the object stays
	Remove bool
	Why    string // it is left behind, and why it stays or that it goes

	node types.UID // whose plugin is gone
}

// Since is for how long something has been so.
type Since map[seen]times

type seen struct {
	object types.UID
	reason string
}

type times struct{ found, removable time.Time }

// Decide says what has been left behind for as long as grace, in the order of the names, and since when what is left behind now has
// been so. What may be removed has been removable all that time.
func Decide(w World, since Since, now time.Time, grace time.Duration) ([]Finding, Since) {
	var due []Finding
	next := Since{}
	for _, f := range w.find() {
		key := seen{f.Object.UID, f.Event.Reason}
		at, known := since[key]
		if !known {
			at.found = now
		}
		if !f.Remove {
			at.removable = time.Time{}
		} else if at.removable.IsZero() {
			at.removable = now
		}
		next[key] = at
		if now.Sub(at.found) < grace {
			continue
		}
		f.Remove = f.Remove && now.Sub(at.removable) >= grace
		due = append(due, f)
	}
	return due, next
}

// mark is an attribute that every device of this plugin has. NVIDIA's DRA driver has the same name, and may serve other nodes while
// people move from it: its plugin is not ours to miss.
const mark = "isolation"

// published are the pools that this plugin has published.
func (w World) published() map[string]bool {
	pools := map[string]bool{}
	for _, s := range w.Slices {
		for _, d := range s.Spec.Devices {
			if _, ours := d.Attributes[mark]; ours && s.Spec.Driver == w.Driver {
				pools[s.Spec.Pool.Name] = true
			}
		}
	}
	return pools
}

// find says what is left behind now.
func (w World) find() []Finding {
	var found []Finding
	published := w.published()
	for i := range w.Slices {
		if f, ok := w.slice(&w.Slices[i], published); ok {
			found = append(found, f)
		}
	}
	for i := range w.Claims {
		if f, ok := w.claim(&w.Claims[i]); ok {
			found = append(found, f)
		}
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Namespace, b.Object.Namespace), cmp.Compare(a.Object.Name, b.Object.Name))
	})
	return found
}

func (w World) slice(s *resourceapi.ResourceSlice, published map[string]bool) (Finding, bool) {
	if s.Spec.Driver != w.Driver || s.Spec.NodeName == nil {
		return Finding{}, false
	}
	f := Finding{Object: reference("ResourceSlice", s)}
	f.About = f.Object
	name, owner := *s.Spec.NodeName, nodeOf(s)
	node, exists := w.Nodes[name]
	switch {
	case !exists:
		f.Event, f.Why = Events.NodeGone, "its node "+name+" is gone"
	case owner != "" && owner != node.UID:
		f.Event, f.Why = Events.NodeGone, "its node was replaced by another one with the name "+name
	case !w.bare(s, published):
		return Finding{}, false
	default:
		f.Event, f.Why, f.node = Events.PluginGone, "node "+name+" has no pod of the plugin", node.UID
		f.About = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}
	}
	if stuck(s, &f) {
		return f, true
	}
	stays := ""
	switch {
	case owner == "":
		stays = "it belongs to no node alone (ownerReferences)"
	case f.Event == Events.NodeGone:
		if w.has(owner) {
			stays = "it belongs to another node that is there (ownerReferences)"
		}
	case !node.Ready:
		stays = "the node is not ready: the plugin may be alive where nobody sees it"
	case w.Holders[s.Spec.Pool.Name] != "":
		stays = "claim " + w.Holders[s.Spec.Pool.Name] + " has a device of the node, and schedulers forget what is not published"
	case w.Returned[node.UID]:
		stays = "it came back after it had been removed: somebody publishes it"
	}
	f.decide(stays)
	return f, true
}

func (w World) claim(c *resourceapi.ResourceClaim) (Finding, bool) {
	drivers := driversOf(c)
	if !slices.Contains(drivers, w.Driver) {
		return Finding{}, false
	}
	owner := podOf(c)
	used := slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return !isPod(r) || !w.Gone[r.UID] })
	switch {
	case owner != nil && !w.Gone[owner.UID]:
		return Finding{}, false
	case owner == nil && (used || len(c.Status.ReservedFor) == 0 && c.DeletionTimestamp == nil):
		return Finding{}, false
	}
	f := Finding{Object: reference("ResourceClaim", c)}
	f.About = f.Object
	if owner == nil {
		f.Event, f.Why = Events.ReservationStale, "no pod that it is reserved for is there"
		if !stuck(c, &f) {
			f.decide("nobody has made it for one pod alone: kube-controller-manager frees it")
		}
		return f, true
	}
	f.Event, f.Why = Events.PodGone, "its pod "+owner.Name+" is gone"
	stays := ""
	switch {
	case used && c.DeletionTimestamp != nil:
		return Finding{}, false // it goes when they have ended
	case used:
		stays = "it is reserved for another that is there"
	case len(drivers) > 1:
		stays = "it has devices of several drivers: " + strings.Join(drivers, ", ")
	case len(c.OwnerReferences) > 1:
		stays = "it has other owners too"
	}
	if !stuck(c, &f) {
		f.decide(stays)
	}
	return f, true
}

// decide has the object removed, unless something says why it stays.
func (f *Finding) decide(stays string) {
	f.Remove = stays == ""
	if !f.Remove {
		f.Why += ": left alone: " + stays
	}
}

// stuck says whether the object is deleted already. Whose finalizer it is has something to do first.
func stuck(o metav1.Object, f *Finding) bool {
	if o.GetDeletionTimestamp() == nil {
		return false
	}
	f.Event, f.About = Events.DeletionStuck, f.Object
	f.Why = fmt.Sprintf("%s; it is deleted, and waits for %s", f.Why, strings.Join(o.GetFinalizers(), ", "))
	return true
}

// Bare are the nodes that have slices of the plugin and not the plugin, in the order of their names.
func (w World) Bare() []string {
	var names []string
	published := w.published()
	for i := range w.Slices {
		if w.bare(&w.Slices[i], published) {
			names = append(names, *w.Slices[i].Spec.NodeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// bare says whether the slice is one of the plugin, of a node where the plugin should be and is not.
func (w World) bare(s *resourceapi.ResourceSlice, published map[string]bool) bool {
	if len(w.Plugins) == 0 || s.Spec.NodeName == nil || !published[s.Spec.Pool.Name] || w.Plugins[*s.Spec.NodeName] {
		return false
	}
	node, exists := w.Nodes[*s.Spec.NodeName]
	return exists && !node.Exempt && s.Spec.Driver == w.Driver
}

func (w World) has(node types.UID) bool {
	for _, n := range w.Nodes {
		if n.UID == node {
			return true
		}
	}
	return false
}

// holders adds to the pools of which the claims have devices; of several claims the first by name.
func holders(driver string, claims []resourceapi.ResourceClaim, into map[string]string) {
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		name := c.Namespace + "/" + c.Name
		for _, r := range c.Status.Allocation.Devices.Results {
			if before := into[r.Pool]; r.Driver == driver && (before == "" || name < before) {
				into[r.Pool] = name
			}
		}
	}
}

// driversOf are the drivers whose devices the claim has, in the order of their names.
func driversOf(c *resourceapi.ResourceClaim) []string {
	var drivers []string
	if c.Status.Allocation != nil {
		for _, r := range c.Status.Allocation.Devices.Results {
			drivers = append(drivers, r.Driver)
		}
	}
	slices.Sort(drivers)
	return slices.Compact(drivers)
}

// nodeOf is the node that the slice belongs to, and to nothing else.
func nodeOf(s *resourceapi.ResourceSlice) types.UID {
	if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].APIVersion != "v1" || s.OwnerReferences[0].Kind != "Node" {
		return ""
	}
	return s.OwnerReferences[0].UID
}

// podOf is the pod that the claim was made for; nil: somebody has made it by hand, or for something else.
func podOf(c *resourceapi.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(c)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return nil
	}
	return owner
}

func isPod(r resourceapi.ResourceClaimConsumerReference) bool {
	return r.APIGroup == "" && r.Resource == "pods"
}

// pod is one that a claim names.
type pod struct {
	types.NamespacedName
	UID types.UID
}

// podsOf are the pods on which it depends whether the claim is left behind, the one that it was made for first.
func podsOf(c *resourceapi.ResourceClaim) []pod {
	var pods []pod
	if owner := podOf(c); owner != nil {
		pods = append(pods, pod{types.NamespacedName{Namespace: c.Namespace, Name: owner.Name}, owner.UID})
	}
	for _, r := range c.Status.ReservedFor {
		if isPod(r) {
			pods = append(pods, pod{types.NamespacedName{Namespace: c.Namespace, Name: r.Name}, r.UID})
		}
	}
	return pods
}

func reference(kind string, o metav1.Object) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: kind,
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}
