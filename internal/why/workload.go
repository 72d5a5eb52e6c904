// SPDX-License-Identifier: Apache-2.0

package why

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

// workload is what is to be scheduled: a pod with its claims, or a claim alone.
type workload struct {
	pod       *corev1.Pod                        // nil for a claim alone
	claims    []*resourceapi.ResourceClaim       // those without devices
	origins   []origin                           // of each claim
	allocated []*resourceapi.ResourceClaim       // claims of the pod that have devices: they decide about the node
	ended     map[types.UID]bool                 // claims of others that are taken for ended
	clauses   map[selectorRef][]selectors.Clause // of each selector of the claims
	ranked    map[requestID]bool                 // requests for the strongest device
}

// namespace returns the namespace of the pod and of its claims.
func (w *workload) namespace() string {
	if w.pod != nil {
		return w.pod.Namespace
	}
	return w.claims[0].Namespace
}

// origin is where a claim is written down.
type origin struct {
	label  string // how it is called in an answer
	object string // what to change, such as "ResourceClaimTemplate ns/name"
	exists bool   // as a ResourceClaim, or the pod does whose extended resources it is for: it has passed the quota
	// extended are the extended resources behind the requests, by the name of the request. nil: the claim is none for
	// extended resources.
	extended map[string]corev1.ResourceName
}

// requestID names a subrequest of the workload by its number in the claim.
type requestID struct{ claim, number int }

// selectorRef names a selector of the workload.
type selectorRef struct {
	requestID
	selector int
}

// clause returns what changes of one clause have in common.
func (r selectorRef) clause(number int) target {
	return target{field: "clause", request: r.requestID, number: r.selector, clause: number}
}

// clone returns a copy that can be changed.
func (w *workload) clone() *workload {
	c := *w
	if w.pod != nil {
		c.pod = w.pod.DeepCopy()
	}
	c.claims = make([]*resourceapi.ResourceClaim, len(w.claims))
	for i, claim := range w.claims {
		c.claims[i] = claim.DeepCopy()
	}
	c.ended = maps.Clone(w.ended)
	if c.ended == nil {
		c.ended = map[types.UID]bool{}
	}
	c.clauses = map[selectorRef][]selectors.Clause{}
	for ref, all := range w.clauses {
		c.clauses[ref] = slices.Clone(all)
	}
	return &c
}

// setClause replaces a clause; an empty text removes it.
func (w *workload) setClause(ref selectorRef, number int, text string) {
	w.clauses[ref][number].Text = text
	var texts []string
	for _, c := range w.clauses[ref] {
		if c.Text != "" {
			texts = append(texts, c.Text)
		}
	}
	if len(texts) == 0 {
		texts = []string{"true"}
	}
	part := cluster.Subrequests(&w.claims[ref.claim].Spec)[ref.number]
	(*part.Selectors)[ref.selector].CEL = &resourceapi.CELDeviceSelector{Expression: strings.Join(texts, " && ")}
}

// Bounds of what is explained. The user decides how large a claim is: the API server accepts 1.5 MB. Each subrequest
// and each clause is compared with every device. Clauses and selectors fit into the cache together.
const (
	maxSubrequests     = 256 // as many as one claim can have
	maxClauses         = 500
	maxExpressionBytes = 64 << 10 // of all selectors
)

// tooLarge returns an error if the workload asks for more than is explained.
func (w *workload) tooLarge() error {
	parts, selectors, bytes := 0, 0, 0
	for _, claim := range w.claims {
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

// known returns an error for a request that the allocator does not expect: of a newer version of Kubernetes, or of a
// manifest that the API server would refuse.
func (w *workload) known() error {
	for i, claim := range w.claims {
		for number, alternatives := range cluster.Requests(&claim.Spec) {
			r := claim.Spec.Devices.Requests[number]
			if (r.Exactly != nil) == (len(r.FirstAvailable) > 0) {
				return fmt.Errorf("%s, request %s: it has neither exactly nor firstAvailable, or both",
					w.origins[i].label, r.Name)
			}
			if len(r.FirstAvailable) > 0 && !named(claim.Spec.Devices.Requests, r.Name, alternatives) {
				return fmt.Errorf("%s, request %q: it has firstAvailable, so it and each alternative need a name of "+
					"their own", w.origins[i].label, r.Name)
			}
		}
		for _, part := range cluster.Subrequests(&claim.Spec) {
			if *part.Count < 0 {
				return fmt.Errorf("%s, request %s: it asks for %d devices", w.origins[i].label, part.Name, *part.Count)
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

// parse cuts the expressions of the claims. The error names the one that is not valid. Those that would have too many
// clauses are not cut.
func (w *workload) parse() error {
	if err := w.known(); err != nil {
		return err
	}
	w.clauses = map[selectorRef][]selectors.Clause{}
	left := maxClauses
	for _, claim := range w.claims {
		for _, part := range cluster.Subrequests(&claim.Spec) {
			left -= len(*part.Selectors) // each has at least one
		}
	}
	for i, claim := range w.claims {
		for j, part := range cluster.Subrequests(&claim.Spec) {
			for k, s := range *part.Selectors {
				if s.CEL == nil {
					continue
				}
				all, err := selectors.Cut(s.CEL.Expression)
				if err != nil {
					return fmt.Errorf("%s, request %s: expression %s: %w", w.origins[i].label, part.Name,
						s.CEL.Expression, err)
				}
				if more := len(all) - 1; more <= left {
					left -= more
				} else {
					all = []selectors.Clause{{Text: "(" + s.CEL.Expression + ")"}}
				}
				w.clauses[selectorRef{requestID{i, j}, k}] = all
			}
		}
	}
	return nil
}

func newQuantity(value int64) *resource.Quantity {
	return resource.NewQuantity(value, resource.DecimalSI)
}

// unschedulable is the taint that stands for a cordoned node.
var unschedulable = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// taintsOf returns the taints of the node that keep pods away.
func taintsOf(node *corev1.Node) []corev1.Taint {
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

// ofCluster reports whether Kubernetes or an autoscaler has set the taint: the node is cordoned, broken or ends.
func ofCluster(t corev1.Taint) bool {
	domain, _, _ := strings.Cut(t.Key, "/")
	return strings.HasSuffix(domain, "kubernetes.io") || strings.HasSuffix(domain, "karpenter.sh") ||
		strings.HasSuffix(t.Key, "ClusterAutoscaler")
}

// tolerated reports whether the pod tolerates the taint.
func tolerated(pod *corev1.Pod, taint corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &taint, false)
}

// excludes returns why the pod cannot run on the node, other than for want of devices.
func (w *workload) excludes(c *index, node *corev1.Node) []string {
	var reasons []string
	for _, claim := range w.allocated {
		if selector := claim.Status.Allocation.NodeSelector; selector != nil {
			if ok, err := matches(selector, node); err != nil || !ok {
				reasons = append(reasons, fmt.Sprintf("claim %s, whose devices are elsewhere", claim.Name))
			}
		}
	}
	if w.pod == nil {
		return reasons
	}
	if c.Unread[cluster.Nodes] != nil {
		return reasons // of such a node, only the name is known
	}
	for _, key := range slices.Sorted(maps.Keys(w.pod.Spec.NodeSelector)) {
		if value := w.pod.Spec.NodeSelector[key]; !hasLabel(node, key, value) {
			reasons = append(reasons, fmt.Sprintf("the node selector %s=%s", key, value))
		}
	}
	if ok, err := nodeaffinity.NewRequiredNodeAffinity(nil, w.pod.Spec.Affinity).Match(node); err != nil || !ok {
		reasons = append(reasons, "the node affinity")
	}
	for _, t := range taintsOf(node) {
		if !tolerated(w.pod, t) {
			reasons = append(reasons, "the taint "+t.ToString())
		}
	}
	for _, name := range c.short(w.pod, node) {
		reasons = append(reasons, "too little "+string(name))
	}
	return reasons
}

func hasLabel(node *corev1.Node, key, value string) bool {
	got, ok := node.Labels[key]
	return ok && got == value
}

func matches(selector *corev1.NodeSelector, node *corev1.Node) (bool, error) {
	s, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return false, err
	}
	return s.Match(node), nil
}

// short returns the resources of which the node has too little left, sorted.
func (c *index) short(pod *corev1.Pod, node *corev1.Node) []corev1.ResourceName {
	var all []corev1.ResourceName
	requests := requestsOf(pod)
	for name, q := range requests {
		if q.IsZero() || len(node.Status.Allocatable) == 0 || c.ofClass(name) != nil && !fromPlugin(node, name) {
			continue
		}
		if free := c.free(node, name); free.Cmp(q) < 0 {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// fromPlugin reports whether a device plugin offers the resource on the node. The scheduler then takes no devices of
// a class for it.
func fromPlugin(node *corev1.Node, name corev1.ResourceName) bool {
	q := node.Status.Allocatable[name]
	return !q.IsZero()
}

// extended reports whether a device plugin may offer what the workload requests.
func (w *workload) extended() bool {
	return slices.ContainsFunc(w.origins, func(o origin) bool { return o.extended != nil })
}

// claimsOn returns the claims as the node gets them: without requests for extended resources that a device plugin
// offers there.
func (w *workload) claimsOn(node *corev1.Node) []*resourceapi.ResourceClaim {
	all := slices.Clone(w.claims)
	for i, claim := range all {
		if w.origins[i].extended == nil {
			continue
		}
		all[i] = claim.DeepCopy()
		all[i].Spec.Devices.Requests = slices.DeleteFunc(all[i].Spec.Devices.Requests,
			func(r resourceapi.DeviceRequest) bool { return fromPlugin(node, w.origins[i].extended[r.Name]) })
	}
	return all
}

// free returns how much of a resource pods have left on the node.
func (c *index) free(node *corev1.Node, name corev1.ResourceName) resource.Quantity {
	free := node.Status.Allocatable[name].DeepCopy()
	free.Sub(c.used[node.Name][name])
	if free.Sign() < 0 {
		return *resource.NewQuantity(0, free.Format)
	}
	return free
}

// ofClass returns the class behind an extended resource, or nil.
func (c *index) ofClass(name corev1.ResourceName) *resourceapi.DeviceClass {
	if class, ok := strings.CutPrefix(string(name), resourceapi.ResourceDeviceClassPrefix); ok {
		return c.classes[class]
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
func (w *workload) nodePrint(c *index, node *corev1.Node) string {
	text := strings.Join(w.excludes(c, node), "\n")
	if w.pod == nil {
		return text
	}
	for _, name := range c.short(w.pod, node) {
		free := c.free(node, name)
		text += "\n" + free.String()
	}
	for i := range w.origins {
		for _, request := range slices.Sorted(maps.Keys(w.origins[i].extended)) {
			text += fmt.Sprintf("\n%s from a plugin: %t", request, fromPlugin(node, w.origins[i].extended[request]))
		}
	}
	return text
}
