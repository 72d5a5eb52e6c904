// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A webhook that is too slow, or an API server that is not there, has not refused an object.
func TestRefuses(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil), true},
		{apierrors.NewForbidden(pods, "a", errors.New("quota")), true},
		{fmt.Errorf("apply: %w", apierrors.NewBadRequest("unknown field")), true},
		{&apierrors.StatusError{ErrStatus: metav1.Status{Message: "a webhook denied it", Code: 400}}, true},
		{apierrors.NewInternalError(errors.New("failed calling webhook: context deadline exceeded")), false},
		{apierrors.NewTimeoutError("slow", 1), false},
		{apierrors.NewServerTimeout(pods, "create", 1), false},
		{apierrors.NewTooManyRequests("busy", 1), false},
		{apierrors.NewServiceUnavailable("starting"), false},
		{apierrors.NewConflict(pods, "a", errors.New("changed")), false},
		{&apierrors.StatusError{ErrStatus: metav1.Status{Message: "?"}}, false},
		{errors.New("connection refused"), false},
	} {
		if got := Refuses(tc.err); got != tc.want {
			t.Errorf("%v: got %v, want %v", tc.err, got, tc.want)
		}
	}
}
