// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"testing"
)

func TestOnlyLeaderReports(t *testing.T) {
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
		{"a leader with an incomplete view", leader, some, false},
		{"another replica", make(chan struct{}), all, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := isReportingLeader(tc.elected, tc.known)(); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
