// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A start takes as long as the machine needs. The clock is not the machine's: see testing/synctest.
func TestPoll(t *testing.T) {
	refused := errors.New("connection refused")
	for _, tc := range []struct {
		name  string
		check func(since time.Duration) error
		want  error
		took  time.Duration // at least, and at most a minute more
	}{
		{"three nodes that take two hours", func(since time.Duration) error {
			if left := 3 - int(since/(9*time.Minute)); left > -10 {
				return fmt.Errorf("%d are not ready", left)
			}
			return nil
		}, nil, 13 * 9 * time.Minute},
		{"an API server that does not come", func(time.Duration) error { return refused }, errStuck, patience},
		{"a node that comes and goes", func(since time.Duration) error {
			return fmt.Errorf("%d are not ready", int(since/time.Minute)%2)
		}, errStuck, patience + time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := poll(t.Context(), nil, func(context.Context) error { return tc.check(time.Since(start)) })
				if !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				if took := time.Since(start); took < tc.took || took > tc.took+time.Minute {
					t.Errorf("took %s, want %s", took, tc.took)
				}
			})
		})
	}
}

func TestPollEndsWithAMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := errors.New("machine node-1 ended")
		failed := make(chan error, 1)
		failed <- ended
		err := poll(t.Context(), failed, func(context.Context) error { return errors.New("not ready") })
		if !errors.Is(err, ended) {
			t.Errorf("got %v, want %v", err, ended)
		}
	})
}
