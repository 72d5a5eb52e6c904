// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	resourcebeta "k8s.io/api/resource/v1beta2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

func serves(version string) []*metav1.APIResourceList {
	return []*metav1.APIResourceList{{GroupVersion: version, APIResources: []metav1.APIResource{
		{Name: "devicetaintrules"}}}}
}

func betaRule() *resourcebeta.DeviceTaintRule {
	return &resourcebeta.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "drain"},
		Spec: resourcebeta.DeviceTaintRuleSpec{
			DeviceSelector: &resourcebeta.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To("node-1"),
				Device: ptr.To("gpu-0")},
			Taint: resourcebeta.DeviceTaint{Key: "x", Value: "y", Effect: resourcebeta.DeviceTaintEffectNoExecute,
				TimeAdded: ptr.To(metav1.NewTime(added))}}}
}

// start runs the rules until the test ends.
func start(t *testing.T, r *taintRules) {
	t.Helper()
	r.period = time.Millisecond
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Start(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRules: rules are read in the version of the API that is served, also one that is served later.
func TestRules(t *testing.T) {
	want := rule("drain", noExecute("x"), "gpu-0")
	want.Spec.Taint.Value = "y"
	for _, row := range []struct {
		name    string
		version string
		object  runtime.Object
	}{
		{"Kubernetes 1.37", "resource.k8s.io/v1", want.DeepCopy()},
		{"Kubernetes 1.36 with the API", "resource.k8s.io/v1beta2", betaRule()},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := fake.NewClientset(row.object)
			c.Resources = serves("resource.k8s.io/v1alpha3") // of Kubernetes 1.35
			asked := 0
			r := newRules(c)
			c.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
				if got := r.list(); len(got) > 0 {
					t.Errorf("got %v of an API that is not served", got)
				}
				if asked++; asked == 5 { // twice for both versions
					c.Resources = serves(row.version)
				}
				return false, nil, nil
			})
			start(t, r)
			e := <-r.changed
			got := r.list()
			if e.Object.GetName() != "drain" || len(got) != 1 || *got[0].Spec.DeviceSelector.Device != "gpu-0" ||
				got[0].Spec.Taint.Key != "x" || got[0].Spec.Taint.Value != "y" || !cluster.Evicts(got[0].Spec.Taint) ||
				!got[0].Spec.Taint.TimeAdded.Time.Equal(added) {
				t.Errorf("got %v after an event about %s, want %v", got, e.Object.GetName(), want)
			}
		})
	}
}

// TestRulesChange: a rule that evicts nothing is known and told to nobody; one that is deleted is forgotten, and so are
// all when the API is not served any more.
func TestRulesChange(t *testing.T) {
	cordon := rule("cordon", noExecute("x"), "gpu-1")
	cordon.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNoSchedule
	c := fake.NewClientset()
	r := newRules(c)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	r.set(ctx, cordon)
	if got := r.list(); len(got) != 1 {
		t.Fatalf("got %v, want the rule", got)
	}
	go r.set(ctx, rule("cordon", noExecute("x"), "gpu-1"))
	<-r.changed
	r.forget(cordon)
	if got := r.list(); len(got) != 0 {
		t.Errorf("got %v, want none after the deletion", got)
	}

	c.PrependReactor("list", "devicetaintrules", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(resourceapi.Resource("devicetaintrules"), "")
	})
	r.set(ctx, cordon)
	r.follow(ctx, "resource.k8s.io/v1") // returns
	if got := r.list(); len(got) != 0 {
		t.Errorf("got %v, want none when the API is gone", got)
	}
}
