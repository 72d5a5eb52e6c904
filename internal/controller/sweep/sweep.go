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
)

// Recorder writes events.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any)
}

// Sweeper looks for what is left behind. A new one has seen nothing yet: every grace begins when it starts.
type Sweeper struct {
	Driver    string
	Namespace string          // of the plugin's pods
	Plugins   labels.Selector // of the plugin's pods
	Period    time.Duration   // between two looks
	Grace     time.Duration   // for which something is left behind before it is told of or removed

	// Objects reads the driver's slices, and claims, from a cache, and deletes: only what still is as it was read.
	Objects client.Client
	// API reads from the API server itself: what is asked for seldom, or must be as it is now.
	API      client.Reader
	Recorder Recorder
	Figures  *Figures

	since    Since
	told     map[telling]bool
	alive    map[types.UID]time.Time // pods, until when they need not be asked for again
	removed  map[types.UID]bool      // nodes whose slices were removed for want of a plugin
	saidNone bool                    // that there is no plugin
}

// telling is an event that is written once: for all slices of a node, and again when the reason is another one.
type telling struct {
	about       types.UID
	reason, why string
}

// sweepTimeout is for one sweep, so that a server that never answers does not end them all.
const sweepTimeout = 5 * time.Minute

// page is how many objects are read at once.
const page = 500

// NeedLeaderElection is for the manager: one is enough, and two would tell everything twice.
func (s *Sweeper) NeedLeaderElection() bool { return true }

// Start sweeps until ctx ends.
func (s *Sweeper) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("sweep"))
	for {
		if err := s.sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.Figures.failures.Inc()
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
	world, err := s.look(ctx)
	if err != nil {
		s.since = nil // nobody has seen that it was so all the time
		return err
	}
	var unasked error
	world.Gone, unasked = s.gone(ctx, world.Claims, now)
	due, since := Decide(world, s.since, now, s.Grace)
	if slices.ContainsFunc(due, Finding.takesDevices) {
		// A cache may be behind, and a device that is allocated must not disappear.
		if world.Holders, err = s.holders(ctx); err != nil {
			return errors.Join(unasked, err)
		}
		due, since = Decide(world, s.since, now, s.Grace)
	}
	s.since = since
	return errors.Join(unasked, s.act(ctx, due))
}

// takesDevices says whether devices would disappear of a node that is there.
func (f Finding) takesDevices() bool { return f.Remove && f.Event == Events.PluginGone }

// act removes what may be removed, and tells of the rest.
func (s *Sweeper) act(ctx context.Context, due []Finding) error {
	var errs []error
	var stays []Finding
	told, cleared := map[telling]bool{}, map[types.UID]bool{}
	for _, f := range due {
		if !f.Remove {
			key := telling{f.About.UID, f.Event.Reason, f.Why}
			if !told[key] && !s.told[key] {
				s.tell(f.Event, f.About, "Look", f)
			}
			told[key] = true
			stays = append(stays, f)
			continue
		}
		gone, err := s.remove(ctx, f)
		if err != nil {
			stays = append(stays, f)
			errs = append(errs, err)
		}
		if f.takesDevices() {
			before, seen := cleared[f.node]
			cleared[f.node] = gone && (before || !seen)
		}
	}
	for node, all := range cleared {
		if s.removed == nil {
			s.removed = map[types.UID]bool{}
		}
		s.removed[node] = all
	}
	s.told = told
	s.Figures.left(stays)
	return errors.Join(errs...)
}

// remove deletes the object if it still is as it was read. If it is not, whoever has changed it looks after it; the next sweep sees.
func (s *Sweeper) remove(ctx context.Context, f Finding) (gone bool, _ error) {
	var object client.Object = &resourceapi.ResourceSlice{}
	event := Events.SliceRemoved
	if f.Object.Kind == "ResourceClaim" {
		object, event = &resourceapi.ResourceClaim{}, Events.ClaimRemoved
	}
	object.SetNamespace(f.Object.Namespace)
	object.SetName(f.Object.Name)
	err := s.Objects.Delete(ctx, object, client.Preconditions{UID: &f.Object.UID, ResourceVersion: &f.Object.ResourceVersion})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("remove %s %s: %w", f.Object.Kind, strings.TrimPrefix(f.Object.Namespace+"/"+f.Object.Name, "/"), err)
	}
	s.Figures.removed.WithLabelValues(f.Object.Kind, f.Event.Reason).Inc()
	s.tell(event, f.Object, "Remove", f)
	log.FromContext(ctx).Info("Removed what was left behind", "kind", f.Object.Kind, "namespace", f.Object.Namespace, "name", f.Object.Name, "why", f.Why)
	return true, nil
}

// maxNote is the longest text of an event that the API server takes, in bytes (events.k8s.io/v1).
const maxNote = 1024

// tell writes an event. The reference has no resource version: what lasts is counted in one event.
func (s *Sweeper) tell(e Event, about corev1.ObjectReference, action string, f Finding) {
	about.ResourceVersion = ""
	text := fmt.Sprintf("%s %s: %s", f.Object.Kind, f.Object.Name, f.Why)
	if about.UID != f.Object.UID {
		text = f.Object.Kind + "s are left behind: " + f.Why // there may be several
	}
	s.Recorder.Eventf(&about, nil, e.Type, e.Reason, action, "%s", strings.ToValidUTF8(text[:min(len(text), maxNote)], ""))
}

// look reads everything but pods of claims. Slices come first: whoever publishes one is there before it.
func (s *Sweeper) look(ctx context.Context) (World, error) {
	w := World{Driver: s.Driver, Nodes: map[string]Node{}, Plugins: map[string]bool{}, Holders: map[string]string{}, Returned: s.removed}
	var found resourceapi.ResourceSliceList
	if err := s.Objects.List(ctx, &found, client.UnsafeDisableDeepCopy); err != nil {
		return World{}, fmt.Errorf("list slices: %w", err)
	}
	var claims resourceapi.ResourceClaimList
	if err := s.Objects.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return World{}, fmt.Errorf("list claims: %w", err)
	}
	w.Slices, w.Claims = found.Items, claims.Items
	holders(s.Driver, w.Claims, w.Holders)
	if len(w.Slices) == 0 {
		return w, nil // of nodes, only slices tell
	}
	nodes := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	if err := pages(ctx, s.API, nodes, func(list *metav1.PartialObjectMetadataList) {
		for _, n := range list.Items {
			w.Nodes[n.Name] = Node{UID: n.UID, Exempt: n.Labels[exemptLabel] == "off"}
		}
	}); err != nil {
		return World{}, fmt.Errorf("list nodes: %w", err)
	}
	if err := pages(ctx, s.API, &corev1.PodList{}, func(list *corev1.PodList) {
		for _, p := range list.Items {
			w.Plugins[p.Spec.NodeName] = true
		}
	}, client.InNamespace(s.Namespace), client.MatchingLabelsSelector{Selector: s.Plugins}); err != nil {
		return World{}, fmt.Errorf("list the plugin's pods: %w", err)
	}
	if len(w.Plugins) == 0 && !s.saidNone {
		log.FromContext(ctx).Info("No pod of the plugin is there: which nodes have lost theirs cannot be told", "namespace", s.Namespace, "selector", s.Plugins)
	}
	s.saidNone = len(w.Plugins) == 0
	return w, s.ready(ctx, w)
}

// ready asks for the nodes of which it matters whether they are ready, which are few.
func (s *Sweeper) ready(ctx context.Context, w World) error {
	for name := range w.Plugins {
		delete(s.removed, w.Nodes[name].UID) // the plugin is back, and may be lost again
	}
	for _, name := range w.Bare() {
		var node corev1.Node
		err := s.API.Get(ctx, client.ObjectKey{Name: name}, &node)
		if apierrors.IsNotFound(err) {
			delete(w.Nodes, name)
			continue
		}
		if err != nil {
			return fmt.Errorf("read node %s: %w", name, err)
		}
		w.Nodes[name] = Node{UID: node.UID, Ready: slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})}
	}
	return nil
}

// holders are the pools that claims hold, as the API server has them now.
func (s *Sweeper) holders(ctx context.Context) (map[string]string, error) {
	pools := map[string]string{}
	if err := pages(ctx, s.API, &resourceapi.ResourceClaimList{}, func(list *resourceapi.ResourceClaimList) {
		holders(s.Driver, list.Items, pools)
	}); err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	return pools, nil
}

// gone are the pods of claims with devices of the driver that are not there. One that is there need not be asked for again within
// grace, and neither the others of its claim: a claim is left behind only when all are gone.
func (s *Sweeper) gone(ctx context.Context, claims []resourceapi.ResourceClaim, now time.Time) (map[types.UID]bool, error) {
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
			there, err := s.there(ctx, p)
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

// there says whether that pod is there, and not only another one of its name.
func (s *Sweeper) there(ctx context.Context, p pod) (bool, error) {
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

// pages reads a list piece by piece.
func pages[L client.ObjectList](ctx context.Context, from client.Reader, like L, each func(L), options ...client.ListOption) error {
	for next := ""; ; {
		list := like.DeepCopyObject().(L)
		if err := from.List(ctx, list, append(slices.Clone(options), client.Limit(page), client.Continue(next))...); err != nil {
			return err
		}
		each(list)
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}
