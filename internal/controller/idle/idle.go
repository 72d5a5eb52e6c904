// SPDX-License-Identifier: Apache-2.0

// Package idle evicts pods that do not use their GPUs, in namespaces whose label asks for it. The plugins of the nodes
// say which claims are idle.
package idle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/evict"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Label is the label of a namespace whose idle pods are evicted. Its value is how long a pod may be idle: 2h.
const Label = "gpu.nvidia.com/idle-eviction"

// maxPeriod is the longest time between two looks at the idle claims.
const maxPeriod = 30 * time.Second

// measuring is the longest time until a claim says that its device is used: the plugin measures every 30 s, and then
// writes. Evictions come that much later than announced, and after a shorter warning no more than the warning.
const measuring = time.Minute

// maxSpared is the longest time until a pod that is not to be evicted is read again. With a shorter warning it is less.
const maxSpared = 10 * time.Minute

// Add evicts idle pods on the leader, a while after a warning.
func Add(c *feature.Controller, warning time.Duration) error {
	reads, err := c.Reads()
	if err != nil {
		return err
	}
	e := &evictor{view: c.View, direct: c.Direct, pods: reads.CoreV1(), warning: warning,
		evicted: metrics.NewEvictedIdlePods(), warned: map[types.UID]notice{}, spared: map[types.UID]time.Time{}}
	period := min(max(warning/10, time.Second), maxPeriod)
	loop := manager.RunnableFunc(func(ctx context.Context) error {
		c.Rounds(ctx, period, "evict idle pods", "Idle pods are not evicted, will be tried again",
			func(started time.Time) error { return e.look(ctx, started) })
		return nil
	})
	return errors.Join(ctrlmetrics.Registry.Register(e.evicted), c.Manager.Add(loop))
}

// evictor warns of and evicts idle pods.
type evictor struct {
	view    *cluster.View
	direct  client.Client
	pods    corev1client.PodsGetter
	warning time.Duration // between the event and the eviction, at least
	evicted prometheus.Counter
	// warned are the warnings of this leader, by pod. Another one warns again, and waits as long.
	warned map[types.UID]notice
	// spared are pods that are not to be evicted, and when they are read again.
	spared map[types.UID]time.Time
}

// notice is when a pod was warned, and the label that it was warned of: another label is another warning.
type notice struct {
	at    time.Time
	label string
}

// look warns of and evicts all pods for which it is time.
func (e *evictor) look(ctx context.Context, now time.Time) error {
	idle := map[types.NamespacedName]time.Time{} // claims, since when
	pods := map[types.UID]*candidate{}
	for _, i := range e.view.IdleClaims() {
		idle[client.ObjectKeyFromObject(i.Claim)] = i.Since
		for _, r := range i.Claim.Status.ReservedFor {
			if r.Resource != "pods" || r.APIGroup != "" {
				continue
			}
			if pods[r.UID] == nil {
				name := types.NamespacedName{Namespace: i.Claim.Namespace, Name: r.Name}
				pods[r.UID] = &candidate{NamespacedName: name, uid: r.UID}
			}
			if c := pods[r.UID]; i.Since.After(c.since) {
				c.since = i.Since
			}
		}
	}
	maps.DeleteFunc(e.warned, func(uid types.UID, _ notice) bool { return pods[uid] == nil })
	maps.DeleteFunc(e.spared, func(uid types.UID, until time.Time) bool {
		return pods[uid] == nil || !now.Before(until)
	})
	if len(pods) == 0 {
		return nil
	}
	namespaces, err := e.namespaces(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		c := pods[uid]
		label, ok := namespaces[c.Namespace]
		if !ok {
			delete(e.warned, uid)
			continue
		}
		if err := e.judge(ctx, c, label, idle, now); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", c, err))
		}
	}
	return errors.Join(errs...)
}

// candidate is a pod with an idle claim.
type candidate struct {
	types.NamespacedName
	uid   types.UID
	since time.Time // when the last of its idle claims was used
}

// namespaces returns the labels of the namespaces that have one.
func (e *evictor) namespaces(ctx context.Context) (map[string]string, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := e.direct.List(ctx, &list, client.HasLabels{Label}); err != nil {
		return nil, fmt.Errorf("list namespaces with the label %s: %w", Label, err)
	}
	all := map[string]string{}
	for _, n := range list.Items {
		all[n.Name] = n.Labels[Label]
	}
	return all, nil
}

// judge warns of the eviction of a pod, or evicts it, if it is time.
func (e *evictor) judge(ctx context.Context, c *candidate, label string,
	idle map[types.NamespacedName]time.Time, now time.Time) error {
	after, err := time.ParseDuration(label)
	wrong := err != nil || after <= 0
	if _, spared := e.spared[c.uid]; spared {
		return nil
	}
	warned, known := e.warned[c.uid]
	known = known && warned.label == label
	at := c.since.Add(after)
	if known && at.Before(warned.at.Add(e.warning)) {
		at = warned.at.Add(e.warning)
	}
	switch {
	case known && (wrong || now.Before(at.Add(min(measuring, e.warning)))), !wrong && now.Before(at.Add(-e.warning)):
		return nil
	}
	var pod corev1.Pod
	if err := e.direct.Get(ctx, c.NamespacedName, &pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if pod.UID != c.uid || !e.mayEvict(&pod, idle) {
		e.spare(c, now.Add(maxSpared), now)
		return nil
	}
	if started := pod.Status.StartTime; started != nil && started.After(c.since) { // another pod left the claim idle
		c.since = started.Time
		if begins := c.since.Add(after - e.warning); !wrong && now.Before(begins) {
			e.spare(c, begins, now)
			return nil
		}
	}
	unused := "has not used its GPUs since " + c.since.UTC().Format(time.RFC3339)
	switch {
	case wrong:
		return e.warn(ctx, &pod, fmt.Sprintf("%s, and is not evicted: the label %s=%s of its namespace must be a "+
			"time such as 30m or 2h", unused, Label, label), label, now)
	case !known:
		at = now.Add(e.warning)
		if end := c.since.Add(after); end.After(at) {
			at = end
		}
		return e.warn(ctx, &pod, fmt.Sprintf("%s, and will be evicted at %s unless it does, because its namespace "+
			"has the label %s=%s", unused, at.UTC().Format(time.RFC3339), Label, label), label, now)
	}
	if still, err := e.stillIdle(ctx, &pod, idle); !still || err != nil {
		if err == nil {
			e.spare(c, now.Add(maxSpared), now)
		}
		return err
	}
	return e.evict(ctx, &pod, unused)
}

// spare leaves the pod until then, and not for long: its label may change. Later it is warned again.
func (e *evictor) spare(c *candidate, until, now time.Time) {
	if latest := now.Add(min(maxSpared, e.warning)); until.After(latest) {
		until = latest
	}
	delete(e.warned, c.uid)
	e.spared[c.uid] = until
}

// stillIdle asks the API server whether the idle claims of the pod have been so ever since.
func (e *evictor) stillIdle(ctx context.Context, pod *corev1.Pod, idle map[types.NamespacedName]time.Time) (bool,
	error) {
	for _, name := range claimsOf(pod) {
		since, ok := idle[name]
		if !ok {
			continue
		}
		var claim resourceapi.ResourceClaim
		if err := e.direct.Get(ctx, name, &claim); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		if now, ok := e.view.IdleSince(&claim); !ok || !now.Equal(since) {
			return false, nil
		}
	}
	return true, nil
}

// mayEvict reports whether the pod is to be evicted once it is idle. A pod of a DaemonSet would come back on its node.
// Once the node of a pod has lost contact, the pod is not ready, and its condition Idle is old.
func (e *evictor) mayEvict(pod *corev1.Pod, idle map[types.NamespacedName]time.Time) bool {
	owner := metav1.GetControllerOf(pod)
	if pod.DeletionTimestamp != nil || cluster.Finished(pod) || cluster.IsStatic(pod) ||
		owner != nil && owner.Kind == "DaemonSet" || !cluster.Ready(pod) {
		return false
	}
	return !slices.ContainsFunc(claimsOf(pod), func(claim types.NamespacedName) bool {
		_, held, _ := e.view.Pending(claim)
		_, unused := idle[claim]
		return held && !unused
	})
}

func claimsOf(pod *corev1.Pod) (all []types.NamespacedName) {
	for name := range resourceclaim.PodClaims(pod) {
		all = append(all, types.NamespacedName{Namespace: pod.Namespace, Name: name})
	}
	return all
}

// warn writes an event about the pod.
func (e *evictor) warn(ctx context.Context, pod *corev1.Pod, text, label string, now time.Time) error {
	name := fmt.Sprintf("idle-%s-%d", pod.UID, now.Unix())
	if _, err := feature.CreateEvent(ctx, e.direct, Events.IdleGPU, event.PodReference(pod), name, text); err != nil {
		return err
	}
	e.warned[pod.UID] = notice{now, label}
	return nil
}

// evict evicts the pod, unless a PodDisruptionBudget forbids it.
func (e *evictor) evict(ctx context.Context, pod *corev1.Pod, unused string) error {
	outcome, err := evict.Pod(ctx, e.pods, pod.Namespace, pod.Name, pod.UID)
	switch {
	case err != nil:
		return fmt.Errorf("evict: %w", err)
	case outcome == evict.Ended:
		return nil
	}
	log.FromContext(ctx).Info("Pod evicted", "pod", client.ObjectKeyFromObject(pod), "why", unused)
	e.evicted.Inc()
	_, err = feature.CreateEvent(ctx, e.direct, Events.IdleGPUEviction, event.PodReference(pod),
		"idle-evicted-"+string(pod.UID), "evicted: "+unused)
	return err
}
