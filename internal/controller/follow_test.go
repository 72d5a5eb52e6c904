// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/caller"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// older is an API server before Kubernetes 1.37.
type older struct{ *informertest.FakeInformers }

func (o older) GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer,
	error) {
	if _, ok := obj.(*resourceapi.DeviceTaintRule); ok {
		return nil, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "DeviceTaintRule"}}
	}
	return o.FakeInformers.GetInformer(ctx, obj, opts...)
}

// The view follows DeviceTaintRules where the API server has them. Where it has none, everything else is followed.
func TestFollowTaintRules(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	tainted := func() (n int) {
		for g := range v.GPUs {
			if !g.Admits(nil) {
				n++
			}
		}
		return n
	}
	guard := feature.NewGuard()
	informers := &informertest.FakeInformers{Scheme: scheme.Scheme}
	if _, err := follow(t.Context(), older{informers}, v, caller.NewWebhooks("", time.Hour), guard); err != nil {
		t.Fatal(err)
	}
	if _, err := follow(t.Context(), informers, v, caller.NewWebhooks("", time.Hour), guard); err != nil {
		t.Fatal(err)
	}
	rules, err := informers.FakeInformerFor(t.Context(), &resourceapi.DeviceTaintRule{})
	if err != nil {
		t.Fatal(err)
	}
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "cordon"}}
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(clustertest.Driver)}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "cordon", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	rules.Add(rule)
	if got := tainted(); got != 2 {
		t.Errorf("got %d tainted GPUs, want 2", got)
	}
	rules.Delete(rule)
	if got := tainted(); got != 0 {
		t.Errorf("got %d tainted GPUs without the rule, want none", got)
	}
}

// An object at which the view panics does not end the controller.
func TestFollowSurvivesAPanic(t *testing.T) {
	guard := feature.NewGuard()
	var none *cluster.View
	events := feature.EventHandler(guard, none.SetClass, func(*resourceapi.DeviceClass) {})
	events.OnAdd(&resourceapi.DeviceClass{}, false)
	if got := testutil.ToFloat64(guard.Panics); got != 1 {
		t.Errorf("got %v panics counted, want 1", got)
	}
}
