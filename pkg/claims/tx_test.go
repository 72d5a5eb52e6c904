// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// TestWaiting: a call waits until shortly before its deadline, tells the cause once on the way, and stops when the
// program is asked to end.
func TestWaiting(t *testing.T) {
	other := errors.New("something else")
	for _, row := range []struct {
		name     string
		free     time.Duration // when the GPU is free
		fails    error         // the error that follows, once it is free
		deadline time.Duration // of the call; 0: none
		stop     time.Duration // when the program is asked to end; 0: never
		takes    time.Duration // at least, and less than the longest pause more
		told     int
		err      error
	}{
		{"free at once", 0, nil, 45 * time.Second, 0, 0, 0, nil},
		{"free soon", 3 * time.Second, nil, 45 * time.Second, 0, 3 * time.Second, 0, nil},
		{"free after a while", 20 * time.Second, nil, 45 * time.Second, 0, 20 * time.Second, 1, nil},
		{"another error ends it", 20 * time.Second, other, 45 * time.Second, 0, 20 * time.Second, 1, other},
		{"never free", time.Hour, nil, 45 * time.Second, 0, 41 * time.Second, 1, gpu.ErrBusy},
		{"a call without deadline", time.Hour, nil, 0, 0, 30 * time.Second, 1, gpu.ErrBusy},
		{"the program ends", time.Hour, nil, 45 * time.Second, 2 * time.Second, 2 * time.Second, 0, gpu.ErrBusy},
		{"no time at all", time.Hour, nil, time.Second, 0, 0, 0, gpu.ErrBusy},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if row.deadline > 0 {
					limited, cancel := context.WithTimeout(ctx, row.deadline)
					defer cancel()
					ctx = limited
				}
				stopping, stop := context.WithCancel(context.Background())
				defer stop()
				if row.stop > 0 {
					time.AfterFunc(row.stop, stop)
				}
				var told []error
				p := &Preparer{Timeout: 30 * time.Second, Stopping: stopping,
					Waiting: func(_ sharing.Claim, cause error) { told = append(told, cause) }}
				began := time.Now()
				call := p.begin(ctx, sharing.Claim{Name: "c"})
				defer call.end()
				var err error
				for again := true; again; again = call.again(err) {
					if err = row.fails; time.Since(began) < row.free {
						err = gpu.ErrBusy
					}
				}
				if !errors.Is(err, row.err) {
					t.Errorf("got error %v, want %v", err, row.err)
				}
				if took := time.Since(began); took < row.takes || took > row.takes+longestPause {
					t.Errorf("it took %s, want %s and at most %s more", took, row.takes, longestPause)
				}
				if len(told) != row.told || row.told > 0 && !errors.Is(told[0], gpu.ErrBusy) {
					t.Errorf("told %v, want %d times that the GPU is busy", told, row.told)
				}
			})
		})
	}
}
