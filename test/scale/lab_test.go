// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestPodsAreNotCreated: the error of the API server is returned at once, and not that no pod was bound for minutes.
func TestPodsAreNotCreated(t *testing.T) {
	client := fake.NewClientset()
	refused := errors.New("no room in etcd")
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, refused
	})
	l := &lab{client: client}
	_, _, err := l.place(t.Context(), kind{name: "none"}, 3, nil)
	if !errors.Is(err, refused) || !strings.HasPrefix(err.Error(), "none: create pods: ") {
		t.Errorf("got %v, want %v", err, refused)
	}
}
