// SPDX-License-Identifier: Apache-2.0

package simctl_test

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/uevent"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// TestHotPlugIsAnnounced has the kernel tell of simulated GPUs, in a network namespace of its own like that of a pod.
func TestHotPlugIsAnnounced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can send events and create device nodes")
	}
	runtime.LockOSThread() // not unlocked: the thread, which is in the namespace, ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	changed, err := uevent.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	dir := t.TempDir()
	_, err = node.Open(dir, p)
	must(t, err)
	for _, tt := range []struct{ command, want string }{{"add --like 0", "gpu-3c-00-0\n"}, {"remove gpu-3c-00-0", ""}} {
		if got := run(append(strings.Fields(tt.command), "--dir", dir)...); got != tt.want {
			t.Fatalf("%s: got %s, want %s", tt.command, got, tt.want)
		}
		select {
		case <-changed:
		case <-time.After(time.Hour):
			t.Fatalf("%s: no event", tt.command)
		}
	}
}
