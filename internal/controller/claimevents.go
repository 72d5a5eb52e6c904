// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"strings"
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

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Events are all events of the controller.
var Events = struct{ NotRanked, FieldsDropped, WholeGPU, Converted, NotConverted, NotAllocated, Evicted event.Kind }{
	NotRanked: event.Warning("NotRanked", "ResourceClaim",
		"the claim asks for the strongest GPU and gets any whole GPU, because it was not ranked when it was created"),
	FieldsDropped: event.Warning("FieldsDropped", "ResourceClaim",
		"the API server has dropped fields of the claim; the text names the feature gate that it lacks, and what the "+
			"claim asks for without them"),
	WholeGPU: event.Normal("WholeGPU", "ResourceClaim",
		"the claim asks for a share and has a whole GPU, because that GPU has no shares; the text names both"),
	Converted: event.Normal("Converted", "Pod",
		"the pod asked for GPUs in the way of an older system, and has a claim instead"),
	NotConverted: event.Warning("NotConverted", "Pod",
		"the pod waits for a template of its claim that the controller does not create; the text says why"),
	NotAllocated: event.Warning("NotAllocated", "ResourceClaim, Pod",
		"the claim or the pod has waited for devices for more than a minute; the text says why the scheduler does not "+
			"place the pod, and the smallest change with which it would"),
	Evicted: event.Warning("DeviceTaintEviction", "Pod",
		"the pod was deleted, because a GPU that it has got as an extended resource has a taint with the effect "+
			"NoExecute; the text names both"),
}

// claimReporter writes events about claims that ask for, or have, something else than their user wrote: claims for a
// share that have a whole GPU, claims for the strongest GPU that were not ranked although there is something to rank,
// such as those that were created while the controller did not answer, and claims with fields that the API server has
// dropped.
//
// It writes no annotations: a later write to an object of users would need a right to change every claim.
type claimReporter struct {
	client   client.Client // without a cache
	expander strongest.Expander
	known    func() error // an error until the view is complete
	unranked prometheus.Counter
	period   time.Duration

	safe *guarded

	mu    sync.Mutex
	seen  map[types.UID]seenClaim // since the last look
	bytes int                     // of their specs
}

type seenClaim struct {
	types.NamespacedName
	created time.Time
	asked   *resourceapi.ResourceClaimSpec // if it asks for the strongest GPU
	dropped []string                       // fields, as text
	whole   []string                       // GPUs that it has instead of a share, as text
}

const (
	// reportedAge is the age up to which a claim is reported. Events are kept for an hour, and the name of an event is
	// that of its claim: so each claim has one, whichever replica leads.
	reportedAge = time.Hour
	// maxSeen limits the claims that a replica remembers that does not lead, and maxSeenBytes the sum of their specs: a
	// claim may have 1.5 MB.
	maxSeen      = 10000
	maxSeenBytes = 16 << 20
)

// see remembers the claim if there may be something to tell. Informers call it for each claim they read.
func (u *claimReporter) see(c *resourceapi.ResourceClaim) {
	if _, implicit := c.Annotations[resourceapi.ExtendedResourceClaimAnnotation]; implicit ||
		time.Since(c.CreationTimestamp.Time) > reportedAge {
		return
	}
	seen := seenClaim{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name},
		created: c.CreationTimestamp.Time, dropped: droppedFields(&c.Spec, c.Annotations),
		whole: u.wholeGPUs(c)}
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
func (u *claimReporter) wholeGPUs(c *resourceapi.ResourceClaim) []string {
	if c.Status.Allocation == nil {
		return nil
	}
	var texts []string
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != u.expander.View.Driver() || r.ShareID != nil || gpu.IsPartition(r.Device) {
			continue
		}
		d := u.expander.View.Device(r.Pool, r.Device)
		if asked := cluster.Share(&c.Spec, r.Request, d); asked != "" && d.Capacity != nil {
			texts = append(texts, fmt.Sprintf("request %s asks for %s and has all of GPU %s of %s, which has no shares",
				r.Request, asked, r.Device, r.Pool))
		}
	}
	return texts
}

// NeedLeaderElection is true: one replica reports.
func (u *claimReporter) NeedLeaderElection() bool { return true }

// Start reports until ctx ends.
func (u *claimReporter) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("claims")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(u.period):
		}
		if u.known() == nil {
			if err := u.report(ctx); err != nil && ctx.Err() == nil {
				logger.Error(err, "Claims have no event that says what they ask for")
			}
		}
	}
}

// report reports what has been seen since the last call. What fails is not tried again.
func (u *claimReporter) report(ctx context.Context) (last error) {
	u.mu.Lock()
	seen := u.seen
	u.seen, u.bytes = map[types.UID]seenClaim{}, 0
	u.mu.Unlock()
	for uid, c := range seen {
		if time.Since(c.created) > reportedAge {
			continue
		}
		err := u.safe.do("report claims", func() error { return u.reportOne(ctx, uid, c) })
		last = cmp.Or(err, last)
	}
	return last
}

// reportOne reports about one claim.
func (u *claimReporter) reportOne(ctx context.Context, uid types.UID, c seenClaim) (last error) {
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
	}
	if c.dropped != nil {
		_, err := u.tell(ctx, uid, c, "fields-dropped-", Events.FieldsDropped, strings.Join(c.dropped, "; "))
		last = cmp.Or(err, last)
	}
	return last
}

// ranks reports whether there is something to rank for the claim, which it changes. It takes no longer than the
// webhook.
func (u *claimReporter) ranks(ctx context.Context, asked *resourceapi.ResourceClaimSpec) bool {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	return u.expander.Expand(ctx, asked)
}

// tell writes an event about a claim, whose name begins with prefix. It returns false if that event exists, or the
// namespace does not.
func (u *claimReporter) tell(ctx context.Context, uid types.UID, c seenClaim, prefix string, kind event.Kind,
	text string) (bool, error) {
	return createEvent(ctx, u.client, kind, claimReference(c.NamespacedName, uid), prefix+string(uid), text)
}

func claimReference(claim types.NamespacedName, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: claim.Namespace, Name: claim.Name, UID: uid}
}

func podReference(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// createEvent creates an event of that name. It returns false if the event exists, or the namespace does not.
func createEvent(ctx context.Context, to client.Client, kind event.Kind, about corev1.ObjectReference, name,
	text string) (bool, error) {
	now := metav1.Now()
	err := to.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: name},
		InvolvedObject: about,
		Type:           kind.Type, Reason: kind.Reason, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "dra-controller"}, ReportingController: "dra-controller",
		Message: event.Text(text),
	})
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s %s/%s: %w", about.Kind, about.Namespace, about.Name, err)
	}
	return true, nil
}
