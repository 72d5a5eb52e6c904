// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	resourcebeta "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// taintRules follows the DeviceTaintRules of the cluster. They are in resource.k8s.io/v1 since Kubernetes 1.37, and in
// v1beta2 of 1.36, which few API servers serve. Older versions of the API, in which rules select devices by more than
// their names, are ignored.
type taintRules struct {
	client kubernetes.Interface
	period time.Duration // between questions to an API server that serves no rules
	// changed gets an event when a rule has changed, unless its taint evicts nothing.
	changed chan event.GenericEvent

	mu  sync.Mutex
	all map[string]*resourceapi.DeviceTaintRule
}

// newRules returns taintRules that know no rule.
func newRules(c kubernetes.Interface) *taintRules {
	return &taintRules{client: c, period: time.Minute, changed: make(chan event.GenericEvent),
		all: map[string]*resourceapi.DeviceTaintRule{}}
}

// list returns the rules, in no order.
func (r *taintRules) list() (all []*resourceapi.DeviceTaintRule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rule := range r.all {
		all = append(all, rule)
	}
	return all
}

// Start follows the rules until ctx ends, also when an upgrade of the API server changes the version of the API.
func (r *taintRules) Start(ctx context.Context) error {
	for {
		served, err := r.served()
		switch {
		case err != nil && ctx.Err() == nil:
			log.FromContext(ctx).Error(err, "DeviceTaintRules do not evict pods with extended resources")
		case err == nil && served != "":
			r.follow(ctx, served)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.period):
		}
	}
}

// served returns the newest version of the API with rules that the API server serves; empty: none.
func (r *taintRules) served() (string, error) {
	for _, version := range []string{resourceapi.SchemeGroupVersion.String(),
		resourcebeta.SchemeGroupVersion.String()} {
		list, err := r.client.Discovery().ServerResourcesForGroupVersion(version)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", fmt.Errorf("which resources %s has: %w", version, err)
		case slices.ContainsFunc(list.APIResources,
			func(one metav1.APIResource) bool { return one.Name == "devicetaintrules" }):
			return version, nil
		}
	}
	return "", nil
}

// follow follows the rules until the API server does not serve them any more or ctx ends.
func (r *taintRules) follow(ctx context.Context, version string) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	factory := informers.NewSharedInformerFactory(r.client, 0).Resource()
	informer := factory.V1().DeviceTaintRules().Informer()
	if version != resourceapi.SchemeGroupVersion.String() {
		informer = factory.V1beta2().DeviceTaintRules().Informer()
	}
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, of *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, of, err)
		if apierrors.IsNotFound(err) {
			end()
		}
	}) // fails only after the start
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { r.set(ctx, o) },
		UpdateFunc: func(_, o any) { r.set(ctx, o) },
		DeleteFunc: r.forget,
	}) // fails only after the end
	informer.RunWithContext(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = map[string]*resourceapi.DeviceTaintRule{}
}

func (r *taintRules) set(ctx context.Context, o any) {
	rule, ok := o.(*resourceapi.DeviceTaintRule)
	if beta, isBeta := o.(*resourcebeta.DeviceTaintRule); isBeta {
		rule, ok = fromBeta(beta), true
	}
	if !ok {
		return
	}
	r.mu.Lock()
	r.all[rule.Name] = rule
	r.mu.Unlock()
	if !cluster.Evicts(rule.Spec.Taint) {
		return
	}
	select {
	case r.changed <- event.GenericEvent{Object: rule}:
	case <-ctx.Done():
	}
}

func (r *taintRules) forget(o any) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, name)
}

// fromBeta returns the same rule in resource.k8s.io/v1.
func fromBeta(beta *resourcebeta.DeviceTaintRule) *resourceapi.DeviceTaintRule {
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: beta.ObjectMeta}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: beta.Spec.Taint.Key, Value: beta.Spec.Taint.Value,
		Effect: resourceapi.DeviceTaintEffect(beta.Spec.Taint.Effect), TimeAdded: beta.Spec.Taint.TimeAdded}
	if s := beta.Spec.DeviceSelector; s != nil {
		rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: s.Driver, Pool: s.Pool, Device: s.Device}
	}
	return rule
}
