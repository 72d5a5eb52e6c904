// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

func TestServerFailures(t *testing.T) {
	for _, tt := range []struct{ name, output, want string }{
		{"an error", "[x Control 5] Server 12 exited with status 1\n", "1: a server exited with status 1"},
		{"two", "Server 1 exited with status 1\nServer 2 exited with status 255\n",
			"2: a server exited with status 255"},
		{"no error", "Server 12 exited with status 0\n", "0: "},
		{"no error, in three digits", "Server 12 exited with status 000\n", "0: "},
		{"an impossible status", "Server 12 exited with status 1234\n", "0: "},
		{"no whole line", "Server 12 exited with status 1", "0: "},
	} {
		s := newServers()
		if _, err := s.Write([]byte(tt.output)); err != nil {
			t.Fatal(err)
		}
		count, last := s.failures()
		if got := fmt.Sprintf("%d: %s", count, last); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestReportsOfServerFailures: a client that makes the daemon print failures does not make the supervisor report each.
func TestReportsOfServerFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := mps.Dir(t.TempDir())
		if err := os.Mkdir(filepath.Join(string(dir), "g0"), 0o755); err != nil {
			t.Fatal(err)
		}
		d := mps.RequestedDaemon{Daemon: mps.Daemon{ID: "g0"}}
		w := newWorker(&supervisor{SupervisorConfig: SupervisorConfig{Dir: dir,
			Log: slog.New(slog.DiscardHandler)}}, "g0")
		w.requested = &d
		r := &process{cmd: &exec.Cmd{Process: &os.Process{Pid: 1}}, ended: make(chan struct{}),
			serverEnds: newServers()}
		done := make(chan error)
		go func() { done <- w.watchProcess(t.Context(), r, d) }()

		for _, step := range []struct {
			name   string
			after  time.Duration
			prints int // failures
			want   int // failures in the report
		}{
			{"the first one is reported at once", 0, 1, 1},
			{"those of the next seconds are not", 0, 1000, 1},
			{"nor are the last of them", failurePeriod - time.Second, 1, 1},
			{"they are reported together", time.Second, 0, 1002},
			{"the next pause begins", 0, 1, 1002},
			{"it ends", failurePeriod, 0, 1003},
			{"after a while without any, one is reported at once", time.Hour, 1, 1004},
		} {
			time.Sleep(step.after)
			_, _ = r.serverEnds.Write([]byte(strings.Repeat("Server 12 exited with status 1\n", step.prints)))
			synctest.Wait()
			s, err := dir.State("g0")
			if err != nil {
				t.Fatal(err)
			}
			if s.ServerFailures != step.want {
				t.Errorf("%s: got %d failures, want %d", step.name, s.ServerFailures, step.want)
			}
		}

		w.mu.Lock()
		w.setRequested(nil)
		w.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
