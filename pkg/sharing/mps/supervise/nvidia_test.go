// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// TestNVIDIA runs NVIDIA's own control program of several driver branches under the supervisor. It needs no GPU,
// because only its server opens one.
func TestNVIDIA(t *testing.T) {
	for _, branch := range nvidia.Branches(t) {
		t.Run(branch.Suite, func(t *testing.T) {
			w := newFixture(t)
			stop := w.superviseRoot(t, branch.Root)
			d := mps.Daemon{ID: "g0", GPUs: []gpu.UUID{"GPU-0", "GPU-1"}, MultiUser: true, ThreadPercentage: 30,
				Memory: map[gpu.UUID]uint64{"GPU-0": 5 << 30, "GPU-1": 512 << 20}}
			if os.Getuid() == 0 { // mounting needs root
				d.SharedMemory = 64 << 20
				t.Cleanup(func() {
					_ = unix.Unmount(w.dir.Pipe("g0"), unix.MNT_DETACH)
					_ = unix.Unmount(w.dir.SharedMemory("g0"), unix.MNT_DETACH)
				})
			}
			must(t, w.dir.Request(d))
			first := w.await(t, d) // Ready: all limits were read back
			if first.SingleUser == branch.MultiUser {
				t.Errorf("got %+v, want single user %t", first, !branch.MultiUser)
			}
			log := func() string {
				text, err := os.ReadFile(filepath.Join(w.dir.Log("g0"), "control.log"))
				must(t, err)
				return string(text)
			}
			eventually(t, "the start of the server in the log", func() bool {
				return strings.Contains(log(), "Starting new server")
			})
			eventually(t, "the end of the server, which finds no GPU, in the state", func() bool {
				s, err := w.dir.State("g0")
				must(t, err)
				return s.Ready && s.ServerFailures > 0 && s.ServerFailure == "a server exited with status 1"
			})

			d.ThreadPercentage, d.Memory = 50, map[gpu.UUID]uint64{"GPU-0": 3000 << 20, "GPU-1": 1 << 30}
			must(t, w.dir.Request(d))
			changed := w.await(t, d)
			if changed.PID != first.PID {
				t.Errorf("other limits: got process %d, want %d to go on", changed.PID, first.PID)
			}

			must(t, syscall.Kill(first.PID, syscall.SIGKILL))
			eventually(t, "the daemon to be started again", func() bool {
				s, err := w.dir.State("g0")
				must(t, err)
				return s.Ready && s.Restarts == 1 && s.PID != first.PID
			})
			if got := log(); strings.Count(got, "Starting control daemon") < 2 {
				t.Errorf("the log of the first daemon is gone:\n%s", got)
			}

			must(t, w.dir.Release("g0"))
			eventually(t, "the daemon's directory to be gone", func() bool {
				_, err := os.Stat(filepath.Dir(w.dir.Pipe("g0")))
				return os.IsNotExist(err)
			})
			stop()
		})
	}
}
