// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"testing"
)

func TestOneReplicaTellsAboutTheCluster(t *testing.T) {
	leader := make(chan struct{})
	close(leader)
	all, some := func() error { return nil }, func() error { return errors.New("slices are still being read") }
	for _, tc := range []struct {
		name    string
		elected chan struct{}
		known   func() error
		want    bool
	}{
		{"the leader", leader, all, true},
		{"a leader that knows only some", leader, some, false},
		{"another replica", make(chan struct{}), all, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := leads(tc.elected, tc.known)(); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
