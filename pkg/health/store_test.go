// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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

// NVML is closed for as long as a person has asked for, also if the clock was ahead then.
func TestReleaseRequest(t *testing.T) {
	now := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		name  string
		asked time.Duration // how far the clock was ahead then
		looks []time.Duration
		want  string // the ends at these times
	}{
		{"as it was asked", 0, []time.Duration{0, time.Minute, 4 * time.Minute}, "5m0s 5m0s 5m0s"},
		{"a clock that was ahead", 365 * 24 * time.Hour, []time.Duration{time.Minute, 4 * time.Minute, time.Hour},
			"6m0s 6m0s 6m0s"},
		{"a clock that was behind", -time.Hour, []time.Duration{0}, "-55m0s"},
	} {
		dir := t.TempDir()
		if err := RequestRelease(dir, now.Add(row.asked), 5*time.Minute); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, at := range row.looks {
			got = append(got, ReleaseRequest(dir, now.Add(at)).Sub(now).String())
		}
		if got := strings.Join(got, " "); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
		if err := RequestRelease(dir, now, 0); err != nil {
			t.Fatal(err)
		}
		if until := ReleaseRequest(dir, now); !until.IsZero() {
			t.Errorf("%s: it is opened: got %s", row.name, until)
		}
	}
}

// A request of an older version has only its end.
func TestReleaseRequestOfAnOlderVersion(t *testing.T) {
	dir := t.TempDir()
	end := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	if err := os.WriteFile(filepath.Join(dir, releaseFile), []byte(end.Format(time.RFC3339)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ReleaseRequest(dir, end.Add(-time.Hour)); !got.Equal(end) {
		t.Errorf("got %s, want %s", got, end)
	}
}
