//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// unchanged returns a function that compares the node with what it is now: the devices are the same, and no GPU was
// lost meanwhile. A fabric attaches a GPU and takes it back.
func (s *suite) unchanged(t *testing.T, node string) func() {
	t.Helper()
	before, quiet := s.published(t, node), s.lost(t, node)
	return func() {
		t.Helper()
		if got := s.published(t, node); !apiequality.Semantic.DeepEqual(got, before) {
			t.Errorf("after the detachment: got %v, want %v", got, before)
		}
		if got := s.lost(t, node); !slices.Equal(got, quiet) {
			t.Errorf("events of the node: got %q, want %q", got, quiet)
		}
	}
}

// lost returns the events of the node about lost GPUs.
func (s *suite) lost(t *testing.T, node string) []string {
	t.Helper()
	events, err := s.Events(t.Context(), client.ObjectKey{Name: node})
	s.must(t, err)
	return slices.DeleteFunc(events, func(text string) bool { return !strings.Contains(text, "GPULost") })
}
