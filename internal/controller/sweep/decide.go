// SPDX-License-Identifier: Apache-2.0

// Package sweep removes orphaned objects: slices of nodes that are gone or have lost their plugin, and claims whose pod
// is gone. Normally the garbage collector, the kubelets and the controllers of Kubernetes do this. The sweep finds what
// they have missed.
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

	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Snapshot is the state of the cluster from which Decide finds orphans.
type Snapshot struct {
	Driver string
	Nodes  map[string]Node // all nodes of the cluster, by name
	// Plugins are the nodes with a pod of the plugin. If it is empty, the plugin is deployed in another way, and no
	// node counts as one without the plugin.
	Plugins map[string]bool
	// Returned are the nodes whose slices came back after the sweep removed them: something publishes them.
	Returned map[types.UID]bool
	// Gone are the pods of claims that the API server does not have. All others count as alive.
	Gone map[types.UID]bool
	// Holders maps each pool with allocated devices of the driver to one of the claims, as namespace/name.
	Holders map[string]string

	Slices []resourceapi.ResourceSlice
	Claims []resourceapi.ResourceClaim
}

// Node is a node of the cluster.
type Node struct {
	UID types.UID
	// Exempt nodes get their slices from something other than a pod of the plugin.
	Exempt bool
	Ready  bool // read only for NodesWithoutPlugin
}

// exemptLabel is the label of a node that makes it exempt, with the value "off".
const exemptLabel = "gpu.nvidia.com/sweep"

// Finding is an orphaned object.
type Finding struct {
	Event  event.Kind // reports the finding
	Object corev1.ObjectReference
	About  corev1.ObjectReference // object of this event
	Remove bool
	Why    string // the object is orphaned, and why it stays

	node types.UID // that lost its plugin
}

// Since records since when each finding exists.
type Since map[findingKey]times

type findingKey struct {
	object types.UID
	reason string
}

type times struct{ found, removable time.Time }

// Decide returns the findings that are older than grace, sorted by name, and the times of all current findings. Remove
// is set only if the object has been removable for all that time.
func Decide(w Snapshot, since Since, now time.Time, grace time.Duration) ([]Finding, Since) {
	var due []Finding
	next := Since{}
	for _, f := range w.find() {
		key := findingKey{f.Object.UID, f.Event.Reason}
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

// pluginAttribute is an attribute of every device of this plugin. NVIDIA's DRA driver has the same driver name, and may
// serve other nodes during a migration. Its slices do not count.
const pluginAttribute = "isolation"

// published returns the pools that this plugin publishes.
func (w Snapshot) published() map[string]bool {
	pools := map[string]bool{}
	for _, s := range w.Slices {
		for _, d := range s.Spec.Devices {
			if _, ours := d.Attributes[pluginAttribute]; ours && s.Spec.Driver == w.Driver {
				pools[s.Spec.Pool.Name] = true
			}
		}
	}
	return pools
}

// find returns all current findings.
func (w Snapshot) find() []Finding {
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
		return cmp.Or(cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Namespace, b.Object.Namespace),
			cmp.Compare(a.Object.Name, b.Object.Name))
	})
	return found
}

func (w Snapshot) slice(s *resourceapi.ResourceSlice, published map[string]bool) (Finding, bool) {
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
	case !w.lacksPlugin(s, published):
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
		if w.hasNode(owner) {
			stays = "it belongs to another node that is there (ownerReferences)"
		}
	case !node.Ready:
		stays = "the node is not ready: the plugin may be alive where nobody sees it"
	case w.Holders[s.Spec.Pool.Name] != "":
		stays = "claim " + w.Holders[s.Spec.Pool.Name] + " has a device of the node, and schedulers forget what is " +
			"not published"
	case w.Returned[node.UID]:
		stays = "it came back after it had been removed: somebody publishes it"
	}
	f.decide(stays)
	return f, true
}

func (w Snapshot) claim(c *resourceapi.ResourceClaim) (Finding, bool) {
	drivers := driversOf(c)
	if !slices.Contains(drivers, w.Driver) {
		return Finding{}, false
	}
	owner := podOf(c)
	used := slices.ContainsFunc(c.Status.ReservedFor,
		func(r resourceapi.ResourceClaimConsumerReference) bool { return !isPod(r) || !w.Gone[r.UID] })
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

// decide sets Remove, unless there is a reason to keep the object.
func (f *Finding) decide(stays string) {
	f.Remove = stays == ""
	if !f.Remove {
		f.Why += ": left alone: " + stays
	}
}

// stuck reports whether the object is already being deleted, and waits for a finalizer.
func stuck(o metav1.Object, f *Finding) bool {
	if o.GetDeletionTimestamp() == nil {
		return false
	}
	f.Event, f.About = Events.DeletionStuck, f.Object
	f.Why = fmt.Sprintf("%s; it is deleted, and waits for %s", f.Why, strings.Join(o.GetFinalizers(), ", "))
	return true
}

// NodesWithoutPlugin returns the nodes that have slices of the plugin but no pod of it, sorted by name.
func (w Snapshot) NodesWithoutPlugin() []string {
	var names []string
	published := w.published()
	for i := range w.Slices {
		if w.lacksPlugin(&w.Slices[i], published) {
			names = append(names, *w.Slices[i].Spec.NodeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// lacksPlugin reports whether the plugin published the slice and has no pod on its node, although the node is not
// exempt.
func (w Snapshot) lacksPlugin(s *resourceapi.ResourceSlice, published map[string]bool) bool {
	if len(w.Plugins) == 0 || s.Spec.NodeName == nil || !published[s.Spec.Pool.Name] || w.Plugins[*s.Spec.NodeName] {
		return false
	}
	node, exists := w.Nodes[*s.Spec.NodeName]
	return exists && !node.Exempt && s.Spec.Driver == w.Driver
}

func (w Snapshot) hasNode(node types.UID) bool {
	for _, n := range w.Nodes {
		if n.UID == node {
			return true
		}
	}
	return false
}

// holders adds the pools of which the claims hold devices. It keeps the first claim by name.
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

// driversOf returns the drivers of the claim's allocated devices, sorted.
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

// nodeOf returns the node that is the only owner of the slice; empty: there is none.
func nodeOf(s *resourceapi.ResourceSlice) types.UID {
	if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].APIVersion != "v1" || s.OwnerReferences[0].Kind != "Node" {
		return ""
	}
	return s.OwnerReferences[0].UID
}

// podOf returns the pod for which the claim was made; nil: it was made in another way.
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

// pod is a pod that a claim refers to.
type pod struct {
	types.NamespacedName
	UID types.UID
}

// podsOf returns the pods that keep the claim from being orphaned. Its owner is the first.
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
