// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
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
	"k8s.io/client-go/kubernetes"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
)

const (
	// period is the time between two rounds. A round makes no request unless a pod waits that may preempt.
	period = 250 * time.Millisecond
	// settle is how long a pod waits until it preempts: others may end, and the scheduler may preempt itself.
	settle = time.Second
	// firstPause is the time until a pod that cannot preempt is looked at again. It doubles each time.
	firstPause = 5 * time.Second
	// maxPause bounds it.
	maxPause = time.Minute
	// keeps is how long devices are kept for a pod once its victims are gone, or should be.
	keeps = time.Minute
	// looks is the time between two looks at whether a victim is gone.
	looks = 5 * time.Second
	// readPause is the time until the cluster is read again after a round in vain.
	readPause = 10 * time.Second
	// maxPlans is how many plans are made in a round.
	maxPlans = 10
	// planning is how long plans are begun in a round. What was begun before is not looked after meanwhile.
	planning = 10 * time.Second
	// maxRefused is how many plans in a round are for one pod, because the API refuses to evict their victims.
	maxRefused = 5
)

// Preemptor makes room for pods. It is not safe for concurrent use.
type Preemptor struct {
	*feature.Controller
	view   *cluster.View
	client client.Client // without a cache
	reads  kubernetes.Interface

	preemptions, preempted prometheus.Counter

	waiting map[types.UID]*candidate
	holds   map[types.UID]*hold
	pauses  map[types.UID]*pause    // by ownerOf
	refused map[types.UID]time.Time // victims that the API refuses to evict, and until when no plan has them

	nextRead time.Time // the cluster is not read earlier

	schedulers []string // whose pods preempt
	planning   time.Duration
}

// Schedulers are those whose pods preempt by default: the scheduler of Kubernetes, and that of the chart.
var Schedulers = []string{corev1.DefaultSchedulerName, "gpu-first"}

// candidate is a pod that waits and may preempt.
type candidate struct {
	next  time.Time // not looked at earlier
	tries int
}

// Add makes the leader preempt for pods of these schedulers, and adds the webhook for their claims.
func Add(c *feature.Controller, schedulers []string) error {
	reads, err := c.Reads()
	if err != nil {
		return err
	}
	c.Serve("/preemption", tolerator{c.View})
	p := newPreemptor(c, reads)
	p.schedulers = schedulers
	return errors.Join(ctrlmetrics.Registry.Register(p.preemptions), ctrlmetrics.Registry.Register(p.preempted),
		c.Manager.Add(p))
}

func newPreemptor(c *feature.Controller, reads kubernetes.Interface) *Preemptor {
	return &Preemptor{Controller: c, view: c.View, client: c.Direct, reads: reads,
		preemptions: metrics.NewPreemptions(), preempted: metrics.NewPreemptedPods(),
		waiting: map[types.UID]*candidate{}, holds: map[types.UID]*hold{},
		pauses: map[types.UID]*pause{}, refused: map[types.UID]time.Time{},
		schedulers: Schedulers, planning: planning}
}

// Start preempts until ctx ends.
func (p *Preemptor) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("preemption"))
	list := p.Waiting.Follow(ctx)
	read := false
	p.Rounds(ctx, period, "preempt pods", "Pods do not preempt others", func(started time.Time) error {
		if !read { // what an earlier leader has begun
			if err := p.readHolds(ctx); err != nil {
				return err
			}
			read = true
		}
		return p.round(ctx, list(), started)
	})
	return nil
}

// round goes on with what was begun, and then looks at the pods that wait, the highest priority first.
func (p *Preemptor) round(ctx context.Context, pods []*corev1.Pod, now time.Time) error {
	last := p.keep(ctx, pods, now)
	due := p.due(pods, now)
	if len(due) == 0 || now.Before(p.nextRead) {
		return last
	}
	due, err := p.aboveLowest(ctx, due, now)
	if len(due) == 0 || err != nil {
		return errors.Join(last, err)
	}
	s, options, err := p.read(ctx, now)
	if err != nil {
		return errors.Join(last, err)
	}
	p.forgetRefused(s, now)
	options.Refused = p.refused
	inVain := map[types.UID]bool{} // ownerOf pods that no victims help: the others are alike
	plans, began, start := 0, false, time.Now()
	for _, pod := range due {
		owner, w := ownerOf(pod), p.waiting[pod.UID]
		full := plans == maxPlans || plans > 0 && time.Since(start) >= p.planning
		if !full || inVain[owner] {
			w.next = now.Add(min(maxPause, firstPause<<min(w.tries, 10)))
			w.tries++
		}
		current := podOf(s, pod)
		if full || current == nil || !waits(current) || inVain[owner] || !p.wants(current, s.Claims) {
			continue
		}
		h, plan, err := p.allowed(ctx, s, current, options, &plans, now)
		if errors.Is(err, errStale) {
			began = true // the next round reads the cluster again
			break
		}
		if errors.Is(err, moves.ErrNoVictims) {
			inVain[owner] = true
			continue
		}
		if err != nil {
			last = errors.Join(last, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
			continue
		}
		if plan == nil {
			continue
		}
		began, h.Owner = true, owner
		if err := p.begin(ctx, h, plan, now); err != nil {
			last = errors.Join(last, fmt.Errorf("make room for pod %s/%s: %w", pod.Namespace, pod.Name, err))
			break // the snapshot is not right any more
		}
		if len(h.Victims) == 0 {
			break // it was abandoned
		}
		s = after(s, h, plan, now)
	}
	if !began {
		p.nextRead = now.Add(readPause)
	}
	return last
}

// due returns the pods to look at, and forgets those that have a node or are gone.
func (p *Preemptor) due(pods []*corev1.Pod, now time.Time) (due []*corev1.Pod) {
	known := map[types.UID]*candidate{}
	for _, pod := range pods {
		w := p.waiting[pod.UID]
		isDue, isPaused := waits(pod) && p.concerns(pod) && p.holds[pod.UID] == nil, p.paused(pod, now)
		if w == nil && isDue {
			w = &candidate{next: now.Add(settle)}
		}
		if w != nil {
			known[pod.UID] = w
		}
		if isDue && !isPaused && !now.Before(w.next) {
			due = append(due, pod)
		}
	}
	p.waiting = known
	maps.DeleteFunc(p.pauses, func(_ types.UID, of *pause) bool {
		return now.After(of.until.Add(maxUnused)) || !of.seen.IsZero() && of.seen.Before(now)
	})
	slices.SortFunc(due, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a)),
			cmp.Compare(p.waiting[a.UID].tries, p.waiting[b.UID].tries),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return due
}

// aboveLowest returns the pods that may have a higher priority than another one. The rest is not looked at for a while:
// in a cluster without priorities, pods that wait cost one request now and then.
func (p *Preemptor) aboveLowest(ctx context.Context, due []*corev1.Pod, now time.Time) ([]*corev1.Pod, error) {
	classes, err := p.reads.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list priority classes: %w", err)
	}
	lowest := int32(0)
	for _, class := range classes.Items {
		lowest = min(lowest, class.Value)
	}
	return slices.DeleteFunc(due, func(pod *corev1.Pod) bool {
		isLowest := corev1helpers.PodPriority(pod) <= lowest
		if isLowest {
			p.waiting[pod.UID].next = now.Add(maxPause)
		}
		return isLowest
	}), nil
}

// waits reports whether a scheduler has refused the pod, and it may preempt others. A pod with a nominated node waits
// for what the scheduler preempts. The pods of a group are scheduled together; see waiting.Slim.
func waits(pod *corev1.Pod) bool {
	return waiting.IsRefused(pod) && pod.Status.NominatedNodeName == "" && pod.Spec.SchedulingGroup == nil &&
		(pod.Spec.PreemptionPolicy == nil || *pod.Spec.PreemptionPolicy != corev1.PreemptNever)
}

// concerns reports whether the pod asks for devices, and a scheduler places it that takes the nominated node.
func (p *Preemptor) concerns(pod *corev1.Pod) bool {
	return slices.Contains(p.schedulers, cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)) &&
		(len(pod.Spec.ResourceClaims) > 0 || waiting.Extended(pod, p.view.Extended))
}

// wants reports whether the pod lacks devices of the driver. It may lack those of others, too.
func (p *Preemptor) wants(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) bool {
	names := maps.Collect(resourceclaim.PodClaims(pod))
	return waiting.Extended(pod, p.view.Extended) || slices.ContainsFunc(claims, func(
		c *resourceapi.ResourceClaim) bool {
		_, isOwn := names[c.Name]
		return isOwn && c.Namespace == pod.Namespace && c.Status.Allocation == nil && slices.ContainsFunc(
			cluster.Subrequests(&c.Spec), func(s cluster.Subrequest) bool { return p.view.Ours(*s.Class) })
	})
}

// errStale means that a budget forbids what the snapshot allows.
var errStale = errors.New("a budget has changed")

// allowed plans a preemption whose victims the API would evict. It plans again without those that it refuses, and
// counts the plans. A nil plan: none is known now. The error is errStale if a budget forbids it.
func (p *Preemptor) allowed(ctx context.Context, s *cluster.Snapshot, pod *corev1.Pod, options moves.PreemptOptions,
	plans *int, now time.Time) (*hold, *moves.Preemption, error) {
	for range min(maxRefused, maxPlans-*plans) {
		*plans++
		plan, err := p.plan(ctx, s, pod, options)
		if plan == nil || err != nil {
			return nil, nil, err
		}
		h := newHold(pod, plan, now)
		if refused, err := p.ask(ctx, h, now); err != nil || !refused {
			return h, plan, err
		}
	}
	p.waiting[pod.UID].next = now.Add(firstPause) // it goes on soon, before the first victims are forgotten
	return nil, nil, nil
}

// plan plans a preemption. A panic concerns this pod only.
func (p *Preemptor) plan(ctx context.Context, s *cluster.Snapshot, pod *corev1.Pod,
	options moves.PreemptOptions) (plan *moves.Preemption, err error) {
	var bound bool
	if options.Volumes, bound, err = p.volumes(ctx, pod, s.Pods); err != nil || !bound {
		return nil, err
	}
	err = p.Guard.Do("plan a preemption", func() (err error) {
		plan, err = moves.Preempt(ctx, s, pod, options)
		return err
	})
	return plan, err
}
