// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// Workload is what is to be scheduled: a pod with its claims, or a claim alone.
type Workload struct {
	Pod       *corev1.Pod                        // nil for a claim alone
	Claims    []*resourceapi.ResourceClaim       // those without devices
	Origins   []Origin                           // of each claim
	Allocated []*resourceapi.ResourceClaim       // claims of the pod that have devices: they decide about the node
	Ended     map[types.UID]bool                 // claims of others that are taken for ended
	Clauses   map[SelectorRef][]selectors.Clause // of each selector of the claims
	Ranked    map[RequestID]bool                 // requests for the strongest device
}

// OfClaim returns the workload that is only a claim without devices.
func OfClaim(claim *resourceapi.ResourceClaim, of Origin) *Workload {
	return &Workload{Claims: []*resourceapi.ResourceClaim{claim}, Origins: []Origin{of}}
}

// Namespace returns the namespace of the pod and of its claims.
func (w *Workload) Namespace() string {
	if w.Pod != nil {
		return w.Pod.Namespace
	}
	return w.Claims[0].Namespace
}

// Origin is where a claim is written down.
type Origin struct {
	Label  string // how it is called in an answer
	Object string // what to change, such as "ResourceClaimTemplate ns/name"
	exists bool   // as a ResourceClaim, or the pod does whose extended resources it is for: it has passed the quota
	// Extended are the extended resources behind the requests, by the name of the request. nil: the claim is none for
	// extended resources.
	Extended map[string]corev1.ResourceName
}

// RequestID names a subrequest of the workload by its number in the claim, or in Workload.Ranked a request.
type RequestID struct{ Claim, Number int }

// SelectorRef names a selector of the workload.
type SelectorRef struct {
	RequestID
	Selector int
}

// Clone returns a copy that can be changed.
func (w *Workload) Clone() *Workload {
	c := *w
	if w.Pod != nil {
		c.Pod = w.Pod.DeepCopy()
	}
	c.Claims = make([]*resourceapi.ResourceClaim, len(w.Claims))
	for i, claim := range w.Claims {
		c.Claims[i] = claim.DeepCopy()
	}
	c.Ended = maps.Clone(w.Ended)
	if c.Ended == nil {
		c.Ended = map[types.UID]bool{}
	}
	c.Clauses = map[SelectorRef][]selectors.Clause{}
	for ref, all := range w.Clauses {
		c.Clauses[ref] = slices.Clone(all)
	}
	return &c
}

// SetClause replaces a clause; an empty text removes it.
func (w *Workload) SetClause(ref SelectorRef, number int, text string) {
	w.Clauses[ref][number].Text = text
	var texts []string
	for _, c := range w.Clauses[ref] {
		if c.Text != "" {
			texts = append(texts, c.Text)
		}
	}
	if len(texts) == 0 {
		texts = []string{"true"}
	}
	part := cluster.Subrequests(&w.Claims[ref.Claim].Spec)[ref.Number]
	(*part.Selectors)[ref.Selector].CEL = &resourceapi.CELDeviceSelector{Expression: strings.Join(texts, " && ")}
}

// Bounds of what is explained. The user decides how large a claim is: the API server accepts 1.5 MB. Each subrequest
// and each clause is compared with every device. Clauses and selectors fit into the cache together.
const (
	maxSubrequests     = 256 // as many as one claim can have
	maxClauses         = 500
	maxExpressionBytes = 64 << 10 // of all selectors
)

// TooLarge returns an error if the workload asks for more than is explained.
func (w *Workload) TooLarge() error {
	parts, selectors, bytes := 0, 0, 0
	for _, claim := range w.Claims {
		for _, part := range cluster.Subrequests(&claim.Spec) {
			parts++
			for _, s := range *part.Selectors {
				selectors++
				bytes += len(expressionOf(s))
			}
		}
	}
	if parts <= maxSubrequests && selectors <= maxClauses && bytes <= maxExpressionBytes {
		return nil
	}
	return fmt.Errorf("it has %d requests and alternatives, and %d selectors with %d bytes; the most for an answer "+
		"are %d, %d and %d", parts, selectors, bytes, maxSubrequests, maxClauses, maxExpressionBytes)
}

// Validate returns an error for a request that the allocator does not expect: of a newer version of Kubernetes, or of a
// manifest that the API server would refuse.
func (w *Workload) Validate() error {
	for i, claim := range w.Claims {
		for number, alternatives := range cluster.Requests(&claim.Spec) {
			r := claim.Spec.Devices.Requests[number]
			if (r.Exactly != nil) == (len(r.FirstAvailable) > 0) {
				return fmt.Errorf("%s, request %s: it has neither exactly nor firstAvailable, or both",
					w.Origins[i].Label, r.Name)
			}
			if len(r.FirstAvailable) > 0 && !named(claim.Spec.Devices.Requests, r.Name, alternatives) {
				return fmt.Errorf("%s, request %q: it has firstAvailable, so it and each alternative need a name of "+
					"their own", w.Origins[i].Label, r.Name)
			}
		}
		for _, part := range cluster.Subrequests(&claim.Spec) {
			if *part.Count < 0 {
				return fmt.Errorf("%s, request %s: it asks for %d devices", w.Origins[i].Label, part.Name, *part.Count)
			}
		}
	}
	return nil
}

// named reports whether no other request has the name of the request, and each of its alternatives has one. The
// allocator finds them by name.
func named(all []resourceapi.DeviceRequest, name string, alternatives []cluster.Subrequest) bool {
	names := map[string]bool{}
	for _, sub := range alternatives {
		names[sub.Name] = true
	}
	same := slices.DeleteFunc(slices.Clone(all), func(o resourceapi.DeviceRequest) bool { return o.Name != name })
	return name != "" && len(same) == 1 && !names[name+"/"] && len(names) == len(alternatives)
}

// Parse cuts the expressions of the claims. The error names the one that is not valid. Those that would have too many
// clauses are not cut.
func (w *Workload) Parse() error {
	if err := w.Validate(); err != nil {
		return err
	}
	w.Clauses = map[SelectorRef][]selectors.Clause{}
	left := maxClauses
	for _, claim := range w.Claims {
		for _, part := range cluster.Subrequests(&claim.Spec) {
			left -= len(*part.Selectors) // each has at least one
		}
	}
	for i, claim := range w.Claims {
		for j, part := range cluster.Subrequests(&claim.Spec) {
			for k, s := range *part.Selectors {
				if s.CEL == nil {
					continue
				}
				all, err := selectors.Cut(s.CEL.Expression)
				if err != nil {
					return fmt.Errorf("%s, request %s: expression %s: %w", w.Origins[i].Label, part.Name,
						s.CEL.Expression, err)
				}
				if more := len(all) - 1; more <= left {
					left -= more
				} else {
					all = []selectors.Clause{{Text: "(" + s.CEL.Expression + ")"}}
				}
				w.Clauses[SelectorRef{RequestID{i, j}, k}] = all
			}
		}
	}
	return nil
}

// NewQuantity returns a count.
func NewQuantity(value int64) *resource.Quantity {
	return resource.NewQuantity(value, resource.DecimalSI)
}

// unschedulable is the taint that stands for a cordoned node.
var unschedulable = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// TaintsOf returns the taints of the node that keep pods away.
func TaintsOf(node *corev1.Node) []corev1.Taint {
	var all []corev1.Taint
	for _, t := range node.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			all = append(all, t)
		}
	}
	if node.Spec.Unschedulable && !slices.ContainsFunc(all, func(t corev1.Taint) bool {
		return t.Key == unschedulable.Key
	}) {
		all = append(all, unschedulable)
	}
	return all
}

// OfCluster reports whether Kubernetes or an autoscaler has set the taint: the node is cordoned, broken or ends.
func OfCluster(t corev1.Taint) bool {
	domain, _, _ := strings.Cut(t.Key, "/")
	return strings.HasSuffix(domain, "kubernetes.io") || strings.HasSuffix(domain, "karpenter.sh") ||
		strings.HasSuffix(t.Key, "ClusterAutoscaler")
}

// Tolerated reports whether the pod tolerates the taint.
func Tolerated(pod *corev1.Pod, taint corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &taint, false)
}

// Excludes returns why the pod cannot run on the node, other than for want of devices.
func (w *Workload) Excludes(c *Cluster, node *corev1.Node) []string {
	var reasons []string
	for _, claim := range w.Allocated {
		if selector := claim.Status.Allocation.NodeSelector; selector != nil {
			if ok, err := MatchesNode(selector, node); err != nil || !ok {
				reasons = append(reasons, fmt.Sprintf("claim %s, whose devices are elsewhere", claim.Name))
			}
		}
	}
	if w.Pod == nil {
		return reasons
	}
	if c.Unread[cluster.Nodes] != nil {
		return reasons // of such a node, only the name is known
	}
	for _, key := range slices.Sorted(maps.Keys(w.Pod.Spec.NodeSelector)) {
		if value := w.Pod.Spec.NodeSelector[key]; !HasLabel(node, key, value) {
			reasons = append(reasons, fmt.Sprintf("the node selector %s=%s", key, value))
		}
	}
	if ok, err := nodeaffinity.NewRequiredNodeAffinity(nil, w.Pod.Spec.Affinity).Match(node); err != nil || !ok {
		reasons = append(reasons, "the node affinity")
	}
	for _, t := range TaintsOf(node) {
		if !Tolerated(w.Pod, t) {
			reasons = append(reasons, "the taint "+t.ToString())
		}
	}
	for _, name := range c.Short(w.Pod, node) {
		reasons = append(reasons, "too little "+string(name))
	}
	return reasons
}

// HasLabel reports whether the node has the label with that value.
func HasLabel(node *corev1.Node, key, value string) bool {
	got, ok := node.Labels[key]
	return ok && got == value
}

// MatchesNode reports whether the selector selects the node.
func MatchesNode(selector *corev1.NodeSelector, node *corev1.Node) (bool, error) {
	s, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Match(node), nil
}

// Short returns the resources of which the node has too little left, sorted.
func (c *Cluster) Short(pod *corev1.Pod, node *corev1.Node) []corev1.ResourceName {
	var all []corev1.ResourceName
	requests := RequestsOf(pod)
	for name, q := range requests {
		if q.IsZero() || len(node.Status.Allocatable) == 0 || c.ClassOf(name) != nil && !FromPlugin(node, name) {
			continue
		}
		if free := c.Free(node, name); free.Cmp(q) < 0 {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// FromPlugin reports whether a device plugin offers the resource on the node. The scheduler then takes no devices of
// a class for it.
func FromPlugin(node *corev1.Node, name corev1.ResourceName) bool {
	q := node.Status.Allocatable[name]
	return !q.IsZero()
}

// Extended reports whether a claim is for extended resources, which a device plugin may offer instead.
func (w *Workload) Extended() bool {
	return slices.ContainsFunc(w.Origins, func(o Origin) bool { return o.Extended != nil })
}

// claimsOn returns the claims as the node gets them: without requests for extended resources that a device plugin
// offers there.
func (w *Workload) claimsOn(node *corev1.Node) []*resourceapi.ResourceClaim {
	all := slices.Clone(w.Claims)
	for i, claim := range all {
		if w.Origins[i].Extended == nil {
			continue
		}
		all[i] = claim.DeepCopy()
		all[i].Spec.Devices.Requests = slices.DeleteFunc(all[i].Spec.Devices.Requests,
			func(r resourceapi.DeviceRequest) bool { return FromPlugin(node, w.Origins[i].Extended[r.Name]) })
	}
	return all
}

// Free returns how much of a resource pods have left on the node.
func (c *Cluster) Free(node *corev1.Node, name corev1.ResourceName) resource.Quantity {
	free := node.Status.Allocatable[name].DeepCopy()
	free.Sub(c.Used[node.Name][name])
	if free.Sign() < 0 {
		return *resource.NewQuantity(0, free.Format)
	}
	return free
}

// ClassOf returns the class behind an extended resource, or nil.
func (c *Cluster) ClassOf(name corev1.ResourceName) *resourceapi.DeviceClass {
	if class, ok := strings.CutPrefix(string(name), resourceapi.ResourceDeviceClassPrefix); ok {
		return c.ClassByName[class]
	}
	var found *resourceapi.DeviceClass
	for _, class := range c.Classes {
		if class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == string(name) {
			if found == nil || found.CreationTimestamp.Before(&class.CreationTimestamp) {
				found = class // the newest one is used
			}
		}
	}
	return found
}

// nodePrint returns a text that is equal for nodes that the pod treats alike, also after a change of the pod.
func (w *Workload) nodePrint(c *Cluster, node *corev1.Node) string {
	text := strings.Join(w.Excludes(c, node), "\n")
	if w.Pod == nil {
		return text
	}
	for _, name := range c.Short(w.Pod, node) {
		free := c.Free(node, name)
		text += "\n" + free.String()
	}
	for i := range w.Origins {
		for _, request := range slices.Sorted(maps.Keys(w.Origins[i].Extended)) {
			text += fmt.Sprintf("\n%s from a plugin: %t", request, FromPlugin(node, w.Origins[i].Extended[request]))
		}
	}
	return text
}
