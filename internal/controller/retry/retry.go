// SPDX-License-Identifier: Apache-2.0

// Package retry makes the scheduler try pods again that wait although a GPU has room for their shares.
//
// While the scheduler binds a pod, it counts the pod's share twice: as allocated in the claim, and as an allocation in
// flight. Meanwhile it refuses other pods for which there is room. Nothing tells it to try these again until a claim
// ends, or for five minutes.
//
// An update of a DeviceClass makes it try all pods that lack devices, as the end of a claim does. It is one request.
// There is no cheaper event: a pod wakes alone only if the status of its own claim or its list of claims changes, and
// neither can change while it waits. The class is one that nobody uses, so the controller has no rights on others.
package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
)

const (
	// period is the time between two rounds. A round makes no request unless a pod has been refused.
	period = 500 * time.Millisecond
	// settle is how long a refused pod must fit: until then the scheduler may still write what it has allocated.
	settle = time.Second
	// firstPause is the pause after the first retry, of a pod and of all. It doubles after each one in vain.
	firstPause = time.Second
	// maxPause bounds the pause between retries in vain.
	maxPause = time.Minute
	// maxRetries is how often a pod is retried that fits all the time: that takes three minutes.
	maxRetries = 9
	// newRetries is how often a pod is retried as a new one.
	newRetries = 2
	// attempt is the pause per refused pod: several times as long as the scheduler needs to try one.
	attempt = 40 * time.Millisecond
	// maxPods is how many refused pods are remembered, and maxBytes the size of what they ask for.
	maxPods, maxBytes = 20000, 16 << 20
	// annotation of the class has the time of the last retry.
	annotation = "gpu.nvidia.com/retried"
)

// Retrier makes the scheduler try pods again. It is not safe for concurrent use.
type Retrier struct {
	*feature.Controller
	view    *cluster.View
	client  client.Client // without a cache
	class   string
	retries prometheus.Counter

	waiting map[types.UID]*candidate
	shapes  map[string]*feature.Shape // by their text
	node    fit.Node                  // scratch

	retried   []types.UID // pods of the last retry, none of which has left since
	fruitless int         // retries in a row after which no pod has left
	last      time.Time
}

// candidate is a pod that the scheduler has refused.
type candidate struct {
	claims  []*resourceapi.ResourceClaim // that it lacks devices of
	shape   *feature.Shape               // of these; nil: it lacks nothing, or that is not known
	since   time.Time                    // it has fitted all the time since then; zero: it does not fit
	retries int
	next    time.Time // no retry earlier
}

// Add makes the leader retry pods by updates of the class, which nobody else uses.
func Add(c *feature.Controller, class string) error {
	r := newRetrier(c, class)
	return errors.Join(ctrlmetrics.Registry.Register(r.retries), c.Manager.Add(r))
}

func newRetrier(c *feature.Controller, class string) *Retrier {
	return &Retrier{Controller: c, view: c.View, client: c.Direct, class: class, retries: metrics.NewRetries(),
		waiting: map[types.UID]*candidate{}, shapes: map[string]*feature.Shape{}}
}

// Start retries pods until ctx ends.
func (r *Retrier) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("retry"))
	list := r.Waiting.Follow(ctx)
	r.Rounds(ctx, period, "retry pods", "Pods that wait although they fit are not retried",
		func(started time.Time) error { return r.round(ctx, list(), started) })
	return nil
}

// round looks at the pods without a node, and retries once if one of them waits although it fits.
func (r *Retrier) round(ctx context.Context, pods []*corev1.Pod, now time.Time) (last error) {
	r.forget(pods)
	fits := map[*feature.Shape]bool{nil: false}
	var due []*corev1.Pod
	for _, pod := range pods {
		w := r.waiting[pod.UID]
		if w == nil {
			continue
		}
		claims, ok := r.Lacks(pod)
		switch {
		case !ok:
			w.shape = nil
		case w.shape == nil || !slices.Equal(claims, w.claims):
			var err error
			if w.shape, err = r.shapeOf(pod, claims); err != nil {
				last = err
			}
		}
		w.claims = claims
		if _, judged := fits[w.shape]; !judged {
			fits[w.shape] = r.fits(ctx, w.shape)
		}
		switch {
		case !fits[w.shape]:
			w.since, w.retries = time.Time{}, 0
		case w.since.IsZero():
			w.since = now
		}
		if !w.since.IsZero() && now.Sub(w.since) >= settle && !now.Before(w.next) && w.retries < maxRetries {
			due = append(due, pod)
		}
	}
	if len(due) == 0 || now.Sub(r.last) < r.pause(due) {
		return last
	}
	return errors.Join(last, r.retry(ctx, due, now))
}

// forget forgets pods that are not refused any more, and remembers those that are. It notes whether the last retry has
// helped one.
func (r *Retrier) forget(pods []*corev1.Pod) {
	known := map[types.UID]*candidate{}
	shapes, bytes := map[string]*feature.Shape{}, 0
	for _, pod := range pods {
		if !waiting.IsRefused(pod) || len(known) == maxPods || bytes > maxBytes {
			continue
		}
		w := r.waiting[pod.UID]
		if w == nil {
			w = &candidate{}
		}
		known[pod.UID] = w
		if s := w.shape; s != nil && shapes[s.Text] == nil {
			shapes[s.Text] = s
			bytes += len(s.Text)
		}
	}
	r.waiting, r.shapes = known, shapes
	if slices.ContainsFunc(r.retried, func(uid types.UID) bool { return known[uid] == nil }) {
		r.retried, r.fruitless = nil, 0
	}
}

// retry makes the scheduler try the pods again, with all others that lack devices.
func (r *Retrier) retry(ctx context.Context, due []*corev1.Pod, now time.Time) error {
	if len(r.retried) > 0 {
		r.fruitless++
	}
	r.last, r.retried = now, nil
	var names []string
	for _, pod := range due {
		w := r.waiting[pod.UID]
		w.next = now.Add(pauseAfter(w.retries))
		w.retries++
		r.retried = append(r.retried, pod.UID)
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotation, now.UTC().Format(time.RFC3339Nano))
	err := r.client.Patch(ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: r.class}},
		client.RawPatch(types.MergePatchType, patch))
	if err != nil {
		return fmt.Errorf("update device class %s: %w", r.class, err)
	}
	r.retries.Inc()
	slices.Sort(names)
	log.FromContext(ctx).Info("The scheduler tries pods again that wait although they fit", "pods", len(names),
		"first", names[0])
	return nil
}

// pause returns the pause between the last retry and that of these pods. Retries in vain make it longer, but not for
// pods that are new: then it only leaves the scheduler the time to try all that it has refused.
func (r *Retrier) pause(due []*corev1.Pod) time.Duration {
	pause := pauseAfter(r.fruitless)
	if slices.ContainsFunc(due, func(pod *corev1.Pod) bool { return r.waiting[pod.UID].retries < newRetries }) {
		return min(pause, max(2*firstPause, time.Duration(len(r.waiting))*attempt))
	}
	return pause
}

// pauseAfter returns the pause after that many retries in vain.
func pauseAfter(n int) time.Duration { return min(maxPause, firstPause<<min(n, 10)) }
