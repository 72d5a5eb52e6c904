// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/evict"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

const (
	// label of a rule has the UID of the pod that it keeps devices for.
	label = "gpu.nvidia.com/preemptor"
	// annotation of a rule has the rest of the hold.
	annotation = "gpu.nvidia.com/preemption"
	// maxGrace is how long devices are kept for the end of a victim, in seconds. It may take a year.
	maxGrace = 3600
)

// hold is what is kept for a pod until it has a node, and the pods that are evicted for it.
type hold struct {
	uid       types.UID
	Owner     types.UID `json:"owner"` // ownerOf the pod; begin writes it down
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Node      string    `json:"node"`
	Victims   []victim  `json:"victims"`
	Until     time.Time `json:"until"`

	evicted int // of the victims
	gone    int // of the victims, at least
	looked  time.Time
	slow    bool // the next victim is still in its grace period
	isRead  bool // from rules: the victims are not compared with the pod yet

	failures int       // one after the other
	next     time.Time // nothing is done earlier, because of a failure
}

type victim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

func newHold(pod *corev1.Pod, plan *moves.Preemption, now time.Time) *hold {
	h := &hold{uid: pod.UID, Namespace: pod.Namespace, Pod: pod.Name, Node: plan.Node}
	grace := int64(0)
	for _, v := range plan.Victims {
		h.Victims = append(h.Victims, victim{v.Namespace, v.Name, v.UID})
		grace = max(grace, ptr.Deref(v.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds))
	}
	h.Until = now.Add(keeps + time.Duration(min(grace, maxGrace))*time.Second)
	return h
}

// rules returns a rule for each device that is kept.
func (h *hold) rules(plan *moves.Preemption) (all []*resourceapi.DeviceTaintRule) {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // it can be written as JSON
	}
	for i, id := range plan.Hold {
		all = append(all, &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("preemption-%s-%d", h.uid, i),
				Labels:      map[string]string{label: string(h.uid)},
				Annotations: map[string]string{annotation: string(text)}},
			Spec: resourceapi.DeviceTaintRuleSpec{Taint: moves.PreemptionToken(h.uid),
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(id.Driver.String()),
					Pool: ptr.To(id.Pool.String()), Device: ptr.To(id.Device.String())}}})
	}
	return all
}

// readHolds reads what an earlier leader has begun.
func (p *Preemptor) readHolds(ctx context.Context) error {
	var rules resourceapi.DeviceTaintRuleList
	err := p.client.List(ctx, &rules, client.HasLabels{label})
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil // before Kubernetes 1.37, nothing is kept
	}
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for i := range rules.Items {
		h := &hold{uid: types.UID(rules.Items[i].Labels[label]), isRead: true}
		if err := json.Unmarshal([]byte(rules.Items[i].Annotations[annotation]), h); err != nil {
			h.Until = time.Time{} // it is given back
		}
		p.holds[h.uid] = h
	}
	return nil
}

// begin writes down what is to be done, and does it. If it cannot, it gives back what it has kept, now or later.
func (p *Preemptor) begin(ctx context.Context, h *hold, plan *moves.Preemption, now time.Time) error {
	p.holds[h.uid] = h
	for _, rule := range h.rules(plan) {
		err := p.client.Create(ctx, rule)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			break // before Kubernetes 1.37, nothing is kept
		}
		if err != nil { // one of the name is of an attempt before, and may be for another device
			return errors.Join(err, p.abandon(ctx, h))
		}
	}
	if waits, err := p.nominate(ctx, h, h.Node); err != nil || !waits {
		return errors.Join(err, p.abandon(ctx, h))
	}
	var names []string
	for _, v := range h.Victims {
		names = append(names, nameFor(h.Namespace, v.Namespace, v.Name, v.UID))
	}
	log.FromContext(ctx).Info("A pod preempts others", "pod", h.Namespace+"/"+h.Pod, "node", h.Node, "victims",
		h.Victims)
	p.preemptions.Inc()
	_, err := feature.CreateEvent(ctx, p.client, Events.Preempts, reference(h.Namespace, h.Pod, h.uid),
		fmt.Sprintf("preempts-%s-%d", h.uid, now.Unix()), fmt.Sprintf("on node %s, of lower priority: %s", h.Node,
			strings.Join(names, ", ")))
	return errors.Join(err, p.evict(ctx, h, now))
}

// reference refers to a pod in an event.
func reference(namespace, name string, uid types.UID) *corev1.ObjectReference {
	return event.PodReference(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}})
}

// nameFor names a pod in an event of another one. Users of another namespace do not learn its name. They do not learn
// the UID of a pod for which devices are kept, either, because claims tolerate the taint by it: uid is "" then.
func nameFor(reader, namespace, name string, uid types.UID) string {
	if reader == namespace {
		return "pod " + name
	}
	if uid == "" {
		return "a pod of another namespace"
	}
	return fmt.Sprintf("a pod of another namespace (UID %s)", uid)
}

// keep goes on with what was begun: it evicts the victims, and gives back what is not needed any more.
func (p *Preemptor) keep(ctx context.Context, pods []*corev1.Pod, now time.Time) (last error) {
	if len(p.holds) == 0 {
		return nil
	}
	known := map[types.UID]*corev1.Pod{}
	for _, pod := range pods {
		known[pod.UID] = pod
	}
	for _, h := range p.holds {
		if now.Before(h.next) {
			continue
		}
		err := p.goOn(ctx, h, known[h.uid], now)
		if err == nil {
			h.failures = 0
			continue
		}
		h.next = now.Add(min(maxPause, period<<min(h.failures, 10)))
		h.failures++
		last = errors.Join(last, err)
	}
	return last
}

// goOn does for one hold what keep says.
func (p *Preemptor) goOn(ctx context.Context, h *hold, pod *corev1.Pod, now time.Time) error {
	switch {
	case len(h.Victims) == 0: // it is abandoned
		return p.release(ctx, h)
	case pod == nil || pod.DeletionTimestamp != nil: // it has a node, or is gone
		return p.end(ctx, h, now)
	case now.After(h.Until):
		return p.expire(ctx, h, now)
	}
	if err := p.compare(ctx, h, pod, now); err != nil || len(h.Victims) == 0 {
		return err
	}
	err := errors.Join(p.evict(ctx, h, now), p.look(ctx, h, now))
	if pod.Status.NominatedNodeName == "" { // the scheduler has cleared it in an attempt in vain
		_, failed := p.nominate(ctx, h, h.Node)
		err = errors.Join(err, failed)
	}
	return err
}

// compare drops the victims of rules that have not a lower priority than the pod, and bounds how long devices are kept:
// others may write rules, too.
func (p *Preemptor) compare(ctx context.Context, h *hold, pod *corev1.Pod, now time.Time) error {
	if !h.isRead {
		return nil
	}
	var lower []victim
	for _, v := range h.Victims {
		live, err := p.live(ctx, v)
		if err != nil {
			return err
		}
		if live == nil || corev1helpers.PodPriority(live) < corev1helpers.PodPriority(pod) {
			lower = append(lower, v)
		}
	}
	h.Victims, h.isRead = lower, false
	if most := now.Add(keeps + maxGrace*time.Second); h.Until.After(most) {
		h.Until = most
	}
	return nil
}

// expire gives back what the pod has not used in time.
func (p *Preemptor) expire(ctx context.Context, h *hold, now time.Time) error {
	if !h.slow {
		p.notUsed(h.Owner, now)
	}
	_, err := feature.CreateEvent(ctx, p.client, Events.NotUsed, reference(h.Namespace, h.Pod, h.uid),
		fmt.Sprintf("preemption-not-used-%s-%d", h.uid, h.Until.Unix()),
		fmt.Sprintf("pods were evicted on node %s, and the pod is still on no node", h.Node))
	return errors.Join(err, p.abandon(ctx, h))
}

// end gives back what a pod has used that has a node, or has not used that is gone.
func (p *Preemptor) end(ctx context.Context, h *hold, now time.Time) error {
	pod, err := p.live(ctx, victim{h.Namespace, h.Pod, h.uid})
	switch {
	case err != nil:
		return err
	case pod != nil && pod.Spec.NodeName != "":
		delete(p.pauses, h.Owner)
	default:
		p.notUsed(h.Owner, now)
	}
	return p.release(ctx, h)
}

// live returns the pod as it is now, or nil if it is gone.
func (p *Preemptor) live(ctx context.Context, of victim) (*corev1.Pod, error) {
	pods, err := p.reads.CoreV1().Pods(of.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.
		OneTermEqualSelector(metav1.ObjectNameField, of.Name).String()})
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", of.Namespace, of.Name, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.UID == of.UID {
			return pod, nil
		}
	}
	return nil, nil
}

// look bounds the hold once all its victims are gone.
func (p *Preemptor) look(ctx context.Context, h *hold, now time.Time) error {
	if h.gone == len(h.Victims) || h.evicted < len(h.Victims) || now.Sub(h.looked) < looks {
		return nil
	}
	h.looked, h.slow = now, false
	for ; h.gone < len(h.Victims); h.gone++ {
		if pod, err := p.live(ctx, h.Victims[h.gone]); err != nil || pod != nil && !cluster.Finished(pod) {
			h.slow = pod != nil && pod.DeletionTimestamp != nil && pod.DeletionTimestamp.After(now)
			return err
		}
	}
	if until := now.Add(keeps); until.Before(h.Until) {
		h.Until = until
	}
	return nil
}

// abandon evicts nobody any more, and gives everything back. What fails is tried again by keep.
func (p *Preemptor) abandon(ctx context.Context, h *hold) error {
	h.Victims, h.evicted = nil, 0
	_, err := p.nominate(ctx, h, "")
	return errors.Join(err, p.release(ctx, h))
}

// release deletes the rules.
func (p *Preemptor) release(ctx context.Context, h *hold) error {
	err := p.client.DeleteAllOf(ctx, &resourceapi.DeviceTaintRule{}, client.MatchingLabels{label: string(h.uid)})
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("give devices back: %w", err)
	}
	delete(p.holds, h.uid)
	return nil
}

// nominate sets the node that the scheduler tries first, and whose CPU and memory it keeps for the pod. waits reports
// whether the pod still waits for a node.
func (p *Preemptor) nominate(ctx context.Context, h *hold, node string) (waits bool, err error) {
	metadata := map[string]any{"uid": h.uid}
	if known := p.pauses[h.Owner]; known != nil && node == "" {
		metadata["annotations"] = map[string]string{waiting.PauseAnnotation: known.String()}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata,
		"status": map[string]any{"nominatedNodeName": node}})
	if err != nil {
		return false, err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Pod}}
	err = p.client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone
		return false, nil
	}
	return err == nil && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil, err
}

// evictPod asks the API server to evict a pod.
func (p *Preemptor) evictPod(ctx context.Context, v victim, dryRun ...string) (evict.Outcome, error) {
	outcome, err := evict.Pod(ctx, p.reads.CoreV1(), v.Namespace, v.Name, v.UID, dryRun...)
	if err != nil {
		err = fmt.Errorf("evict pod %s/%s: %w", v.Namespace, v.Name, err)
	}
	return outcome, err
}

// evict evicts the victims that are left. What is refused meanwhile is tried again until the hold ends; if nothing was
// evicted before, everything is given back.
func (p *Preemptor) evict(ctx context.Context, h *hold, now time.Time) error {
	for h.evicted < len(h.Victims) {
		v := h.Victims[h.evicted]
		outcome, err := p.evictPod(ctx, v)
		switch {
		case outcome == evict.Denied && h.evicted == 0: // by what allows dry runs
			return errors.Join(p.refuse(ctx, h, v, err, now), p.abandon(ctx, h))
		case outcome == evict.Denied:
			return errors.Join(err, p.refuse(ctx, h, v, err, now))
		case outcome == evict.Budget && h.evicted == 0:
			return p.abandon(ctx, h)
		case outcome == evict.Budget:
			return nil
		case err != nil:
			return err
		}
		h.evicted++
		if outcome == evict.Ended {
			continue
		}
		p.preempted.Inc()
		if _, err := feature.CreateEvent(ctx, p.client, Events.Preempted, reference(v.Namespace, v.Name, v.UID),
			fmt.Sprintf("preempted-%s", v.UID), fmt.Sprintf("by %s of higher priority, on node %s",
				nameFor(v.Namespace, h.Namespace, h.Pod, ""), h.Node)); err != nil {
			return err
		}
	}
	return nil
}
