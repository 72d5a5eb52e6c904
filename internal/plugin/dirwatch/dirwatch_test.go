// SPDX-License-Identifier: Apache-2.0

package dirwatch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

// changed reports whether a change is told within the time.
func changed(w *Watcher, within time.Duration) bool {
	select {
	case <-w.Changed():
		return true
	case <-time.After(within):
		return false
	}
}

const (
	soon  = 5 * time.Minute
	never = 100 * time.Millisecond
)

func TestWatcher(t *testing.T) {
	inotify.Need(t)
	dir := filepath.Join(t.TempDir(), "dir")
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := New(t.Context(), func(file string) bool { return filepath.Base(file) == "request" })
	w.Keep(dir)
	for _, when := range []string{"made", "removed and made again"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		w.Keep(dir)
		w.Keep(dir)
		write("other")
		if changed(w, never) {
			t.Errorf("the directory was %s: told of a file that does not matter", when)
		}
		write("request")
		if !changed(w, soon) {
			t.Errorf("the directory was %s: not told of a request", when)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if !changed(w, soon) {
			t.Errorf("the directory was %s: not told of the removed request", when)
		}
		changed(w, never) // one for the file that was written
	}
	if w.Keep(); len(w.dirs) > 0 {
		t.Errorf("the directory was removed, and is kept: %v", w.dirs)
	}
}

// Without inotify, nothing is told and nothing fails.
func TestNoWatcher(t *testing.T) {
	var w *Watcher
	w.Keep(t.TempDir())
	if w.Changed() != nil {
		t.Error("got a channel")
	}
}

// TestInstancesUsedUp: other programs use all inotify instances of the user, and then fewer. The limit is that of a
// user namespace for the test program alone.
func TestInstancesUsedUp(t *testing.T) {
	const limit, inside = "/proc/sys/user/max_inotify_instances", "DIRWATCH_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestInstancesUsedUp$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		out, err := cmd.CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Skip("no user namespaces here:", err)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if strings.Contains(string(out), "--- SKIP") {
			t.Skip(string(out))
		}
		return
	}
	if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
		t.Skip("a user namespace cannot have its own limit here:", err)
	}
	dir := t.TempDir()
	w := New(t.Context(), nil)
	w.Keep(dir)
	if inotify.Count(t) > 0 {
		t.Fatal("got an instance of inotify, want none")
	}
	if err := os.WriteFile(limit, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	w.Keep(dir)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !changed(w, soon) {
		t.Error("not told of a file")
	}
}

// All Watchers have one inotify instance, each is told of its own directories only, and the instance ends with the last
// of them.
func TestWatchersShareAnInstance(t *testing.T) {
	inotify.Need(t)
	waitForNoInstance(t) // of the tests before, which end theirs in the background
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	brief, end := context.WithCancel(ctx)
	a, b, ended := t.TempDir(), t.TempDir(), t.TempDir()
	watchers := []*Watcher{New(ctx, nil), New(ctx, nil), New(brief, nil)}
	for i, dir := range []string{a, b, ended} {
		watchers[i].Keep(dir + "/")
	}
	if got := inotify.Count(t); got != 1 {
		t.Errorf("got %d instances of inotify, want 1", got)
	}
	end()
	if err := os.WriteFile(filepath.Join(a, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !changed(watchers[0], soon) || changed(watchers[1], never) {
		t.Error("want the watcher of the directory to be told, and the other not")
	}
	cancel()
	waitForNoInstance(t)
	watchers[0].Keep(a) // does nothing
	if again := New(t.Context(), nil); again == nil {
		t.Error("no watcher after the others have ended")
	}
}

// waitForNoInstance waits until the last Watcher has ended.
func waitForNoInstance(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(soon); inotify.Count(t) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an instance of inotify remains after the last watcher has ended")
		}
	}
}
