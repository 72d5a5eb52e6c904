// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Events are all events of the controller.
var Events = struct{ NotRanked event.Kind }{
	NotRanked: event.Warning("NotRanked", "ResourceClaim",
		"the claim asks for the strongest GPU and gets any whole GPU, because it was not ranked when it was created"),
}

// unrankedReporter tells of claims for the strongest GPU that were not ranked although there is something to rank, such
// as those that were created while the controller did not answer.
//
// It writes an event, and no annotation. A webhook that was not called can annotate nothing, and a later write to an
// object of users would need a right to change every claim.
type unrankedReporter struct {
	client   client.Client // without a cache
	expander strongest.Expander
	known    func() error // an error until the view is complete
	total    prometheus.Counter
	period   time.Duration

	mu   sync.Mutex
	seen map[types.UID]unrankedClaim // since the last look
}

type unrankedClaim struct {
	types.NamespacedName
	created time.Time
	spec    resourceapi.ResourceClaimSpec
}

const (
	// reportedAge is the age up to which an unranked claim is reported. Events are kept for an hour, and the name of an
	// event is that of its claim: so each claim has one, whichever replica leads.
	reportedAge = time.Hour
	// maxUnranked limits the claims that a replica remembers that does not lead.
	maxUnranked = 10000
)

// see remembers the claim if it is unranked. Informers call it for each claim they read.
func (u *unrankedReporter) see(c *resourceapi.ResourceClaim) {
	if _, implicit := c.Annotations[resourceapi.ExtendedResourceClaimAnnotation]; implicit ||
		!u.expander.Asked(&c.Spec) || time.Since(c.CreationTimestamp.Time) > reportedAge {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.seen) < maxUnranked {
		u.seen[c.UID] = unrankedClaim{types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
			c.CreationTimestamp.Time, *c.Spec.DeepCopy()}
	}
}

// NeedLeaderElection is true: one replica reports.
func (u *unrankedReporter) NeedLeaderElection() bool { return true }

// Start reports until ctx ends.
func (u *unrankedReporter) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("unranked")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(u.period):
		}
		if u.known() == nil {
			if err := u.report(ctx); err != nil && ctx.Err() == nil {
				logger.Error(err, "Claims that were not ranked have no event")
			}
		}
	}
}

// report reports what has been seen since the last call. What fails is not tried again.
func (u *unrankedReporter) report(ctx context.Context) (last error) {
	u.mu.Lock()
	seen := u.seen
	u.seen = map[types.UID]unrankedClaim{}
	u.mu.Unlock()
	for uid, c := range seen {
		if !u.expander.Expand(ctx, &c.spec) || time.Since(c.created) > reportedAge {
			continue
		}
		err := u.client.Create(ctx, u.event(uid, c))
		switch {
		case err == nil:
			u.total.Inc()
		case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err): // reported, or the namespace is gone
		default:
			last = fmt.Errorf("claim %s: %w", c.NamespacedName, err)
		}
	}
	return last
}

func (u *unrankedReporter) event(uid types.UID, c unrankedClaim) *corev1.Event {
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "not-ranked-" + string(uid)},
		InvolvedObject: corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(),
			Kind: "ResourceClaim", Namespace: c.Namespace, Name: c.Name, UID: uid},
		Type: Events.NotRanked.Type, Reason: Events.NotRanked.Reason, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "dra-controller"}, ReportingController: "dra-controller",
		Message: "it gets any whole GPU: when it was created, the controller did not answer in time, validation was " +
			"off in the namespace, or there was nothing to rank. To have it ranked, delete it and create it again",
	}
}
