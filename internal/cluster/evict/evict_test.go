// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func ofWebhook(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code,
		Reason: metav1.StatusReasonConflict, Message: `admission webhook "x" denied the request: not now`}}
}

// What each answer of the API server means. A conflict is no end of the pod, while a pod of that UID exists.
func TestPod(t *testing.T) {
	pods := corev1.Resource("pods")
	budget := apierrors.NewTooManyRequests("it would violate the pod's disruption budget", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	conflict := apierrors.NewConflict(pods, "p", errors.New("Precondition failed"))
	for _, row := range []struct {
		name   string
		answer error
		there  string // the UID of the pod of the name; "": none
		want   Outcome
		failed bool
	}{
		{"it is evicted", nil, "u", Evicted, false},
		{"it is gone", apierrors.NewNotFound(pods, "p"), "", Ended, false},
		{"another pod has its name", conflict, "other", Ended, false},
		{"it has just gone", conflict, "", Ended, false},
		{"it was changed at the same time", conflict, "u", 0, true},
		{"a budget", budget, "u", Budget, true},
		{"403 of a budget", apierrors.NewForbidden(schema.GroupResource{Group: "policy",
			Resource: "poddisruptionbudget"}, "b", nil), "u", Budget, true},
		{"a busy server", apierrors.NewTooManyRequestsError("later"), "u", 0, true},
		{"a broken server", apierrors.NewInternalError(errors.New("disk")), "u", 0, true},
		{"a missing right", apierrors.NewForbidden(corev1.Resource("pods/eviction"), "p", nil), "u", Denied, true},
		{"a policy", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), "u", Denied, true},
		{"409 of a webhook", ofWebhook(409), "u", Denied, true},
		{"429 of a webhook", ofWebhook(429), "u", Denied, true},
	} {
		api := fake.NewClientset()
		if row.there != "" {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID(row.there)}}
			if err := api.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
		}
		api.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			e, ok := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
			if !ok || e.Name != "p" || *e.DeleteOptions.Preconditions.UID != "u" ||
				!slices.Equal(e.DeleteOptions.DryRun, []string{metav1.DryRunAll}) {
				t.Errorf("%s: got the request %+v, want a dry run for one UID", row.name, e)
			}
			return true, nil, row.answer
		})
		got, err := Pod(t.Context(), api.CoreV1(), "ns", "p", "u", metav1.DryRunAll)
		if got != row.want || (err != nil) != row.failed {
			t.Errorf("%s: got the outcome %d, %v; want %d, an error: %t", row.name, got, err, row.want, row.failed)
		}
	}
}

// A pod that has ended meanwhile, before the condition or after it, is no error.
func TestDelete(t *testing.T) {
	busy := errors.New("the API server is busy")
	for _, row := range []struct {
		name  string
		fails map[string]error // by verb
		want  Outcome
		err   error
	}{
		{"it is deleted", nil, Evicted, nil},
		{"it is gone", map[string]error{"patch": apierrors.NewNotFound(corev1.Resource("pods"), "p")}, Ended, nil},
		{"it has just gone", map[string]error{"delete": apierrors.NewNotFound(corev1.Resource("pods"), "p")}, Ended,
			nil},
		{"no condition", map[string]error{"patch": busy}, 0, busy},
		{"not deleted", map[string]error{"delete": busy}, 0, busy},
	} {
		api := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}})
		api.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			err := row.fails[a.GetVerb()]
			return err != nil, nil, err
		})
		got, err := Delete(t.Context(), api.CoreV1(), "ns", "p", "u", "Reason", "text")
		if got != row.want || !errors.Is(err, row.err) {
			t.Errorf("%s: got the outcome %d, %v; want %d, %v", row.name, got, err, row.want, row.err)
		}
	}
}
