// SPDX-License-Identifier: Apache-2.0

package dirwatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"
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
	soon  = 10 * time.Second
	never = 100 * time.Millisecond
)

func TestWatcher(t *testing.T) {
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
}

// Without inotify, nothing is told and nothing fails.
func TestNoWatcher(t *testing.T) {
	var w *Watcher
	w.Keep(t.TempDir())
	if w.Changed() != nil {
		t.Error("got a channel")
	}
}
