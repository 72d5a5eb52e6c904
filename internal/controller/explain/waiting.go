// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

const (
	// maxExplained is how many claims, or pods, are explained in a round. Those that are equal to one of them are not
	// counted: they have its answer.
	maxExplained = 10
	// maxTold is how many claims, or pods, a round writes events about. With each claim it writes one about its pod.
	maxTold = 100
	// maxRound is the time after which a round explains no further claim.
	maxRound = 3 * time.Second
	// maxExplanation is how long the explanation of one claim may take.
	maxExplanation = 10 * time.Second
	// explainedAgain is after which time a claim that still waits is explained again.
	explainedAgain = 10 * time.Minute
	// explainedBeside is after which time that is done in a round that reads the cluster anyway. So claims that were
	// explained one round after the other are explained again in few rounds.
	explainedBeside = explainedAgain / 2
	// pageSize is how many objects are read at once: users may store claims and pods of 1.5 MB.
	pageSize = 100
	// pauseFactor bounds the processor time of the rounds to a twentieth of that of one processor.
	pauseFactor = 19
)

// Waiting writes events about a claim for devices of the driver that has waited for longer than after, and
// about its pod: why the pod is not scheduled, and the smallest change with which it would be. It also writes one about
// a pod whose claim never comes into being, or that waits for an extended resource. The answers are those of kubectl
// gpu why.
//
// The informers of the controller have only parts of claims, slices and pods without a node, and no nodes. So a round
// with something to explain reads all objects that an answer needs, page by page, and forgets them afterwards. That is
// one list of each resource per round, however many claims wait. Meanwhile little of each object is kept; of devices
// the attributes that a claim or class reads.
type Waiting struct {
	*feature.Controller
	reads kubernetes.Interface
	after time.Duration
	// explain explains a pod. Tests change it.
	explain func(context.Context, *why.Explainer, *corev1.Pod) (*why.Answer, error)

	claims map[types.NamespacedName]explained // that wait
	pods   map[types.NamespacedName]explained // that wait
	from   string                             // the namespace with which the next round of pods begins
}

// explained is when a claim or a pod was last explained, and its last event.
type explained struct {
	created time.Time // of the object: one of the same name may follow
	at      time.Time // zero: never
	event   string    // the name of the last event; empty: none
	text    string
	told    time.Time
}

// NewWaiting returns a Waiting that has explained nothing. It reads objects with reads.
func NewWaiting(c *feature.Controller, reads kubernetes.Interface, after time.Duration) *Waiting {
	return &Waiting{Controller: c, reads: reads, after: after,
		explain: func(ctx context.Context, e *why.Explainer, pod *corev1.Pod) (*why.Answer, error) {
			return e.Pod(ctx, pod.Namespace, pod.Name)
		},
		claims: map[types.NamespacedName]explained{}, pods: map[types.NamespacedName]explained{}}
}

// processorTime returns the processor time of this process. An error is not possible for the process itself.
func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Start reports until ctx ends.
func (u *Waiting) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("waiting")
	list := u.Waiting.Follow(ctx)
	pause := u.period()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if u.Known() != nil {
			continue
		}
		before := processorTime()
		if err := u.Report(ctx, list(), time.Now()); err != nil && ctx.Err() == nil {
			logger.Error(err, "Waiting claims have no event that says why")
		}
		pause = u.pauseAfter(processorTime() - before)
	}
}

// period is the time between two rounds: a minute, or less where claims are told about earlier.
func (u *Waiting) period() time.Duration { return min(u.after, time.Minute) }

// pauseAfter returns the pause after a round in which the process used that much processor time.
func (u *Waiting) pauseAfter(used time.Duration) time.Duration {
	return max(u.period(), pauseFactor*used)
}

// Report makes one round. pods are those without a node, as of waiting.Pods.
func (u *Waiting) Report(ctx context.Context, pods []*corev1.Pod, now time.Time) (last error) {
	claims := u.waitingClaims(now)
	claimless := u.claimless(pods, now)
	if len(claims.due)+len(claimless.due) == 0 {
		return nil
	}
	s, err := u.read(ctx)
	if err != nil {
		return err
	}
	explainer, objects := why.NewExplainer(s, why.Options{HideOthers: true,
		Timeout: maxExplanation}), index(s)
	refused := unschedulable(s.Pods, now.Add(-u.after))
	last = u.reportClaims(ctx, claims.inTurns(u.claims), objects, refused, explainer, now)
	if ctx.Err() != nil {
		return last
	}
	return cmp.Or(u.reportPods(ctx, claimless.inTurns(u.pods), objects, explainer, now), last)
}

// work is what a round has done about claims, or about pods.
type work struct {
	started   time.Time
	explained int // without those that are equal to one before
	told      int
}

// enough reports whether the round explains nothing further.
func (w *work) enough() bool {
	return w.explained >= maxExplained || w.told >= maxTold || time.Since(w.started) > maxRound
}

// answer explains a pod. A panic concerns this pod only: then the report is empty, and the rest goes on.
func (u *Waiting) answer(ctx context.Context, explainer *why.Explainer, pod *corev1.Pod, w *work) (r *why.Answer,
	panicked, err error) {
	before := explainer.Repeated()
	err = u.Guard.Do("explain claims", func() (err error) {
		r, err = u.explain(ctx, explainer, pod)
		return err
	})
	if explainer.Repeated() == before {
		w.explained++
	}
	if errors.Is(err, guard.ErrPanic) {
		return &why.Answer{}, err, nil
	}
	return r, nil, err
}

// reportClaims explains the pods of claims and writes events about both.
func (u *Waiting) reportClaims(ctx context.Context, due []types.NamespacedName, s *indexed,
	pods map[types.NamespacedName]*corev1.Pod, explainer *why.Explainer, now time.Time) (last error) {
	answers := map[types.UID]*why.Answer{} // of pods: all claims of a pod have the same
	w := &work{started: time.Now()}
	for _, name := range due {
		of := u.claims[name]
		claim, pod := s.claims[name], pods[name]
		if claim == nil || pod == nil || claim.Status.Allocation != nil || claim.DeletionTimestamp != nil {
			of.at = now
			u.claims[name] = of
			continue
		}
		if w.enough() {
			break
		}
		if answers[pod.UID] == nil {
			r, panicked, err := u.answer(ctx, explainer, pod, w)
			if err != nil {
				return err
			}
			last = cmp.Or(panicked, last)
			answers[pod.UID] = r
		}
		if err := ctx.Err(); err != nil {
			return err // the answer may be wrong
		}
		of.at = now
		// Undecided: it asks for too much to explain.
		if r := answers[pod.UID]; r.Outcome == why.Waits || r.Outcome == why.Undecided {
			var err error
			of, err = u.tell(ctx, event.ClaimReference(name.Namespace, name.Name, claim.UID), of, r)
			if err != nil || of.told.Equal(now) {
				w.told++
			}
			last = cmp.Or(err, u.tellPod(ctx, pod, r, now), last)
		}
		u.claims[name] = of
	}
	return last
}

// read returns what answers need of the cluster, with little of each object.
func (u *Waiting) read(ctx context.Context) (*cluster.Snapshot, error) {
	reader := read.Reader{Client: u.reads, PageSize: pageSize,
		Slim: func() func(runtime.Object) runtime.Object { return waiting.SlimObject }}
	s := schedule.Read(ctx, reader, metav1.NamespaceAll, nil, nil)
	return s, s.Err()
}

// tell writes an event with the answer, unless the last event about the object says the same and still exists.
func (u *Waiting) tell(ctx context.Context, about *corev1.ObjectReference, of explained,
	r *why.Answer) (explained, error) {
	text := event.Text(event.Join(r.Cause, r.Advice()))
	if text == of.text && of.at.Sub(of.told) < feature.EventLifetime {
		return of, nil
	}
	// Another leader gives the first event with this text the same name, and so does not repeat it. An answer that
	// comes back after another one is told again.
	name := fmt.Sprintf("not-allocated-%s-%s", about.UID, digest(of.event+text))
	_, err := feature.CreateEvent(ctx, u.Direct, NotAllocated, about, name, text)
	if err != nil {
		return of, err
	}
	of.event, of.text, of.told = name, text, of.at
	return of, nil
}

func digest(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // cannot fail
	return fmt.Sprintf("%016x", h.Sum64())
}

// queue has the claims, or pods, to explain: those that it is time for, and those that can be explained with them.
type queue struct{ due, beside []types.NamespacedName }

// add adds the object if it was explained long enough ago.
func (q *queue) add(name types.NamespacedName, of explained, now time.Time) {
	switch since := now.Sub(of.at); {
	case since >= explainedAgain:
		q.due = append(q.due, name)
	case since >= explainedBeside:
		q.beside = append(q.beside, name)
	}
}

// inTurns returns all of them, in the order of the function of that name.
func (q *queue) inTurns(known map[types.NamespacedName]explained) []types.NamespacedName {
	inTurns(q.due, known)
	inTurns(q.beside, known)
	return slices.Concat(q.due, q.beside)
}

// waitingClaims returns the claims to explain. It forgets claims that do not wait any more.
func (u *Waiting) waitingClaims(now time.Time) (all queue) {
	claims := map[types.NamespacedName]explained{}
	for c, waits := range u.View.Claims {
		if !waits {
			continue
		}
		of, ok := u.claims[c.NamespacedName]
		if !ok || !of.created.Equal(c.Created) {
			of = explained{created: c.Created}
		}
		claims[c.NamespacedName] = of
		if now.Sub(c.Created) > u.after {
			all.add(c.NamespacedName, of, now)
		}
	}
	u.claims = claims
	return all
}

// inTurns sorts names of objects: namespaces take turns, and the one comes first whose last explanation is the oldest.
// Of a namespace, objects that were not explained yet come first, and then older ones.
func inTurns(all []types.NamespacedName, known map[types.NamespacedName]explained) {
	last := map[string]time.Time{} // of each namespace
	for name, of := range known {
		if of.at.After(last[name.Namespace]) {
			last[name.Namespace] = of.at
		}
	}
	slices.SortFunc(all, func(a, b types.NamespacedName) int {
		return cmp.Or(known[a].at.Compare(known[b].at), known[a].created.Compare(known[b].created),
			cmp.Compare(a.String(), b.String()))
	})
	turns, turn := map[string]int{}, map[types.NamespacedName]int{}
	for _, name := range all {
		turn[name] = turns[name.Namespace]
		turns[name.Namespace]++
	}
	slices.SortStableFunc(all, func(a, b types.NamespacedName) int {
		return cmp.Or(turn[a]-turn[b], last[a.Namespace].Compare(last[b.Namespace]))
	})
}

// maxClaims is the number of claims up to which a pod is explained.
const maxClaims = 256

// unschedulable returns the pods, by the claims they use, that were created before that time and that the scheduler has
// not scheduled. Of the pods of a claim it returns the oldest.
func unschedulable(pods []*corev1.Pod, before time.Time) map[types.NamespacedName]*corev1.Pod {
	all := map[types.NamespacedName]*corev1.Pod{}
	for _, pod := range pods {
		if len(pod.Spec.ResourceClaims) > maxClaims || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil ||
			!pod.CreationTimestamp.Time.Before(before) ||
			!slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
			}) {
			continue
		}
		for claim := range resourceclaim.PodClaims(pod) {
			name := types.NamespacedName{Namespace: pod.Namespace, Name: claim}
			if known := all[name]; known == nil || pod.CreationTimestamp.Before(&known.CreationTimestamp) {
				all[name] = pod
			}
		}
	}
	return all
}
