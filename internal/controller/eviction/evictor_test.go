// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// unchanged returns the running pod of extendedClaim.
func unchanged() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train", UID: "pod"},
		Spec: corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "train-extended-resources-x"}}}
}

// evictorOf returns an evictor for a cluster with these objects, and what it does.
func evictorOf(fails map[string]error, objects ...client.Object) (e *evictor, did *[]string) {
	did = &[]string{}
	do := func(verb, what string) error {
		*did = append(*did, verb+" "+what)
		return fails[verb]
	}
	cached := fake.NewClientBuilder().WithScheme(scheme.Scheme).
		WithIndex(&resourceapi.ResourceSlice{}, poolIndex, poolOfSlice).
		WithIndex(&resourceapi.ResourceClaim{}, poolIndex, poolsOfClaim)
	api := kubefake.NewClientset()
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			if err := api.Tracker().Add(pod); err != nil {
				panic(err) // it is new
			}
			continue
		}
		cached = cached.WithObjects(o)
	}
	api.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var err error
		switch a := a.(type) {
		case clienttesting.PatchAction:
			if err = do("patch", a.GetName()+"/"+a.GetSubresource()); err == nil {
				var patch corev1.Pod
				err = json.Unmarshal(a.GetPatch(), &patch)
				for _, c := range patch.Status.Conditions {
					*did = append(*did, fmt.Sprintf("condition %s %s of UID %s, by %s", c.Type, c.Reason, patch.UID,
						a.GetPatchType()))
				}
			}
		case clienttesting.DeleteAction:
			err = do("delete", fmt.Sprintf("%s UID %s", a.GetName(), *a.GetDeleteOptions().Preconditions.UID))
		}
		return err != nil, nil, err
	})
	return &evictor{driver: driver, cached: cached.Build(), pods: api.CoreV1(),
		rules: func() []*resourceapi.DeviceTaintRule { return nil },
		tell: func(_ context.Context, pod *corev1.Pod, text string) error {
			return do("event", pod.Name+": "+text)
		},
		evicted: prometheus.NewCounter(prometheus.CounterOpts{Name: "evicted"})}, did
}

// indexer refuses to index objects like this one; nil: none.
type indexer struct{ refused client.Object }

func (i indexer) IndexField(_ context.Context, o client.Object, _ string, _ client.IndexerFunc) error {
	if reflect.TypeOf(o) == reflect.TypeOf(i.refused) {
		return errors.New("refused")
	}
	return nil
}

func TestIndex(t *testing.T) {
	for _, row := range []struct {
		refused client.Object
		want    string
	}{
		{nil, "<nil>"},
		{&resourceapi.ResourceSlice{}, "index slices: refused"},
		{&resourceapi.ResourceClaim{}, "index claims: refused"},
	} {
		if got := fmt.Sprint(index(t.Context(), indexer{row.refused})); got != row.want {
			t.Errorf("%T: got %s, want %s", row.refused, got, row.want)
		}
	}
}

var request = reconcile.Request{NamespacedName: client.ObjectKeyFromObject(extendedClaim())}

func TestReconcile(t *testing.T) {
	young := noExecute("xid")
	young.TimeAdded = ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
	evicted := []string{"event train: deleted: node-1/gpu-0 has the taint xid:NoExecute", "patch train/status",
		"condition DisruptionTarget DeletionByGPUDriver of UID pod, by " + string(types.StrategicMergePatchType),
		"delete train UID pod"}
	for _, row := range []struct {
		name   string
		taint  resourceapi.DeviceTaint
		change func(*corev1.Pod)
		want   []string
		again  bool
	}{
		{"a sick GPU", noExecute("xid"), nil, evicted, false},
		{"not yet", young, nil, nil, true},
		{"a healthy GPU", resourceapi.DeviceTaint{Key: "xid", Effect: resourceapi.DeviceTaintEffectNoSchedule}, nil,
			nil, false},
		{"Kubernetes has evicted it", noExecute("xid"), func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{"example.com/keep"}
		}, nil, false},
		{"another pod of the name", noExecute("xid"), func(p *corev1.Pod) { p.UID = "other" }, nil, false},
		{"the pod does not use the claim", noExecute("xid"), func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = nil
		}, nil, false},
		{"the pod uses another claim", noExecute("xid"), func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus.ResourceClaimName = "other"
		}, nil, false},
		{"the pod has ended", noExecute("xid"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil,
			false},
		{"the pod is gone", noExecute("xid"), func(p *corev1.Pod) { p.Name = "other" }, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := unchanged()
			if row.change != nil {
				row.change(pod)
			}
			e, did := evictorOf(nil, extendedClaim(), slice(1, row.taint), pod)
			result, err := e.Reconcile(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(*did) != fmt.Sprint(row.want) {
				t.Errorf("got\n%q\nwant\n%q", *did, row.want)
			}
			if again := result.RequeueAfter > 0; again != row.again {
				t.Errorf("got another look after %s, want one: %t", result.RequeueAfter, row.again)
			}
			if got, want := testutil.ToFloat64(e.evicted), float64(min(1, len(row.want))); got != want {
				t.Errorf("got %v evicted pods, want %v", got, want)
			}
		})
	}
}

// TestStandsAside: a Kubernetes that evicts such pods itself has time for it.
func TestStandsAside(t *testing.T) {
	now := noExecute("xid")
	now.TimeAdded = ptr.To(metav1.Now())
	e, did := evictorOf(nil, extendedClaim(), slice(1, now), unchanged())
	result, err := e.Reconcile(t.Context(), request)
	// A machine that stops for five seconds right here must not fail the test.
	late := time.Since(now.TimeAdded.Time) >= standAside
	if err != nil || !late && (result.RequeueAfter <= 0 || result.RequeueAfter > standAside || len(*did) > 0) {
		t.Errorf("got %v, %v, %q, want another look within %s", result, err, *did, standAside)
	}
}

// TestNoEvents: a pod does not stay on a sick GPU because its namespace can have no more events.
func TestNoEvents(t *testing.T) {
	fails := map[string]error{"event": errors.New("exceeded quota: count/events")}
	e, did := evictorOf(fails, extendedClaim(), slice(1, noExecute("xid")), unchanged())
	if _, err := e.Reconcile(t.Context(), request); err != nil || testutil.ToFloat64(e.evicted) != 1 {
		t.Errorf("got %v, %q, want the eviction", err, *did)
	}
}

// TestRetry: what fails is tried again from the start. The event is written once, by its name.
func TestRetry(t *testing.T) {
	for _, verb := range []string{"patch", "delete"} {
		fails := map[string]error{verb: errors.New("the API server is busy")}
		e, did := evictorOf(fails, extendedClaim(), slice(1, noExecute("xid")), unchanged())
		if _, err := e.Reconcile(t.Context(), request); !errors.Is(err, fails[verb]) {
			t.Errorf("%s fails: got %v, want its error", verb, err)
		}
		if got := testutil.ToFloat64(e.evicted); got != 0 {
			t.Errorf("%s fails: got %v evicted pods, want none", verb, got)
		}
		delete(fails, verb)
		if _, err := e.Reconcile(t.Context(), request); err != nil || testutil.ToFloat64(e.evicted) != 1 {
			t.Errorf("%s succeeds: got %v, %q, want the eviction", verb, err, *did)
		}
	}
}

// TestMaps: a changed slice concerns the claims of its pool, a changed rule all of them.
func TestMaps(t *testing.T) {
	other := extendedClaim()
	other.Name = "other"
	other.Status.Allocation.Devices.Results[0].Pool = "node-2"
	ofSpec := extendedClaim()
	ofSpec.Name, ofSpec.Annotations = "of-spec", nil
	e, _ := evictorOf(nil, extendedClaim(), other, ofSpec)
	if got := e.ofSlice(t.Context(), slice(1)); len(got) != 1 || got[0] != request {
		t.Errorf("the slice: got %v, want %v", got, request)
	}
	if got := e.ofAll(t.Context(), nil); len(got) != 2 {
		t.Errorf("a rule: got %v, want both claims for extended resources", got)
	}
}
