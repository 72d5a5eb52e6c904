// SPDX-License-Identifier: Apache-2.0

// Package explain writes events that tell users what became of their claims and pods: why they wait, and what a claim
// has instead of what it asks for.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
	"github.com/gpudra/gpu-dra-driver/internal/why"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Claims writes events about claims that ask for, or have, something else than their user wrote: claims for a
// share that have a whole GPU, claims for the strongest GPU that were not ranked although there is something to rank,
// such as those that were created while the controller did not answer, and claims with fields that the API server has
// dropped.
//
// It writes no annotations: a later write to an object of users would need a right to change every claim.
type Claims struct {
	expander strongest.Expander
	guard    feature.Guard
	unranked prometheus.Counter

	controller *feature.Controller

	mu    sync.Mutex
	seen  map[types.UID]seenClaim // since the last report
	bytes int                     // of their specs
}

// NewClaims returns a Claims that has seen no claim.
func NewClaims(expander strongest.Expander, guard feature.Guard) *Claims {
	return &Claims{expander: expander, guard: guard, unranked: metrics.NewUnrankedClaims(),
		seen: map[types.UID]seenClaim{}}
}

// Add reports about claims on the leader, and about those that wait for longer than after; 0: not about those.
func Add(c *feature.Controller, claims *Claims, after time.Duration) error {
	claims.controller = c
	err := errors.Join(ctrlmetrics.Registry.Register(claims.unranked), c.Manager.Add(claims))
	if err != nil || after == 0 {
		return err
	}
	reads, err := c.Reads()
	if err != nil {
		return err
	}
	return c.Manager.Add(NewWaiting(c, reads, after))
}

type seenClaim struct {
	types.NamespacedName
	created time.Time
	asked   *resourceapi.ResourceClaimSpec // if it asks for the strongest GPU
	dropped []string                       // fields, as text
	whole   []string                       // GPUs that it has instead of a share, as text
	users   []resourceapi.ResourceClaimConsumerReference
}

const (
	// claimsPeriod is the time between two reports.
	claimsPeriod = 10 * time.Second
	// maxRanking is how long ranking a claim may take. Users choose how long their selectors take.
	maxRanking = 5 * time.Second
	// maxSeen is the number of claims that a replica remembers until it leads, and maxSeenBytes the sum of their specs:
	// a claim may have 1.5 MB.
	maxSeen      = 10000
	maxSeenBytes = 16 << 20
)

// See remembers the claim if there may be something to tell. It does not change the claim. Informers call it for each
// claim that they read. Only young claims are remembered: the name of an event is that of its claim, so each claim has
// one event, whichever replica leads.
func (u *Claims) See(c *resourceapi.ResourceClaim) {
	_ = u.guard.Do("see claim", func() error { u.see(c); return nil }) // it is logged
}

func (u *Claims) see(c *resourceapi.ResourceClaim) {
	if _, implicit := c.Annotations[resourceapi.ExtendedResourceClaimAnnotation]; implicit ||
		time.Since(c.CreationTimestamp.Time) > feature.EventLifetime {
		return
	}
	seen := seenClaim{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
		created: c.CreationTimestamp.Time, dropped: admission.DroppedFields(&c.Spec, c.Annotations),
		whole: u.wholeGPUs(c), users: c.Status.ReservedFor}
	size := 0
	if u.expander.Asked(&c.Spec) {
		seen.asked, size = c.Spec.DeepCopy(), c.Spec.Size()
	}
	if seen.asked == nil && seen.dropped == nil && seen.whole == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.seen) < maxSeen && u.bytes+size <= maxSeenBytes {
		u.seen[c.UID] = seen
		u.bytes += size
	}
}

// wholeGPUs says which GPUs the claim has as a whole though it asks for some of them.
func (u *Claims) wholeGPUs(c *resourceapi.ResourceClaim) []string {
	if c.Status.Allocation == nil {
		return nil
	}
	var texts []string
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != u.expander.View.Driver() || r.ShareID != nil || gpu.IsPart(r.Device) {
			continue
		}
		d := u.expander.View.Device(r.Pool, r.Device)
		if asked := why.Share(&c.Spec, r.Request, d); asked != "" && d.Capacity != nil {
			texts = append(texts, fmt.Sprintf("request %s asks for %s and has all of GPU %s of %s, which has no "+
				"shares: "+cluster.Shares, r.Request, asked, r.Device, r.Pool, r.Driver))
		}
	}
	return texts
}

// Start reports until ctx ends.
func (u *Claims) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("claims"))
	u.controller.Rounds(ctx, claimsPeriod, "report claims", "Claims have no event that says what they ask for",
		func(time.Time) error { return u.report(ctx) })
	return nil
}

// report reports what has been seen since the last call. What fails is not tried again.
func (u *Claims) report(ctx context.Context) (last error) {
	u.mu.Lock()
	seen := u.seen
	u.seen, u.bytes = map[types.UID]seenClaim{}, 0
	u.mu.Unlock()
	for uid, c := range seen {
		if time.Since(c.created) > feature.EventLifetime {
			continue
		}
		err := guard.Do("report claims", func() error { return u.reportOne(ctx, uid, c) }) // Rounds counts panics
		last = cmp.Or(err, last)
	}
	return last
}

// reportOne reports about one claim.
func (u *Claims) reportOne(ctx context.Context, uid types.UID, c seenClaim) (last error) {
	if c.asked != nil && u.ranks(ctx, c.asked) {
		told, err := u.tell(ctx, uid, c, "not-ranked-", Events.NotRanked, "it gets any whole GPU: when it was "+
			"created, the controller did not answer in time, validation was off in the namespace, or there was "+
			"nothing to rank. To have it ranked, delete it and create it again")
		if told {
			u.unranked.Inc()
		}
		last = err
	}
	if c.whole != nil {
		_, err := u.tell(ctx, uid, c, "whole-gpu-", Events.WholeGPU, strings.Join(c.whole, "; "))
		last = cmp.Or(err, last)
		for _, user := range c.users {
			if user.Resource != "pods" {
				continue
			}
			about := event.PodReference(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace,
				Name: user.Name, UID: user.UID}})
			_, err := feature.CreateEvent(ctx, u.controller.Direct, Events.WholeGPU, about,
				"whole-gpu-"+string(user.UID), strings.Join(c.whole, "; "))
			last = cmp.Or(err, last)
		}
	}
	if c.dropped != nil {
		_, err := u.tell(ctx, uid, c, "fields-dropped-", Events.FieldsDropped, strings.Join(c.dropped, "; "))
		last = cmp.Or(err, last)
	}
	return last
}

// ranks reports whether there is something to rank for the claim, which it changes.
func (u *Claims) ranks(ctx context.Context, asked *resourceapi.ResourceClaimSpec) bool {
	ctx, cancel := context.WithTimeout(ctx, maxRanking)
	defer cancel()
	return u.expander.Expand(ctx, asked)
}

// tell writes an event about a claim, whose name begins with prefix. It returns false if that event exists, or the
// namespace does not.
func (u *Claims) tell(ctx context.Context, uid types.UID, c seenClaim, prefix string, kind event.Kind,
	text string) (bool, error) {
	return feature.CreateEvent(ctx, u.controller.Direct, kind, event.ClaimReference(c.Namespace, c.Name, uid),
		prefix+string(uid), text)
}
