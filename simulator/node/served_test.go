// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// TestProbesAtOnce: those who look for a daemon take each other for none, and see one that runs.
func TestProbesAtOnce(t *testing.T) {
	n := &Node{dir: tmpfs.Dir(t)}
	if err := os.WriteFile(filepath.Join(n.dir, mpsName+"GPU-1"), nil, 0o600); err != nil { // of one that was killed
		t.Fatal(err)
	}
	const probes, times = 8, 1000
	served := func() (count int32) {
		var all sync.WaitGroup
		var seen atomic.Int32
		for range probes {
			all.Go(func() {
				for range times {
					if n.served("GPU-1") {
						seen.Add(1)
					}
				}
			})
		}
		all.Wait()
		return seen.Load()
	}
	if got := served(); got != 0 {
		t.Errorf("without a daemon: seen %d times, want 0", got)
	}
	release := n.use(mpsName + "GPU-1")
	if got := served(); got != probes*times {
		t.Errorf("with a daemon: seen %d times, want %d", got, probes*times)
	}
	release()
	if n.served("GPU-1") {
		t.Error("seen after it has ended")
	}
}
