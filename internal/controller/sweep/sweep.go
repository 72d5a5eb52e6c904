// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Recorder writes events.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any)
}

// Sweeper finds and removes orphaned objects. Every grace period starts again with a new Sweeper.
type Sweeper struct {
	Driver    string
	Namespace string          // of the plugin's pods
	Plugins   labels.Selector // of the plugin's pods
	Period    time.Duration   // between two sweeps
	Grace     time.Duration   // how long an object is orphaned before it is reported or removed

	// Objects reads the driver's slices and all claims from a cache, and deletes objects that have not changed since.
	Objects client.Client
	// API reads without a cache: objects that are seldom needed, or must be current.
	API      client.Reader
	Recorder Recorder
	Metrics  *Metrics

	since           Since
	reported        map[reportKey]bool
	alive           map[types.UID]time.Time // pods, and until when they count as alive
	removed         map[types.UID]bool      // nodes whose slices were removed because they had no plugin
	loggedNoPlugins bool                    // that there is no pod of the plugin
}

// reportKey identifies an event that is written once: one for all slices of a node, and another one for another reason.
type reportKey struct {
	about       types.UID
	reason, why string
}

// sweepTimeout is the timeout of one sweep, so that a server that hangs does not block later sweeps.
const sweepTimeout = 5 * time.Minute

// pageSize is the limit of one list request.
const pageSize = 500

// NeedLeaderElection is true: two replicas would write every event twice.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until ctx ends.
func (s *Sweeper) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("sweep"))
	for {
		if err := s.sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.Metrics.failures.Inc()
			log.FromContext(ctx).Error(err, "Sweep incomplete")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.Period):
		}
	}
}

func (s *Sweeper) sweep(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		s.since = nil // nothing is known of the time between
		return err
	}
	var podsErr error
	snapshot.Gone, podsErr = s.findGonePods(ctx, snapshot.Claims, now)
	due, since := Decide(snapshot, s.since, now, s.Grace)
	if slices.ContainsFunc(due, Finding.removesDevices) {
		// The cache may be stale, and an allocated device must stay published.
		if snapshot.Holders, err = s.holders(ctx); err != nil {
			return errors.Join(podsErr, err)
		}
		due, since = Decide(snapshot, s.since, now, s.Grace)
	}
	s.since = since
	return errors.Join(podsErr, s.act(ctx, due))
}

// removesDevices reports whether devices of an existing node would be removed.
func (f Finding) removesDevices() bool { return f.Remove && f.Event == Events.PluginGone }

// act removes what may be removed, and reports the rest.
func (s *Sweeper) act(ctx context.Context, due []Finding) error {
	var errs []error
	var stays []Finding
	reported, removedAll := map[reportKey]bool{}, map[types.UID]bool{}
	for _, f := range due {
		if !f.Remove {
			key := reportKey{f.About.UID, f.Event.Reason, f.Why}
			if !reported[key] && !s.reported[key] {
				s.recordEvent(f.Event, f.About, "Look", f)
			}
			reported[key] = true
			stays = append(stays, f)
			continue
		}
		gone, err := s.remove(ctx, f)
		if err != nil {
			stays = append(stays, f)
			errs = append(errs, err)
		}
		if f.removesDevices() {
			before, seen := removedAll[f.node]
			removedAll[f.node] = gone && (before || !seen)
		}
	}
	for node, all := range removedAll {
		if s.removed == nil {
			s.removed = map[types.UID]bool{}
		}
		s.removed[node] = all
	}
	s.reported = reported
	s.Metrics.setRemaining(stays)
	return errors.Join(errs...)
}

// remove deletes the object unless it has changed since it was read. The next sweep handles a changed object.
func (s *Sweeper) remove(ctx context.Context, f Finding) (gone bool, _ error) {
	var object client.Object = &resourceapi.ResourceSlice{}
	removed := Events.SliceRemoved
	if f.Object.Kind == "ResourceClaim" {
		object, removed = &resourceapi.ResourceClaim{}, Events.ClaimRemoved
	}
	object.SetNamespace(f.Object.Namespace)
	object.SetName(f.Object.Name)
	err := s.Objects.Delete(ctx, object, client.Preconditions{UID: &f.Object.UID,
		ResourceVersion: &f.Object.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("remove %s %s: %w", f.Object.Kind, strings.TrimPrefix(f.Object.Namespace+"/"+
			f.Object.Name, "/"), err)
	}
	s.Metrics.removed.WithLabelValues(f.Object.Kind, f.Event.Reason).Inc()
	s.recordEvent(removed, f.Object, "Remove", f)
	log.FromContext(ctx).Info("Removed what was left behind", "kind", f.Object.Kind, "namespace", f.Object.Namespace,
		"name", f.Object.Name, "why", f.Why)
	return true, nil
}

// recordEvent writes an event. The reference has no resource version, so that repeated events are counted in one.
func (s *Sweeper) recordEvent(e event.Kind, about corev1.ObjectReference, action string, f Finding) {
	about.ResourceVersion = ""
	text := fmt.Sprintf("%s %s: %s", f.Object.Kind, f.Object.Name, f.Why)
	if about.UID != f.Object.UID {
		text = f.Object.Kind + "s are left behind: " + f.Why // there may be several
	}
	s.Recorder.Eventf(&about, nil, e.Type, e.Reason, action, "%s", event.Text(text))
}

// snapshot reads everything but the pods of claims. It reads slices first: node and plugin exist before their slices.
func (s *Sweeper) snapshot(ctx context.Context) (Snapshot, error) {
	w := Snapshot{Driver: s.Driver, Nodes: map[string]Node{}, Plugins: map[string]bool{}, Holders: map[string]string{},
		Returned: s.removed}
	var found resourceapi.ResourceSliceList
	if err := s.Objects.List(ctx, &found, client.UnsafeDisableDeepCopy); err != nil {
		return Snapshot{}, fmt.Errorf("list slices: %w", err)
	}
	var claims resourceapi.ResourceClaimList
	if err := s.Objects.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return Snapshot{}, fmt.Errorf("list claims: %w", err)
	}
	w.Slices, w.Claims = found.Items, claims.Items
	holders(s.Driver, w.Claims, w.Holders)
	if len(w.Slices) == 0 {
		return w, nil // nodes matter only for slices
	}
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := listPages(ctx, s.API, nodes, func(list *metav1.PartialObjectMetadataList) {
		for _, n := range list.Items {
			w.Nodes[n.Name] = Node{UID: n.UID, Exempt: n.Labels[exemptLabel] == "off"}
		}
	}); err != nil {
		return Snapshot{}, fmt.Errorf("list nodes: %w", err)
	}
	if err := listPages(ctx, s.API, &corev1.PodList{}, func(list *corev1.PodList) {
		for _, p := range list.Items {
			w.Plugins[p.Spec.NodeName] = true
		}
	}, client.InNamespace(s.Namespace), client.MatchingLabelsSelector{Selector: s.Plugins}); err != nil {
		return Snapshot{}, fmt.Errorf("list the plugin's pods: %w", err)
	}
	if len(w.Plugins) == 0 && !s.loggedNoPlugins {
		log.FromContext(ctx).Info("No pod of the plugin is there: which nodes have lost theirs is not known",
			"namespace", s.Namespace, "selector", s.Plugins)
	}
	s.loggedNoPlugins = len(w.Plugins) == 0
	return w, s.readNodesWithoutPlugin(ctx, w)
}

// readNodesWithoutPlugin reads the nodes whose readiness matters, which are few.
func (s *Sweeper) readNodesWithoutPlugin(ctx context.Context, w Snapshot) error {
	for name := range w.Plugins {
		delete(s.removed, w.Nodes[name].UID) // the plugin is back
	}
	for _, name := range w.NodesWithoutPlugin() {
		var node corev1.Node
		err := s.API.Get(ctx, client.ObjectKey{Name: name}, &node)
		if apierrors.IsNotFound(err) {
			delete(w.Nodes, name)
			continue
		}
		if err != nil {
			return fmt.Errorf("read node %s: %w", name, err)
		}
		w.Nodes[name] = Node{UID: node.UID, Ready: slices.ContainsFunc(node.Status.Conditions,
			func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})}
	}
	return nil
}

// holders returns the pools that claims hold, from the API server.
func (s *Sweeper) holders(ctx context.Context) (map[string]string, error) {
	pools := map[string]string{}
	if err := listPages(ctx, s.API, &resourceapi.ResourceClaimList{}, func(list *resourceapi.ResourceClaimList) {
		holders(s.Driver, list.Items, pools)
	}); err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	return pools, nil
}

// findGonePods returns the pods of claims with devices of the driver that are gone. A pod that exists is not read again
// within grace. Neither are the other pods of its claim: a claim is orphaned only when all are gone.
func (s *Sweeper) findGonePods(ctx context.Context, claims []resourceapi.ResourceClaim, now time.Time) (
	map[types.UID]bool, error) {
	var errs []error
	gone, alive := map[types.UID]bool{}, map[types.UID]time.Time{}
	for i := range claims {
		if !slices.Contains(driversOf(&claims[i]), s.Driver) {
			continue
		}
		for _, p := range podsOf(&claims[i]) {
			if gone[p.UID] {
				continue
			}
			if until, known := s.alive[p.UID]; known && now.Before(until) {
				alive[p.UID] = until
			}
			if _, known := alive[p.UID]; known {
				break
			}
			there, err := s.podExists(ctx, p)
			if err != nil {
				errs = append(errs, err)
				break
			}
			if there {
				alive[p.UID] = now.Add(s.Grace)
				break
			}
			gone[p.UID] = true
		}
	}
	s.alive = alive
	return gone, errors.Join(errs...)
}

// podExists reports whether the pod exists with this UID.
func (s *Sweeper) podExists(ctx context.Context, p pod) (bool, error) {
	found := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	err := s.API.Get(ctx, p.NamespacedName, &found)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for pod %s: %w", p.NamespacedName, err)
	}
	return found.UID == p.UID, nil
}

// listPages calls each with every page of a list.
func listPages[L client.ObjectList](ctx context.Context, from client.Reader, like L, each func(L),
	options ...client.ListOption) error {
	for next := ""; ; {
		list := like.DeepCopyObject().(L)
		if err := from.List(ctx, list, append(slices.Clone(options), client.Limit(pageSize),
			client.Continue(next))...); err != nil {
			return err
		}
		each(list)
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}
