// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// A program that was killed while it wrote leaves a temporary file, and perhaps nothing else.
func TestFilesOfAKilledProgram(t *testing.T) {
	d := Dir(t.TempDir())
	left := func(id string, files ...string) {
		t.Helper()
		for _, file := range append(files, "."+RequestedFile+"123", "."+stateFile+"456") {
			if err := os.MkdirAll(filepath.Join(string(d), id), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(string(d), id, file), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	left("released", stateFile)
	if err := d.Clear("released"); err != nil {
		t.Fatal(err)
	}
	if dirs := d.DaemonDirs(); len(dirs) > 0 {
		t.Errorf("left for good: %q", dirs)
	}
	for id, age := range map[string]time.Duration{"young": 0, "old": time.Hour, "ahead": -time.Hour,
		"reported": time.Hour, "requested": time.Hour} {
		left(id)
		switch id {
		case "reported":
			left(id, stateFile)
		case "requested":
			left(id, RequestedFile)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(string(d), id), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(d.Abandoned(), " "); got != "ahead old" {
		t.Errorf("abandoned: got %q, want ahead and old", got)
	}
}

// What a supervisor has said holds for the daemon that was asked for, and for as long as the supervisor lives.
func TestReady(t *testing.T) {
	dir := Dir(t.TempDir())
	daemon := Daemon{ID: "gpu-1", GPUs: []gpu.UUID{"GPU-1"}, ThreadPercentage: 30}
	supervisor, err := os.Open(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer supervisor.Close()
	lock := func(how int) func() error { return func() error { return unix.Flock(int(supervisor.Fd()), how) } }
	want := func(percentage int) func() error {
		return func() error {
			d := daemon
			d.ThreadPercentage = percentage
			return dir.Request(d)
		}
	}
	start := func() error {
		requested, err := dir.Requested()
		if err == nil {
			err = dir.Report("gpu-1", DaemonState{Digest: requested[0].Digest, Ready: true})
		}
		return err
	}
	for _, step := range []struct {
		name  string
		do    func() error
		ready bool
	}{
		{"it is asked for", want(30), false},
		{"a supervisor is there", lock(unix.LOCK_EX), false},
		{"and has started it", start, true},
		{"it is asked for again", want(30), true},
		{"with another limit", want(40), false},
		{"which was set", start, true},
		{"nobody wants it any more", func() error { return dir.Release("gpu-1") }, false},
		{"the same is wanted anew while the one before ends", want(40), false},
		{"and was started", start, true},
		{"the supervisor is killed", lock(unix.LOCK_UN), false},
		{"another one comes", lock(unix.LOCK_SH), false},
		{"resets the state", dir.ResetStates, false},
		{"is there", lock(unix.LOCK_EX), false},
		{"and starts it", start, true},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := dir.Check("gpu-1"); (err == nil) != step.ready || err != nil && !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: got %v, want it ready: %t", step.name, err, step.ready)
		}
	}
}

// A supervisor that starts between the two looks of a check does not make the report of an earlier one valid.
func TestReportOfAnEarlierSupervisor(t *testing.T) {
	dir := Dir(t.TempDir())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(dir.Request(Daemon{ID: "gpu-1"}))
	requested, err := dir.Requested()
	must(err)
	must(dir.Report("gpu-1", DaemonState{Digest: requested[0].Digest, Ready: true}))
	file := filepath.Join(string(dir), "gpu-1", stateFile)
	report, err := os.ReadFile(file)
	must(err)
	must(os.Remove(file))
	must(unix.Mkfifo(file, 0o600)) // a reader waits for the test

	got := make(chan error)
	go func() { got <- dir.Check("gpu-1") }()
	pipe := awaitReader(t, file)
	supervisor, err := os.Open(string(dir))
	must(err)
	defer supervisor.Close()
	must(unix.Flock(int(supervisor.Fd()), unix.LOCK_EX))
	_, err = pipe.Write(report)
	must(errors.Join(err, pipe.Close()))
	if err := <-got; !errors.Is(err, ErrNotReady) {
		t.Errorf("got %v, want %v", err, ErrNotReady)
	}
}

// awaitReader opens the named pipe for writing, as soon as somebody reads it.
func awaitReader(t *testing.T, pipe string) *os.File {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		f, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return f
		}
		if !errors.Is(err, unix.ENXIO) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
