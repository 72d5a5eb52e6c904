// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/evict"
)

const (
	// standAside is how long a pod may stay after the time of its eviction. A Kubernetes that evicts such pods itself
	// has deleted it by then. The version of Kubernetes does not tell whether a patch or a vendor has mended the fault.
	standAside = 5 * time.Second
	// workers evict pods at the same time.
	workers = 4
	// poolIndex is the index of slices and claims by pool.
	poolIndex = "pool"
)

// evictor deletes pods as the device taint eviction of Kubernetes does.
type evictor struct {
	driver string
	cached client.Reader           // of claims and slices, with the indexes of index
	pods   corev1client.PodsGetter // without a cache; it limits the rate of evictions
	rules  func() []*resourceapi.DeviceTaintRule
	// tell writes an event about a pod that is about to be evicted. A second call must not write a second event.
	tell    func(ctx context.Context, pod *corev1.Pod, text string) error
	evicted prometheus.Counter
}

// index lets the cache find slices and claims by their pools.
func index(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &resourceapi.ResourceSlice{}, poolIndex, poolOfSlice); err != nil {
		return fmt.Errorf("index slices: %w", err)
	}
	if err := indexer.IndexField(ctx, &resourceapi.ResourceClaim{}, poolIndex, poolsOfClaim); err != nil {
		return fmt.Errorf("index claims: %w", err)
	}
	return nil
}

func poolOfSlice(o client.Object) []string {
	if s, ok := o.(*resourceapi.ResourceSlice); ok {
		return []string{s.Spec.Pool.Name}
	}
	return nil
}

// poolsOfClaim returns the pools of a claim for extended resources.
func poolsOfClaim(o client.Object) (pools []string) {
	claim, ok := o.(*resourceapi.ResourceClaim)
	if !ok || claim.Status.Allocation == nil || !forExtendedResources(claim) {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		pools = append(pools, r.Pool)
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// watch lets the manager's leader reconcile claims when they, their slices or a rule have changed. Each event says that
// the rules have changed.
func (e *evictor) watch(mgr ctrl.Manager, rules <-chan event.GenericEvent) error {
	extended := predicate.NewPredicateFuncs(func(o client.Object) bool { return len(poolsOfClaim(o)) > 0 })
	tainted := predicate.NewPredicateFuncs(func(o client.Object) bool {
		s, ok := o.(*resourceapi.ResourceSlice)
		return ok && slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
			return slices.ContainsFunc(d.Taints, cluster.Evicts)
		})
	})
	return ctrl.NewControllerManagedBy(mgr).Named("eviction").
		For(&resourceapi.ResourceClaim{}, builder.WithPredicates(extended)).
		Watches(&resourceapi.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(e.ofSlice),
			builder.WithPredicates(tainted)).
		WatchesRawSource(source.Channel(rules, handler.EnqueueRequestsFromMapFunc(e.ofAll))).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(e)
}

// ofSlice returns the claims for extended resources that have devices of the slice's pool.
func (e *evictor) ofSlice(ctx context.Context, o client.Object) []reconcile.Request {
	return e.claims(ctx, client.MatchingFields{poolIndex: poolOfSlice(o)[0]})
}

// ofAll returns the claims for extended resources.
func (e *evictor) ofAll(ctx context.Context, _ client.Object) []reconcile.Request {
	return e.claims(ctx)
}

func (e *evictor) claims(ctx context.Context, options ...client.ListOption) (all []reconcile.Request) {
	var claims resourceapi.ResourceClaimList
	if err := e.cached.List(ctx, &claims, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		log.FromContext(ctx).Error(err, "Pods with extended resources are not evicted")
		return nil
	}
	for i := range claims.Items {
		if forExtendedResources(&claims.Items[i]) {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&claims.Items[i])})
		}
	}
	return all
}

// Reconcile evicts the pod of a claim, or requeues the claim until it is time.
func (e *evictor) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var claim resourceapi.ResourceClaim
	if err := e.cached.Get(ctx, req.NamespacedName, &claim); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var published []*resourceapi.ResourceSlice
	for _, pool := range poolsOfClaim(&claim) {
		var list resourceapi.ResourceSliceList
		if err := e.cached.List(ctx, &list, client.MatchingFields{poolIndex: pool},
			client.UnsafeDisableDeepCopy); err != nil {
			return reconcile.Result{}, fmt.Errorf("slices of pool %s: %w", pool, err)
		}
		for i := range list.Items {
			published = append(published, &list.Items[i])
		}
	}
	due, ok := decide(e.driver, &claim, published, e.rules())
	if !ok {
		return reconcile.Result{}, nil
	}
	if left := time.Until(due.at) + standAside; left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if err := e.evict(ctx, claim.Name, due); err != nil {
		return reconcile.Result{}, fmt.Errorf("evict pod %s: %w", due.pod, err)
	}
	return reconcile.Result{}, nil
}

// evict deletes the pod, if it is still there and uses the claim.
func (e *evictor) evict(ctx context.Context, claim string, due eviction) error {
	pod, err := e.pods.Pods(due.pod.Namespace).Get(ctx, due.pod.Name, metav1.GetOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	status := pod.Status.ExtendedResourceClaimStatus
	if pod.UID != due.uid || pod.DeletionTimestamp != nil || status == nil || status.ResourceClaimName != claim ||
		cluster.Finished(pod) {
		return nil
	}
	why := strings.Join(due.why, "; ")
	if err := e.tell(ctx, pod, "deleted: "+why); err != nil { // a quota or a policy may forbid events for ever
		log.FromContext(ctx).Error(err, "The eviction has no event", "pod", due.pod)
	}
	outcome, err := evict.Delete(ctx, e.pods, pod.Namespace, pod.Name, due.uid, "DeletionByGPUDriver",
		"NoExecute taint of a GPU: "+why)
	if outcome != evict.Evicted {
		return err
	}
	log.FromContext(ctx).Info("Pod evicted", "pod", due.pod, "why", why)
	e.evicted.Inc()
	return nil
}
