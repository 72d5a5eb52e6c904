// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Refuses reports whether an error of the API server is about the object, and not about a server or a webhook that does
// not work at the moment.
func Refuses(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code/100 == 4 && !slices.Contains([]int32{http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooManyRequests}, code)
}
