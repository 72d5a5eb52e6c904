// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

func TestDaemonRestartIsReported(t *testing.T) {
	records, err := checkpoint.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for claim, daemon := range map[string]string{"a": "gpu-1", "b": "gpu-1", "c": "gpu-2", "d": "gpu-3"} {
		rec := checkpoint.Record{Phase: checkpoint.Prepared, Claim: sharing.Claim{Namespace: "ns", Name: claim,
			UID: types.UID(claim)}}
		rec.Plan.Assignments = []sharing.Assignment{{Device: daemon,
			Isolation: sharing.Isolation{MPS: &sharing.MPSClient{Daemon: daemon}}}}
		if err := records.Put(rec); err != nil {
			t.Fatal(err)
		}
	}
	dir := mps.Dir(t.TempDir())
	var told []string
	w := &DaemonWatch{Daemons: dir, Records: records, Restarted: func(claim sharing.Claim, daemon string) {
		told = append(told, fmt.Sprint(claim, " ", daemon))
	}}
	w.ServerFailed = func(claim sharing.Claim, daemon, what string) {
		told = append(told, fmt.Sprint(claim, " ", daemon, " ", what))
	}
	w.SingleUser = func(claim sharing.Claim, daemon string) {
		told = append(told, fmt.Sprint(claim, " ", daemon, " single user"))
	}
	for _, look := range []struct {
		name       string
		restarts   map[string]int
		singleUser string // the daemon that is
		failures   int    // of the servers of each daemon
		want       string
	}{
		{"restarts before the first look are not reported", map[string]int{"gpu-1": 3, "gpu-2": 0}, "", 0, "[]"},
		{"nothing has happened", map[string]int{"gpu-1": 3, "gpu-2": 0}, "", 0, "[]"},
		{"one was restarted", map[string]int{"gpu-1": 4, "gpu-2": 0}, "", 0, "[ns/a gpu-1 ns/b gpu-1]"},
		{"that is reported once", map[string]int{"gpu-1": 4, "gpu-2": 1}, "", 0, "[ns/c gpu-2]"},
		{"a new one was restarted before the look", map[string]int{"gpu-1": 4, "gpu-2": 1, "gpu-3": 1}, "", 0,
			"[ns/d gpu-3]"},
		{"one serves a single user", map[string]int{"gpu-1": 4}, "gpu-1", 0,
			"[ns/a gpu-1 single user ns/b gpu-1 single user]"},
		{"that is reported once, too", map[string]int{"gpu-1": 5}, "gpu-1", 0, "[ns/a gpu-1 ns/b gpu-1]"},
		{"a server has failed", map[string]int{"gpu-1": 5}, "", 1, "[ns/a gpu-1 failure 1 ns/b gpu-1 failure 1]"},
		{"another one has", map[string]int{"gpu-1": 5}, "", 2, "[ns/a gpu-1 failure 2 ns/b gpu-1 failure 2]"},
		{"no other one has", map[string]int{"gpu-1": 5}, "", 2, "[]"},
	} {
		for id, restarts := range look.restarts {
			if err := dir.Request(mps.Daemon{ID: id}); err != nil {
				t.Fatal(err)
			}
			state := mps.State{Ready: true, Restarts: restarts, SingleUser: id == look.singleUser,
				ServerFailures: look.failures, ServerFailure: fmt.Sprint("failure ", look.failures)}
			if err := dir.Report(id, state); err != nil {
				t.Fatal(err)
			}
		}
		told = nil
		if err := w.look(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(told)
		if got := fmt.Sprint(told); got != look.want {
			t.Errorf("%s: got %s, want %s", look.name, got, look.want)
		}
	}
}

// Changes are noticed long before the next look without one, also of daemons whose directory is new.
func TestDaemonsAreWatched(t *testing.T) {
	records, err := checkpoint.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rec := checkpoint.Record{Phase: checkpoint.Prepared, Claim: sharing.Claim{Namespace: "ns", Name: "a", UID: "a"}}
	rec.Plan.Assignments = []sharing.Assignment{{Device: "gpu-1",
		Isolation: sharing.Isolation{MPS: &sharing.MPSClient{Daemon: "gpu-1"}}}}
	if err := records.Put(rec); err != nil {
		t.Fatal(err)
	}
	dir := mps.Dir(filepath.Join(t.TempDir(), "mps"))
	told := make(chan string, 10)
	w := &DaemonWatch{Daemons: dir, Records: records,
		SingleUser: func(_ sharing.Claim, daemon string) { told <- daemon }}
	go w.Run(t.Context())
	for range 2 {
		err := dir.Request(mps.Daemon{ID: "gpu-1"})
		if err == nil {
			err = dir.Report("gpu-1", mps.State{Ready: true, SingleUser: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Fatal("a report of the supervisor is not noticed")
		}
		time.Sleep(50 * time.Millisecond) // the look is over
		if err := os.RemoveAll(string(dir)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // the daemon's end is noticed
	}
}
