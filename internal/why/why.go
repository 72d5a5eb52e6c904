// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
)

// ErrNotFound means that the snapshot does not have the object.
var ErrNotFound = errors.New("not found")

// Pod explains the pod. The error wraps ErrNotFound if the snapshot does not have it.
func Pod(ctx context.Context, s *cluster.Snapshot, namespace, name string) (*Answer, error) {
	return NewExplainer(s, Options{}).Pod(ctx, namespace, name)
}

// Claim explains the claim, with the pod that waits for it. The error wraps ErrNotFound if the snapshot does not have
// it.
func Claim(ctx context.Context, s *cluster.Snapshot, namespace, name string) (*Answer, error) {
	return NewExplainer(s, Options{}).Claim(ctx, namespace, name)
}

// Options say how an Explainer explains.
type Options struct {
	// HideOthers leaves out the names of claims of other namespaces. Set it where the reader of an answer has fewer
	// rights than the reader of the snapshot.
	HideOthers bool
	// Timeout ends one explanation. 0: explainTimeout.
	Timeout time.Duration
}

// Explainer explains several objects of one snapshot, one after the other. It prepares the snapshot once.
type Explainer struct{ index *index }

// NewExplainer prepares the snapshot, which must not change any more.
func NewExplainer(s *cluster.Snapshot, o Options) *Explainer {
	c := newIndex(s)
	c.Options = o
	return &Explainer{c}
}

// Repeated returns how many answers so far were those about an equal pod or claim before, which takes little time.
func (e *Explainer) Repeated() int { return e.index.repeated }

// Pod explains the pod, as the function of that name.
func (e *Explainer) Pod(ctx context.Context, namespace, name string) (*Answer, error) {
	pod, ok := find(e.index.Pods, namespace, name)
	if !ok {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, ErrNotFound)
	}
	return explainPod(ctx, e.index, pod), nil
}

// Claim explains the claim, as the function of that name.
func (e *Explainer) Claim(ctx context.Context, namespace, name string) (*Answer, error) {
	c := e.index
	claim, ok := find(c.Claims, namespace, name)
	if !ok {
		return nil, fmt.Errorf("resourceclaim %s/%s: %w", namespace, name, ErrNotFound)
	}
	r := newAnswer("ResourceClaim", &claim.ObjectMeta)
	switch {
	case claim.Status.Allocation != nil:
		if devices := c.bindings(claim); len(devices) > 0 {
			r.waitsFor(devices, "claim "+claim.Name, "it")
			return r, nil
		}
		r.Outcome, r.Cause = Placed, "claim "+claim.Name+" has its devices: "+strings.Join(devicesOf(claim), ", ")
		return r, nil
	case claim.DeletionTimestamp != nil:
		r.Outcome, r.Cause = Ended, deleted(claim)
		return r, nil
	}
	if pod := c.waitingFor(claim); pod != nil {
		ofPod := explainPod(ctx, c, pod)
		ofPod.Kind, ofPod.Name, ofPod.UID, ofPod.ResourceVersion = r.Kind, r.Name, r.UID, r.ResourceVersion
		ofPod.Notes = append(ofPod.Notes, fmt.Sprintf("claim %s waits for a node of pod %s", name, pod.Name))
		return ofPod, nil
	}
	for _, pod := range c.Pods {
		if pod.Namespace != namespace || !uses(pod, name) {
			continue
		}
		if cause := c.bypassed(pod); cause != "" {
			r.Outcome, r.Cause = Waits, fmt.Sprintf("claim %s waits: pod %s %s", name, pod.Name, cause)
			return r, nil
		}
	}
	w := &workload{claims: []*resourceapi.ResourceClaim{claim}, origins: []origin{c.originOf(claim)}}
	explain(ctx, c, w, r, "claim "+claim.Name)
	if err := c.Unknown(cluster.Pods, namespace); err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("pods cannot be read, so it is not known whether one waits for this "+
			"claim: %v", err))
		return r, nil
	}
	r.Notes = append(r.Notes, "no pod that waits uses this claim, and Kubernetes allocates claims for pods")
	return r, nil
}

// waitingFor returns a pod that uses the claim and waits for a node, or nil. Those without scheduling gates come first.
func (c *index) waitingFor(claim *resourceapi.ResourceClaim) *corev1.Pod {
	var gated *corev1.Pod
	for _, pod := range c.Pods {
		if pod.Namespace != claim.Namespace || !uses(pod, claim.Name) || pod.Spec.NodeName != "" ||
			cluster.Finished(pod) ||
			pod.DeletionTimestamp != nil {
			continue
		}
		if len(pod.Spec.SchedulingGates) == 0 {
			return pod
		}
		gated = cmp.Or(gated, pod)
	}
	return gated
}

func newAnswer(kind string, of *metav1.ObjectMeta) *Answer {
	return &Answer{Kind: kind, Namespace: of.Namespace, Name: of.Name, UID: of.UID, ResourceVersion: of.ResourceVersion,
		Search: Search{Complete: true}}
}

// find returns the object of that name.
func find[T metav1.Object](all []T, namespace, name string) (found T, ok bool) {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o, true
		}
	}
	return found, false
}

// uses reports whether the pod uses the claim.
func uses(pod *corev1.Pod, claim string) bool {
	for name := range resourceclaim.PodClaims(pod) {
		if name == claim {
			return true
		}
	}
	return false
}

// originOf says where a claim comes from.
func (c *index) originOf(claim *resourceapi.ResourceClaim) origin {
	name := claim.Namespace + "/" + claim.Name
	return origin{label: "claim " + claim.Name, object: "ResourceClaim " + name, exists: !c.planned[name]}
}

func explainPod(ctx context.Context, c *index, pod *corev1.Pod) *Answer {
	r := newAnswer("Pod", &pod.ObjectMeta)
	subject := "pod " + pod.Name
	switch {
	case cluster.Finished(pod):
		r.Outcome, r.Cause = Ended, strings.Join(slices.Concat([]string{fmt.Sprintf("%s has ended: its phase is %s",
			subject, pod.Status.Phase)}, c.unused(pod), containerStates(pod)), "; ")
		return r
	case c.bypassed(pod) != "":
		r.Outcome, r.Cause = Waits, subject+" "+c.bypassed(pod)
		return r
	case pod.Spec.NodeName != "":
		c.placed(r, pod, subject)
		return r
	case pod.DeletionTimestamp != nil:
		r.Outcome, r.Cause = Ended, subject+" is being deleted"
		return r
	case len(pod.Spec.SchedulingGates) > 0:
		r.Outcome, r.Cause = Waits, fmt.Sprintf("%s has the scheduling gate %s: the scheduler ignores it until "+
			"another program removes that", subject, pod.Spec.SchedulingGates[0].Name)
		return r
	}
	w, err := c.workloadOf(pod)
	var lacks *lackError
	switch {
	case errors.As(err, &lacks):
		r.undecided(lacks)
		return r
	case err != nil:
		r.Outcome, r.Cause = Waits, subject+" waits: "+err.Error()
		return r
	}
	devices, reserved := c.podBindings(w)
	if !reserved {
		explain(ctx, c, w, r, subject)
		r.Change = c.notRollout(pod, r.Change)
		for i, other := range r.Alternatives {
			r.Alternatives[i] = c.notRollout(pod, other)
		}
		r.Alternatives = slices.DeleteFunc(r.Alternatives, func(a []Change) bool { return slices.Equal(a, r.Change) })
	}
	if reserved || len(devices) > 0 && r.Outcome == Fits {
		r.waitsFor(devices, subject, "claim "+devices[0].Claim)
	}
	c.quote(pod, r)
	if unused := c.unused(pod); len(unused) > 0 && r.Outcome != Undecided {
		r.Cause += "; besides, " + strings.Join(unused, "; ")
	}
	return r
}

// notRollout returns the changes with the strategy of the pod's Deployment in place of waits for a pod of its former
// template: that one ends when this one is ready.
func (c *index) notRollout(pod *corev1.Pod, all []Change) []Change {
	own, hash := deploymentOf(pod)
	for i, change := range all {
		claim, ok := find(c.Claims, pod.Namespace, strings.TrimPrefix(change.In, "ResourceClaim "+pod.Namespace+"/"))
		if change.Kind != Wait || !ok {
			continue
		}
		for _, user := range usersOf(claim) {
			other, ok := find(c.Pods, pod.Namespace, user)
			if of, former := deploymentOf(other); ok && of == own && former != hash {
				all[i] = Change{Kind: ChangePod, In: "Deployment " + pod.Namespace + "/" + own,
					Text: fmt.Sprintf("set strategy.type: Recreate, or maxSurge: 0: pod %s has the devices, and ends "+
						"when this pod is ready", user)}
			}
		}
	}
	return slices.Compact(all)
}

// deploymentOf returns the name of the pod's Deployment and the hash of its template, or "".
func deploymentOf(pod *corev1.Pod) (name, hash string) {
	if pod == nil || metav1.GetControllerOfNoCopy(pod) == nil || pod.Labels[templateHash] == "" {
		return "", ""
	}
	hash = pod.Labels[templateHash]
	return strings.TrimSuffix(metav1.GetControllerOfNoCopy(pod).Name, "-"+hash), hash
}

const templateHash = appsv1.DefaultDeploymentUniqueLabelKey

// quote adds what the scheduler says of the pod, if that contradicts the answer.
func (c *index) quote(pod *corev1.Pod, r *Answer) {
	for _, said := range pod.Status.Conditions {
		if r.Outcome != Fits || said.Type != corev1.PodScheduled || said.Status != corev1.ConditionFalse ||
			said.Message == "" {
			continue
		}
		r.Cause += "; but when the scheduler last tried, it said: " + said.Message
		for _, name := range slices.Sorted(maps.Keys(requestsOf(pod))) {
			if class := c.ofClass(name); class != nil && strings.Contains(said.Message, "Insufficient "+string(name)) {
				r.Notes = append(r.Notes, fmt.Sprintf("if that stays so, the scheduler has forgotten class %s, as it "+
					"does when another class of the same extendedResourceName was deleted: kubectl annotate "+
					"deviceclass %s changed=\"$(date)\" --overwrite, and create the pod again", class.Name, class.Name))
			}
		}
	}
}

// lackError means that there is no answer without a resource that could not be read.
type lackError struct {
	resource string
	err      error
}

func (e *lackError) Error() string {
	return fmt.Sprintf("no answer without the right to list %s: %v", cluster.FullName(e.resource), e.err)
}

// undecided says that there is no answer.
func (r *Answer) undecided(lacks *lackError) {
	r.Outcome, r.Search.Complete, r.Cause, r.Notes = Undecided, false, lacks.Error(), nil
}

// workloadOf returns the pod with its claims. An error says why the scheduler does not look at devices yet, or is a
// lackError.
func (c *index) workloadOf(pod *corev1.Pod) (*workload, error) {
	w := &workload{pod: pod}
	if n := len(pod.Spec.ResourceClaims); n > maxSubrequests {
		return nil, fmt.Errorf("it has %d claims, and is explained with at most %d", n, maxSubrequests)
	}
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		name, mustCheckOwner, err := resourceclaim.Name(pod, podClaim)
		if errors.Is(err, resourceclaim.ErrClaimNotFound) {
			if err := c.fromTemplate(w, pod, podClaim); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // the pod needs no claim for it
		}
		claim, ok := find(c.Claims, pod.Namespace, *name)
		switch {
		case !ok:
			if err := c.Unknown(cluster.Claims, pod.Namespace); err != nil {
				return nil, &lackError{cluster.Claims, err}
			}
			if !mustCheckOwner {
				return nil, c.missingClaim(pod.Namespace, *name)
			}
			// It was created after the claims were read, or it was deleted and is created again.
			if err := c.fromTemplate(w, pod, podClaim); err != nil {
				return nil, err
			}
			continue
		case claim.DeletionTimestamp != nil:
			return nil, errors.New(deleted(claim))
		case len(claim.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize &&
			!resourceclaim.IsReservedForPod(pod, claim, true):
			return nil, fmt.Errorf("claim %s is used by %d pods already, which is the limit", *name,
				len(claim.Status.ReservedFor))
		}
		if mustCheckOwner {
			if err := resourceclaim.IsForPod(pod, claim, true); err != nil {
				return nil, err
			}
		}
		if claim.Status.Allocation != nil {
			w.allocated = append(w.allocated, claim)
			continue
		}
		o := c.originOf(claim)
		if podClaim.ResourceClaimTemplateName != nil { // the claim cannot be changed, and comes from there
			o.object = "ResourceClaimTemplate " + pod.Namespace + "/" + *podClaim.ResourceClaimTemplateName
		}
		w.claims, w.origins = append(w.claims, claim), append(w.origins, o)
	}
	if claim := c.extendedClaim(pod); claim != nil {
		w.allocated = append(w.allocated, claim)
		return w, nil
	}
	c.addExtended(w)
	return w, nil
}

// extendedClaim returns the claim that the scheduler has made for the pod's extended resources, if it has devices: the
// scheduler has ended, or the pod was not bound, before the pod was on a node. Then the pod keeps them.
func (c *index) extendedClaim(pod *corev1.Pod) *resourceapi.ResourceClaim {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil {
		return nil
	}
	claim, ok := find(c.Claims, pod.Namespace, status.ResourceClaimName)
	if !ok || claim.Status.Allocation == nil || resourceclaim.IsForPod(pod, claim, false) != nil {
		return nil
	}
	return claim
}

// fromTemplate adds the claim that Kubernetes will generate.
func (c *index) fromTemplate(w *workload, pod *corev1.Pod, podClaim *corev1.PodResourceClaim) error {
	name := *podClaim.ResourceClaimTemplateName
	template, ok := find(c.Templates, pod.Namespace, name)
	if !ok {
		if err := c.Unknown(cluster.Templates, pod.Namespace); err != nil {
			return &lackError{cluster.Templates, err}
		}
		return c.missingTemplate(pod.Namespace, name, podClaim.Name)
	}
	w.claims = append(w.claims, claimOf(template, podClaim.Name))
	w.origins = append(w.origins, origin{label: "claim " + podClaim.Name,
		object: "ResourceClaimTemplate " + pod.Namespace + "/" + name})
	return nil
}

// claimOf returns a claim from the template.
func claimOf(t *resourceapi.ResourceClaimTemplate, name string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name,
		UID: t.UID + "/" + types.UID(name)}, Spec: *t.Spec.Spec.DeepCopy()}
	cluster.SetDefaults(&claim.Spec)
	return claim
}

// isExtended reports whether the name is that of an extended resource, also of one that names a device class.
func isExtended(name corev1.ResourceName) bool {
	text := string(name)
	return strings.HasPrefix(text, resourceapi.ResourceDeviceClassPrefix) || strings.Contains(text, "/") &&
		!strings.Contains(text, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(text, corev1.DefaultResourceRequestsPrefix)
}

// addExtended adds the claim that the scheduler makes for extended resources of device classes.
func (c *index) addExtended(w *workload) {
	requests, extended := c.extendedOf(w.pod)
	if len(requests) == 0 {
		return
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.pod.Namespace,
		Name: "extended-resources", UID: w.pod.UID + "/extended-resources"}}
	claim.Spec.Devices.Requests = requests
	w.claims = append(w.claims, claim)
	w.origins = append(w.origins, origin{label: "the pod's extended resources",
		object: "Pod " + w.pod.Namespace + "/" + w.pod.Name, exists: w.pod.UID != "", extended: extended})
}

// extendedOf returns the requests for the pod's extended resources of device classes, and these by the names of the
// requests.
func (c *index) extendedOf(pod *corev1.Pod) ([]resourceapi.DeviceRequest, map[string]corev1.ResourceName) {
	var all []resourceapi.DeviceRequest
	extended := map[string]corev1.ResourceName{}
	for _, name := range slices.Sorted(maps.Keys(requestsOf(pod))) {
		class := c.ofClass(name)
		if class == nil {
			continue
		}
		for _, request := range fit.ExtendedRequests(pod, name, class.Name) {
			all = append(all, request)
			extended[request.Name] = name
		}
	}
	slices.SortFunc(all, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return all, extended
}

// lacks returns what there is no answer without, or nil. Without all claims, there is one: claims that are not known
// can only take devices away.
func (c *index) lacks(w *workload) *lackError {
	var extended bool
	if w.pod != nil {
		extended = slices.ContainsFunc(slices.Collect(maps.Keys(requestsOf(w.pod))), isExtended)
	}
	for _, one := range []struct {
		resource string
		needed   bool
	}{
		{cluster.Slices, len(w.claims) > 0},
		{cluster.Classes, len(w.claims) > 0 || extended},
		// Slices tell names of nodes, unless they are of several nodes. Only nodes tell of nodes without slices, and
		// what their device plugins offer.
		{cluster.Nodes, len(w.claims) == 0 || extended || len(c.nodes) == 0 && len(c.Slices) > 0},
	} {
		if err := c.Unread[one.resource]; err != nil && one.needed {
			return &lackError{one.resource, err}
		}
	}
	return nil
}

// explain fills in the report about the workload, whose name ends the subject. Equal workloads are explained once.
func explain(ctx context.Context, c *index, w *workload, r *Answer, subject string) {
	r.Notes = append(r.Notes, c.notes(w)...)
	if lacks := c.lacks(w); lacks != nil {
		r.undecided(lacks)
		return
	}
	original, ofOriginal := w, subject
	w, subject, key, names := w.anonymous(subject)
	of := c.answers[key]
	if of == nil {
		of = &Answer{Search: Search{Complete: true}}
		c.explainNew(ctx, w, of, subject)
	} else {
		c.repeated++
	}
	if ctx.Err() == nil { // otherwise the answer may be wrong
		c.answers[key] = of
	}
	r.answer(of, names)
	c.checkNodes(r, original, ofOriginal)
}

// explainNew explains the workload within the timeout.
func (c *index) explainNew(ctx context.Context, w *workload, r *Answer, subject string) {
	timeout := cmp.Or(c.Timeout, explainTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r.Nodes.Total = len(c.nodes)
	if err := w.tooLarge(); err != nil {
		r.unexplained(Undecided, subject+" is not explained: "+err.Error())
		return
	}
	q := newQuestion(ctx, c, w)
	r.Nodes.Groups = len(q.groups)
	err := q.explain(r, subject)
	r.Search.Asked = q.asked
	switch {
	case ctx.Err() != nil && err != nil:
		r.unexplained(cmp.Or(r.Outcome, Undecided), fmt.Sprintf("%s is not explained: there was no answer within %s, "+
			"because it asks for much, or other programs need the processor", subject, timeout))
	case err != nil:
		r.unexplained(Waits, subject+" waits, and is not explained: it asks for too much to compare with all devices")
	}
}

// unexplained says that there was not enough time for an answer, or too much to explain.
func (r *Answer) unexplained(outcome Outcome, cause string) {
	*r = Answer{Nodes: Nodes{Total: r.Nodes.Total, Groups: r.Nodes.Groups}, Outcome: outcome, Cause: cause,
		Search: Search{Asked: r.Search.Asked}}
}

// explain fills in the report. An error means that there is no answer: the context has ended, or errLimit.
func (q *question) explain(r *Answer, subject string) error {
	if invalid := q.w.parse(); invalid != nil {
		r.Outcome, r.Cause = Waits, subject+" waits: "+invalid.Error()
		return nil //nolint:nilerr // it is the answer
	}
	r.Nodes.Excluded = q.excluded()
	placements, err := q.placements(q.w)
	if err == nil && len(placements) > 0 {
		q.explainFit(r, subject, placements)
		return nil
	}
	if ended := q.ctx.Err(); ended != nil {
		return ended
	}
	r.Outcome = Waits
	if w := q.w.unranked(); w != q.w {
		if q.w = w; q.w.parse() != nil {
			return nil //nolint:nilerr // it was valid as a list
		}
	}
	candidates, limit := q.compareAll()
	if limit != nil {
		return limit
	}
	e := &explanation{q, candidates}
	r.Requests, r.Holders = e.requests(), e.holders()
	r.Cause = subject + " waits: " + e.cause(err)
	if ended := q.ctx.Err(); ended != nil {
		return ended // the cause may be wrong
	}
	q.maxAsked, q.deadline = q.asked+searchAsked, time.Now().Add(searchTimeout)
	s := &search{proposals: &proposals{q, candidates}, everywhere: anyErrors(candidates)}
	q.starts = true
	s.run()
	with := "other changes"
	if len(s.found) == 0 && s.refusedOnly != nil {
		q.starts, with = false, "that change"
		q.maxAsked, q.deadline = q.asked+searchAsked, time.Now().Add(searchTimeout/4)
		if _, err := s.accept(s.refusedOnly); err != nil {
			s.notTried = append(s.notTried, "whether a milder change is enough")
		}
	}
	if len(s.found) > 0 && q.refused != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("with %s it would get devices and not start, because its node refuses "+
			"it: %s", with, q.refused.Text()))
	}
	if s.slow > 0 {
		s.notTried = append(s.notTried, fmt.Sprintf("what the allocator does not answer within %s (%d %s)",
			changeTimeout, s.slow, plural(s.slow, "question", "questions")))
	}
	r.search = s
	if q.Unread[cluster.Claims] != nil && len(q.w.claims) > 0 {
		r.unless = othersHold
	}
	for i, a := range s.found {
		if i == 0 {
			r.Change = a.changes()
		} else if i <= maxAlternatives {
			r.Alternatives = append(r.Alternatives, a.changes())
		}
	}
	r.Search.Complete, r.Search.NotTried = len(s.notTried) == 0, strings.Join(s.notTried, "; ")
	if len(r.Change) == 0 && e.unofferedResource() != "" {
		r.Requests = nil // the cause says what to change
	}
	return nil
}

// othersHold is what keeps an answer from being sure if not all claims could be read.
const othersHold = "claims of other namespaces hold the devices"

// anyErrors reports whether an expression, or a clause of one by itself, has an error on any device.
func anyErrors(candidates map[requestID][]candidate) bool {
	for _, of := range candidates {
		if slices.ContainsFunc(of, func(f candidate) bool { return f.failed }) {
			return true
		}
	}
	return false
}

// explainFit says where the workload fits, if what could not be read does not keep it away.
func (q *question) explainFit(r *Answer, subject string, placements []placement) {
	r.Outcome, r.placements = Fits, placements
	total := 0
	for _, found := range placements {
		total += len(found.group.names)
		place := Place{Nodes: found.group.names}
		for i, result := range found.results {
			for _, d := range result.Devices.Results {
				place.Devices = append(place.Devices, Device{Claim: q.w.claims[i].Name, Request: d.Request,
					Driver: d.Driver, Pool: d.Pool, Device: d.Device, Asked: q.askedOf(q.w.claims[i], d)})
			}
		}
		r.Places = append(r.Places, place)
	}
	slices.SortFunc(r.Places, func(a, b Place) int { return strings.Compare(a.Nodes[0], b.Nodes[0]) })
	q.noteMistakes(r, placements)
	r.Cause = fmt.Sprintf("%s fits now on %d of %d nodes", subject, total, len(q.nodes))
	var unless []string
	if q.Unread[cluster.Claims] != nil && len(q.w.claims) > 0 {
		unless = append(unless, othersHold)
	}
	if q.Unread[cluster.Nodes] != nil && q.w.pod != nil {
		unless = append(unless, "labels, taints or resources of the nodes keep the pod away")
	}
	if len(unless) > 0 {
		r.Outcome = Undecided
		r.Cause += ", unless " + strings.Join(unless, " or ")
	}
}

// unconsidered returns what a pod demands of its node that is not about devices, resources, labels or taints of nodes.
func unconsidered(spec *corev1.PodSpec) (all []string) {
	if a := spec.Affinity; a != nil && (a.PodAffinity != nil &&
		len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 || a.PodAntiAffinity != nil &&
		len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0) {
		all = append(all, "the affinity to other pods is")
	}
	if slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule
	}) {
		all = append(all, "topologySpreadConstraints are")
	}
	if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	}) {
		all = append(all, "the places of volumes are")
	}
	if slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(one corev1.Container) bool {
		return slices.ContainsFunc(one.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	}) {
		all = append(all, "host ports are")
	}
	return all
}

// withoutReading says what answers do not cover that lack a resource.
var withoutReading = map[string]string{cluster.Claims: "claims of other namespaces may hold devices",
	cluster.Nodes:      "nodes cannot be read, so their labels, taints and resources are not considered",
	cluster.Pods:       "pods cannot be read, so what they use of nodes is not considered",
	cluster.Quotas:     "quotas cannot be read, and are not considered",
	cluster.GPUQuotas:  "GPUQuotas cannot be read, and are not considered",
	cluster.TaintRules: "DeviceTaintRules cannot be read, so devices may have more taints"}

// notes returns what the answer does not cover.
func (c *index) notes(w *workload) []string {
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(c.Unread)) {
		if text := withoutReading[resource]; text != "" {
			all = append(all, fmt.Sprintf("%s: %v", text, c.Unread[resource]))
		}
	}
	for i, claim := range w.claims {
		for _, p := range cluster.Subrequests(&claim.Spec) {
			if slices.ContainsFunc(*p.Tolerations, func(t resourceapi.DeviceToleration) bool {
				return t.Effect == ""
			}) {
				all = append(all, fmt.Sprintf("a toleration of %s, request %s: %s", w.origins[i].label, p.Name,
					cluster.NoEffect))
			}
		}
	}
	if w.pod == nil {
		return all
	}
	if names := c.scopedQuotas(w); len(names) > 0 {
		all = append(all, fmt.Sprintf("quotas with scopes are not considered: %s", strings.Join(names, ", ")))
	}
	for _, what := range unconsidered(&w.pod.Spec) {
		all = append(all, what+" not considered")
	}
	if name := w.pod.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
		all = append(all, fmt.Sprintf("the scheduler %s of the pod may decide in another way", name))
	}
	if w.pod.Spec.SchedulingGroup != nil {
		all = append(all, "the other pods of the pod group are not considered")
	}
	return all
}
