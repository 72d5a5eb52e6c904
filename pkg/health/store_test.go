// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLocked: instances that read, change and write the state lose nothing of each other.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "count")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	increase := func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(text))
		return errors.Join(err, os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600))
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				for { // on a slow machine, another one may hold it for long
					err := Locked(dir, increase)
					if err == nil {
						break
					}
					if !errors.Is(err, unix.EWOULDBLOCK) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	if got, err := os.ReadFile(file); err != nil || string(got) != "100" {
		t.Errorf("got %s, %v, want 100", got, err)
	}
	if err := Locked(dir, func() error { return errLocked }); !errors.Is(err, errLocked) {
		t.Errorf("got %v, want the error of the call", err)
	}
}

var errLocked = errors.New("not written")

// TestLockedByOne: a holder that hangs does not stop the others.
func TestLockedByOne(t *testing.T) {
	dir := t.TempDir()
	err := Locked(dir, func() error {
		return Locked(dir, func() error {
			t.Error("two hold the lock")
			return nil
		})
	})
	if !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v, want that it is held", err)
	}
	if err := Forget(dir); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
