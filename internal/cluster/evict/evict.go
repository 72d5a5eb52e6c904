// SPDX-License-Identifier: Apache-2.0

// Package evict ends pods. Of the product, only it asks for evictions, so that what an API server may answer is known
// once.
package evict

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Outcome is what became of an eviction. The zero value: nothing is known, and it may be tried again.
type Outcome int

const (
	// Evicted means that the pod is ending, or would be in a dry run.
	Evicted Outcome = iota + 1
	// Ended means that the pod has ended by itself; another one may have its name.
	Ended
	// Budget means that a PodDisruptionBudget forbids it for now.
	Budget
	// Denied means that an admission webhook, a policy or a missing right forbids it, and would again.
	Denied
)

// Pod asks the API server to evict the pod of that UID. The error says why it is not evicted, unless it has ended.
func Pod(ctx context.Context, pods corev1client.PodsGetter, namespace, name string, uid types.UID,
	dryRun ...string) (Outcome, error) {
	of := pods.Pods(namespace)
	err := of.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &uid}}})
	switch {
	case err == nil:
		return Evicted, nil
	case isOfBudget(err):
		return Budget, err
	case isDenied(err):
		return Denied, err
	case apierrors.IsNotFound(err):
		return Ended, nil
	case !apierrors.IsConflict(err):
		return 0, err
	}
	switch pod, getErr := of.Get(ctx, name, metav1.GetOptions{}); { // or it was changed at the same time
	case apierrors.IsNotFound(getErr), getErr == nil && pod.UID != uid:
		return Ended, nil
	case getErr != nil:
		return 0, getErr
	}
	return 0, err
}

// isOfBudget reports whether a PodDisruptionBudget forbids the eviction. Most answers have the status 429, and two 403,
// of which Kubernetes 1.34 says only what they are about.
func isOfBudget(err error) bool {
	var status apierrors.APIStatus
	about := errors.As(err, &status) && status.Status().Details != nil &&
		status.Status().Details.Kind == "poddisruptionbudget"
	return apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) || apierrors.IsForbidden(err) && about
}

// isDenied reports whether the API server refuses this eviction, and would again. A server that is busy or broken
// denies nothing: its text names no webhook that does.
func isDenied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) ||
		strings.Contains(err.Error(), "admission webhook ") // with any status
}

// Delete ends the pod whatever its budgets say, as the device taint eviction of Kubernetes does: it sets the condition
// DisruptionTarget and deletes the pod.
func Delete(ctx context.Context, pods corev1client.PodsGetter, namespace, name string, uid types.UID, reason,
	message string) (Outcome, error) {
	of := pods.Pods(namespace)
	disrupted, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid}, // of no other pod of the name
		"status": map[string]any{"conditions": []corev1.PodCondition{{Type: corev1.DisruptionTarget,
			Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}}},
	})
	if err != nil {
		return 0, err
	}
	_, err = of.Patch(ctx, name, types.StrategicMergePatchType, disrupted, metav1.PatchOptions{}, "status")
	if err == nil {
		err = of.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}
	switch {
	case err == nil:
		return Evicted, nil
	case apierrors.IsNotFound(err):
		return Ended, nil
	}
	return 0, err
}
