// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"encoding/json"
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
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
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

// explainTimeout ends an explanation, unless the options say otherwise.
const explainTimeout = time.Minute

// Explainer explains several objects of one snapshot, one after the other. It prepares the snapshot once.
type Explainer struct{ c *explainer }

// explainer is a cluster with the answers about it.
type explainer struct {
	*schedule.Cluster
	timeout  time.Duration
	answers  map[string]*Answer // about anonymous workloads
	repeated int                // how many answers were known from an equal workload
}

func newExplainer(s *cluster.Snapshot, o Options) *explainer {
	c := &explainer{Cluster: schedule.New(s), timeout: cmp.Or(o.Timeout, explainTimeout), answers: map[string]*Answer{}}
	c.HideOthers = o.HideOthers
	return c
}

// NewExplainer prepares the snapshot, which must not change any more.
func NewExplainer(s *cluster.Snapshot, o Options) *Explainer {
	return &Explainer{newExplainer(s, o)}
}

// Repeated returns how many answers so far were those about an equal pod or claim before, which takes little time.
func (e *Explainer) Repeated() int { return e.c.repeated }

// Pod explains the pod, as the function of that name.
func (e *Explainer) Pod(ctx context.Context, namespace, name string) (*Answer, error) {
	pod, ok := e.c.PodNamed.Find(namespace, name)
	if !ok {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, ErrNotFound)
	}
	return explainPod(ctx, e.c, pod), nil
}

// Claim explains the claim, as the function of that name.
func (e *Explainer) Claim(ctx context.Context, namespace, name string) (*Answer, error) {
	c := e.c
	claim, ok := c.ClaimNamed.Find(namespace, name)
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
		r.Outcome, r.Cause = Ended, schedule.Deleted(claim)
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
	explain(ctx, c, schedule.OfClaim(claim, c.OriginOf(claim)), r, "claim "+claim.Name)
	if err := c.Unknown(cluster.Pods, namespace); err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("pods cannot be read, so it is not known whether one waits for this "+
			"claim: %v", err))
		return r, nil
	}
	r.Notes = append(r.Notes, "no pod that waits uses this claim, and Kubernetes allocates claims for pods")
	return r, nil
}

// waitingFor returns a pod that uses the claim and waits for a node, or nil. Those without scheduling gates come first.
func (c *explainer) waitingFor(claim *resourceapi.ResourceClaim) *corev1.Pod {
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

// uses reports whether the pod uses the claim.
func uses(pod *corev1.Pod, claim string) bool {
	for name := range resourceclaim.PodClaims(pod) {
		if name == claim {
			return true
		}
	}
	return false
}

func explainPod(ctx context.Context, c *explainer, pod *corev1.Pod) *Answer {
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
	w, err := c.WorkloadOf(pod)
	var lacks *schedule.LackError
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
		r.Alternatives = slices.DeleteFunc(r.Alternatives, func(a []advice.Change) bool {
			return slices.Equal(a, r.Change)
		})
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
func (c *explainer) notRollout(pod *corev1.Pod, all []advice.Change) []advice.Change {
	own, hash := deploymentOf(pod)
	for i, change := range all {
		name := strings.TrimPrefix(change.In, "ResourceClaim "+pod.Namespace+"/")
		claim, ok := c.ClaimNamed.Find(pod.Namespace, name)
		if change.Kind != advice.Wait || !ok {
			continue
		}
		for _, user := range schedule.UsersOf(claim) {
			other, ok := c.PodNamed.Find(pod.Namespace, user)
			if of, former := deploymentOf(other); ok && of == own && former != hash {
				all[i] = advice.Change{Kind: advice.ChangePod, In: "Deployment " + pod.Namespace + "/" + own,
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
func (c *explainer) quote(pod *corev1.Pod, r *Answer) {
	for _, said := range pod.Status.Conditions {
		if r.Outcome != Fits || said.Type != corev1.PodScheduled || said.Status != corev1.ConditionFalse ||
			said.Message == "" {
			continue
		}
		r.Cause += "; but when the scheduler last tried, it said: " + said.Message
		for _, name := range slices.Sorted(maps.Keys(schedule.RequestsOf(pod))) {
			if class := c.ClassOf(name); class != nil && strings.Contains(said.Message, "Insufficient "+string(name)) {
				r.Notes = append(r.Notes, fmt.Sprintf("if that stays so, the scheduler has forgotten class %s, as it "+
					"does when another class of the same extendedResourceName was deleted: kubectl annotate "+
					"deviceclass %s changed=\"$(date)\" --overwrite, and create the pod again", class.Name, class.Name))
			}
		}
	}
}

// undecided says that there is no answer.
func (r *Answer) undecided(lacks *schedule.LackError) {
	r.Outcome, r.Search.Complete, r.Cause, r.Notes = Undecided, false, lacks.Error(), nil
}

// explain fills in the report about the workload, whose name ends the subject. Equal workloads are explained once.
func explain(ctx context.Context, c *explainer, w *schedule.Workload, r *Answer, subject string) {
	r.Notes = append(r.Notes, c.Notes(w)...)
	if lacks := c.Lacks(w); lacks != nil {
		r.undecided(lacks)
		return
	}
	original, ofOriginal := w, subject
	w, subject, key, names := w.Anonymous(subject)
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
func (c *explainer) explainNew(ctx context.Context, w *schedule.Workload, r *Answer, subject string) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r.Nodes.Total = len(c.AllNodes)
	if err := w.TooLarge(); err != nil {
		r.unexplained(Undecided, subject+" is not explained: "+err.Error())
		return
	}
	q := &question{schedule.About(ctx, c.Cluster, w)}
	r.Nodes.Groups = len(q.Groups)
	err := q.explain(r, subject)
	r.Search.Asked = q.Asked
	switch {
	case ctx.Err() != nil && err != nil:
		r.unexplained(cmp.Or(r.Outcome, Undecided), fmt.Sprintf("%s is not explained: there was no answer within %s, "+
			"because it asks for much, or other programs need the processor", subject, c.timeout))
	case err != nil:
		r.unexplained(Waits, subject+" waits, and is not explained: it asks for too much to compare with all devices")
	}
}

// unexplained says that there was not enough time for an answer, or too much to explain.
func (r *Answer) unexplained(outcome Outcome, cause string) {
	*r = Answer{Nodes: Nodes{Total: r.Nodes.Total, Groups: r.Nodes.Groups}, Outcome: outcome, Cause: cause,
		Search: Search{Asked: r.Search.Asked}}
}

// question is one about a workload that an answer explains.
type question struct{ *schedule.Question }

// explain fills in the report. An error means that there is no answer: the context has ended, or schedule.ErrLimit.
func (q *question) explain(r *Answer, subject string) error {
	if invalid := q.Workload.Parse(); invalid != nil {
		r.Outcome, r.Cause = Waits, subject+" waits: "+invalid.Error()
		return nil //nolint:nilerr // it is the answer
	}
	r.Nodes.Excluded = q.excluded()
	placements, err := q.Placements(q.Workload)
	if err == nil && len(placements) > 0 {
		q.explainFit(r, subject, placements)
		return nil
	}
	if ended := q.Context.Err(); ended != nil {
		return ended
	}
	r.Outcome = Waits
	if w := q.Workload.Unranked(); w != q.Workload {
		if q.Workload = w; q.Workload.Parse() != nil {
			return nil //nolint:nilerr // it was valid as a list
		}
	}
	candidates, limit := q.CompareAll()
	if limit != nil {
		return limit
	}
	e := &explanation{q, candidates}
	r.Requests, r.Holders = e.requests(), e.holders()
	r.Cause = subject + " waits: " + e.cause(err)
	if ended := q.Context.Err(); ended != nil {
		return ended // the cause may be wrong
	}
	s := advice.Find(q.Question, candidates)
	if s.Note != "" {
		r.Notes = append(r.Notes, s.Note)
	}
	r.search = s
	if q.Unread[cluster.Claims] != nil && len(q.Workload.Claims) > 0 {
		r.unless = othersHold
	}
	for i, a := range s.Found {
		if i == 0 {
			r.Change = a.Changes()
		} else if i <= advice.MaxAlternatives {
			r.Alternatives = append(r.Alternatives, a.Changes())
		}
	}
	r.Search.Complete, r.Search.NotTried = len(s.NotTried) == 0, strings.Join(s.NotTried, "; ")
	if len(r.Change) == 0 && e.unofferedResource() != "" {
		r.Requests = nil // the cause says what to change
	}
	return nil
}

// othersHold is what keeps an answer from being sure if not all claims could be read.
const othersHold = "claims of other namespaces hold the devices"

// explainFit says where the workload fits, if what could not be read does not keep it away.
func (q *question) explainFit(r *Answer, subject string, placements []schedule.Placement) {
	r.Outcome, r.placements = Fits, placements
	total := 0
	for _, found := range placements {
		total += len(found.Group.Names)
		place := Place{Nodes: found.Group.Names}
		for i, result := range found.Results {
			for _, d := range result.Devices.Results {
				place.Devices = append(place.Devices, Device{Claim: q.Workload.Claims[i].Name, Request: d.Request,
					Driver: d.Driver, Pool: d.Pool, Device: d.Device, Asked: q.askedOf(q.Workload.Claims[i], d)})
			}
		}
		r.Places = append(r.Places, place)
	}
	slices.SortFunc(r.Places, func(a, b Place) int { return strings.Compare(a.Nodes[0], b.Nodes[0]) })
	q.noteMistakes(r, placements)
	q.noteLater(r)
	r.Cause = fmt.Sprintf("%s fits now on %d of %d nodes", subject, total, len(q.AllNodes))
	var unless []string
	if q.Unread[cluster.Claims] != nil && len(q.Workload.Claims) > 0 {
		unless = append(unless, othersHold)
	}
	if q.Unread[cluster.Nodes] != nil && q.Workload.Pod != nil {
		unless = append(unless, "labels, taints or resources of the nodes keep the pod away")
	}
	if len(unless) > 0 {
		r.Outcome = Undecided
		r.Cause += ", unless " + strings.Join(unless, " or ")
	}
}

// noteLater says what the workload waits for if it does not fit with what is published now.
func (q *question) noteLater(r *Answer) {
	published := q.AsPublished()
	if published == nil {
		return
	}
	now := schedule.About(q.Context, published, q.Workload)
	if found, err := now.Place(q.Workload, now.Groups); found != nil || err != nil {
		return
	}
	r.Notes = append(r.Notes, fmt.Sprintf("device %s is not published yet, because possible partitions are "+
		"published on demand. With controller.onDemand.enabled the controller asks nodes for more of them; otherwise "+
		"the pod waits until the GPUs before this one are used. With partitions: dynamic it does not wait",
		r.Places[0].Devices[0].Device))
}

// askedOf returns the amounts that a request asks for of a device that it gets as a whole, because that has no shares.
// "": it asks for none, or the device is none that could have shares.
func (q *question) askedOf(claim *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) string {
	d := q.Device(r)
	if d == nil || ptr.Deref(d.Attributes["type"].StringValue, "gpu") != "gpu" ||
		ptr.Deref(d.AllowMultipleAllocations, false) {
		return ""
	}
	return Share(&claim.Spec, r.Request, d)
}

// answer fills in the answer about an anonymous workload, with the names of this one.
func (r *Answer) answer(of *Answer, names *strings.Replacer) {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // a report is made to be written as JSON
	}
	a := Answer{placements: of.placements, unless: of.unless, search: of.search}
	if err := json.Unmarshal([]byte(names.Replace(string(text))), &a); err != nil {
		panic(err) // names are escaped
	}
	a.Kind, a.Namespace, a.Name, a.UID, a.ResourceVersion = r.Kind, r.Namespace, r.Name, r.UID, r.ResourceVersion
	a.Notes = slices.Concat(r.Notes, a.Notes)
	*r = a
}
