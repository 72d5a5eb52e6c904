// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

const (
	// PendingFor is how long an admitted claim stays pending that does not exist. An API server works 34 seconds on a
	// request to create an object.
	PendingFor = time.Minute
	// period is how often each quota is counted when nothing changes, and pendingPeriod while claims are pending.
	period, pendingPeriod = 5 * time.Minute, 10 * time.Second
	// settle is how long changes of claims are collected.
	settle = time.Second
	// perPage is how many claims are read at a time. A claim may have 1.5 MB.
	perPage = 20
	// workers is how many quotas are counted at a time: a namespace with many selectors holds up one.
	workers = 4
)

// Counter counts what claims take, and writes that to the quotas.
type Counter struct {
	view    *cluster.View
	known   func() error
	direct  client.Client
	cached  client.Reader
	amounts *prometheus.GaugeVec // of metrics.NewQuotas
	now     func() time.Time
	reading sync.Mutex // of a page of claims

	// evaluation is how long the selectors of a count may take, which users choose. The other claims count as unknown.
	evaluation time.Duration
}

// NewCounter returns a counter. amounts is that of metrics.NewQuotas.
func NewCounter(c *feature.Controller, amounts *prometheus.GaugeVec) *Counter {
	return &Counter{view: c.View, known: c.Known, direct: c.Direct, amounts: amounts, now: time.Now,
		evaluation: 5 * time.Second}
}

// watch counts on the leader of the manager: when a quota is new or changed, soon after claims of its namespace have
// changed, while claims are pending, and every period.
func (c *Counter) watch(mgr ctrl.Manager) error {
	c.cached = mgr.GetClient()
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*resourceapi.ResourceClaim)
		after, also := e.ObjectNew.(*resourceapi.ResourceClaim)
		return ok && also && (before.UID != after.UID ||
			!equality.Semantic.DeepEqual(before.Status.Allocation, after.Status.Allocation))
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("quota").
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		For(&cluster.GPUQuota{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&resourceapi.ResourceClaim{}, handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { c.later(ctx, e.Object, q) },
			UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { c.later(ctx, e.ObjectNew, q) },
			DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { c.later(ctx, e.Object, q) },
		}, builder.WithPredicates(changed)).
		Watches(&cluster.GPUQuota{}, handler.Funcs{UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if of, ok := e.ObjectNew.(*cluster.GPUQuota); ok && len(of.Status.Pending) > 0 {
				q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(of)}, pendingPeriod)
			}
		}}).
		Complete(c)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// later lets the quotas of the claim's namespace be counted soon.
func (c *Counter) later(ctx context.Context, claim client.Object, q queue) {
	var quotas cluster.GPUQuotaList
	if err := c.cached.List(ctx, &quotas, client.InNamespace(claim.GetNamespace())); err != nil {
		return // they are counted every period
	}
	for i := range quotas.Items {
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&quotas.Items[i])}, settle)
	}
}

// Reconcile counts a quota.
func (c *Counter) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if complete := c.known() == nil; !complete {
		return reconcile.Result{RequeueAfter: settle}, nil
	}
	var q cluster.GPUQuota
	if err := c.direct.Get(ctx, req.NamespacedName, &q); err != nil {
		c.amounts.DeletePartialMatch(prometheus.Labels{"namespace": req.Namespace, "quota": req.Name})
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := q.DeepCopy()
	if err := c.count(ctx, &q); err != nil {
		return reconcile.Result{}, fmt.Errorf("count: %w", err)
	}
	if !equality.Semantic.DeepEqual(before.Status, q.Status) {
		if err := c.direct.Status().Update(ctx, &q); apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: settle}, nil // claims have been admitted meanwhile
		} else if err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	c.report(&q)
	if len(q.Status.Pending) > 0 || len(q.Status.Used) < len(q.Spec.Hard) {
		return reconcile.Result{RequeueAfter: pendingPeriod}, nil
	}
	return reconcile.Result{RequeueAfter: period}, nil
}

// count sets the status of a quota that was read before.
func (c *Counter) count(ctx context.Context, q *cluster.GPUQuota) error {
	var namespace corev1.Namespace
	if err := c.direct.Get(ctx, client.ObjectKey{Name: q.Namespace}, &namespace); err != nil {
		return err
	}
	evaluating, end := context.WithTimeout(ctx, c.evaluation)
	defer end()
	all, found := sum{cluster.Zero(), cluster.Zero()}, map[types.UID]bool{}
	largest := c.view.Largest()
	for claim, err := range c.claims(ctx, q.Namespace) {
		if err != nil {
			return err
		}
		found[claim.UID] = true
		amount, err := amountOf(evaluating, c.view, claim)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, cluster.ErrNoClass) || errors.Is(err, cluster.ErrAll):
			continue // it counts when it has devices
		}
		all.add(amount, c.view.Bound(claim, largest))
	}
	var pending []cluster.PendingClaim
	for _, p := range q.Status.Pending {
		if !found[p.UID] && c.now().Sub(p.Since.Time) < PendingFor {
			pending = append(pending, p)
			bound := cluster.Zero()
			bound.Add(largest, p.Amount[cluster.AmountGPUs])
			all.add(p.Amount, bound)
		}
	}
	use(q, all.since(q.Used()))
	q.Status.Pending, q.Status.Driver = pending, c.view.Driver()
	q.Status.Enforced = namespace.Labels[cluster.QuotaLabel] == "on"
	return nil
}

// use sets what is used, and says it in the units of the limits: "gpus 3/8, memory 79.7Gi/200Gi".
func use(q *cluster.GPUQuota, amount cluster.Amount) {
	q.Use(amount)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		hard, text := q.Spec.Hard[name], "?" // it is not counted yet
		suffix := ""
		if name == cluster.AmountMemory {
			suffix = strings.TrimLeft(hard.String(), "0123456789")
		}
		if used, counted := q.Status.Used[name]; counted {
			text = with(suffix, used)
		}
		all = append(all, fmt.Sprintf("%s %s/%s", name, text, with(suffix, hard)))
	}
	q.Status.Summary = strings.Join(all, ", ")
}

// with returns the quantity with that suffix of quantities, rounded up to a tenth.
func with(suffix string, q resource.Quantity) string {
	unit, err := resource.ParseQuantity("1" + suffix)
	if err != nil {
		return q.String()
	}
	tenths := math.Ceil(10 * q.AsApproximateFloat64() / unit.AsApproximateFloat64())
	return strconv.FormatFloat(tenths/10, 'f', -1, 64) + suffix
}

// sum is what claims take: what is known of it, and the most. A key that is missing in most has no bound.
type sum struct{ known, most cluster.Amount }

// add adds a claim. bound counts where the amount is unknown.
func (s sum) add(amount, bound cluster.Amount) {
	most := maps.Clone(bound)
	maps.Copy(most, amount)
	s.most.Add(most, 1)
	for name, n := range amount {
		s.known[name] += n
	}
}

// since returns what is used, if that was used before. It does not fall for what is unknown, as far as that can be: a
// device may be missing only while its plugin is restarted. What has no bound, and was not counted before, is not now.
func (s sum) since(before cluster.Amount) cluster.Amount {
	used := cluster.Amount{}
	for name, n := range s.known {
		was, counted := before[name]
		most, bounded := s.most[name]
		switch {
		case bounded && counted:
			used[name] = min(max(n, was), most)
		case bounded:
			used[name] = most
		case counted:
			used[name] = max(n, was)
		}
	}
	return used
}

// claims iterates over the claims of a namespace, without what their amount does not depend on. One page is in memory
// at a time.
func (c *Counter) claims(ctx context.Context, namespace string) iter.Seq2[*resourceapi.ResourceClaim, error] {
	return func(yield func(*resourceapi.ResourceClaim, error) bool) {
		for next := ""; ; {
			page, then, err := c.page(ctx, namespace, next)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, claim := range page {
				if !yield(claim, nil) {
					return
				}
			}
			if next = then; next == "" {
				return
			}
		}
	}
}

// page reads claims, and returns where the next page starts; empty: there is none.
func (c *Counter) page(ctx context.Context, namespace, from string) (slim []*resourceapi.ResourceClaim, next string,
	err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	var page resourceapi.ResourceClaimList
	if err := c.direct.List(ctx, &page, client.InNamespace(namespace), client.Limit(perPage),
		client.Continue(from)); err != nil {
		return nil, "", fmt.Errorf("read the claims: %w", err)
	}
	for i := range page.Items {
		slim = append(slim, cluster.SlimClaim(&page.Items[i]))
	}
	return slim, page.Continue, nil
}

// report exports what the quota allows and what is used.
func (c *Counter) report(q *cluster.GPUQuota) {
	c.amounts.DeletePartialMatch(prometheus.Labels{"namespace": q.Namespace, "quota": q.Name})
	for what, all := range map[string]corev1.ResourceList{"hard": q.Spec.Hard, "used": q.Status.Used} {
		for name, n := range all {
			c.amounts.WithLabelValues(q.Namespace, q.Name, string(name), what).Set(n.AsApproximateFloat64())
		}
	}
}
