// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
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
	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

// recordsOf returns the records of claims in the namespace ns that use MPS daemons. The keys are the claims' names.
func recordsOf(t *testing.T, daemons map[string]string) *checkpoint.Records {
	t.Helper()
	records, err := checkpoint.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for claim, daemon := range daemons {
		rec := checkpoint.PreparedClaim{Phase: checkpoint.Prepared, Claim: sharing.Claim{Namespace: "ns", Name: claim,
			UID: types.UID(claim)}}
		rec.Plan.Assignments = []sharing.Assignment{{Device: daemon,
			Isolation: sharing.Isolation{MPS: &sharing.MPSClient{Daemon: daemon}}}}
		if err := records.Put(rec); err != nil {
			t.Fatal(err)
		}
	}
	return records
}

// reportsOfDaemons are what is reported to claims.
type reportsOfDaemons chan string

func (r reportsOfDaemons) DaemonRestarted(claim sharing.Claim, daemon string) {
	r <- fmt.Sprint(claim, " ", daemon)
}

func (r reportsOfDaemons) ServerFailed(claim sharing.Claim, daemon, what string) {
	r <- fmt.Sprint(claim, " ", daemon, " ", what)
}

func (r reportsOfDaemons) SingleUser(claim sharing.Claim, daemon string) {
	r <- fmt.Sprint(claim, " ", daemon, " single user")
}

func (r reportsOfDaemons) all() (all []string) {
	for len(r) > 0 {
		all = append(all, <-r)
	}
	return all
}

func TestDaemonRestartIsReported(t *testing.T) {
	records := recordsOf(t, map[string]string{"a": "gpu-1", "b": "gpu-1", "c": "gpu-2", "d": "gpu-3"})
	dir := mps.Dir(t.TempDir())
	reports := make(reportsOfDaemons, 10)
	w := &DaemonWatch{Daemons: dir, Records: records, Reporter: reports}
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
			state := mps.DaemonState{Ready: true, Restarts: restarts, SingleUser: id == look.singleUser,
				ServerFailures: look.failures, ServerFailure: fmt.Sprint("failure ", look.failures)}
			if err := dir.Report(id, state); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.look(); err != nil {
			t.Fatal(err)
		}
		told := reports.all()
		slices.Sort(told)
		if got := fmt.Sprint(told); got != look.want {
			t.Errorf("%s: got %s, want %s", look.name, got, look.want)
		}
	}
}

// partly is a Lister of which a record is unreadable.
type partly struct{ *checkpoint.Records }

func (p partly) List() ([]checkpoint.PreparedClaim, error) {
	all, err := p.Records.List()
	return all, errors.Join(err, checkpoint.ErrUnreadable)
}

// A record that cannot be read does not keep the claims of others from being told.
func TestDaemonRestartBesideAnUnreadableRecord(t *testing.T) {
	records := recordsOf(t, map[string]string{"a": "gpu-1"})
	dir := mps.Dir(t.TempDir())
	reports := make(reportsOfDaemons, 10)
	w := &DaemonWatch{Daemons: dir, Records: partly{records}, Reporter: reports}
	for restarts := range 2 {
		if err := errors.Join(dir.Request(mps.Daemon{ID: "gpu-1"}),
			dir.Report("gpu-1", mps.DaemonState{Ready: true, Restarts: restarts})); err != nil {
			t.Fatal(err)
		}
		if err := w.look(); (err != nil) != (restarts == 1) {
			t.Errorf("%d restarts: got %v", restarts, err)
		}
	}
	if got := fmt.Sprint(reports.all()); got != "[ns/a gpu-1]" {
		t.Errorf("got %s", got)
	}
}

// Changes are noticed long before the next look without one, also of daemons whose directory is new.
func TestDaemonsAreWatched(t *testing.T) {
	inotify.Need(t)
	records := recordsOf(t, map[string]string{"a": "gpu-1"})
	dir := mps.Dir(filepath.Join(t.TempDir(), "mps"))
	told := make(reportsOfDaemons, 10)
	w := &DaemonWatch{Daemons: dir, Records: records, Reporter: told}
	go w.Run(t.Context())
	for restarts := range 2 { // so that the second is told although nobody has noticed the end of the first
		err := dir.Request(mps.Daemon{ID: "gpu-1"})
		if err == nil {
			err = dir.Report("gpu-1", mps.DaemonState{Ready: true, SingleUser: true, Restarts: restarts})
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		case <-time.After(5 * time.Minute):
			t.Fatal("a report of the supervisor is not noticed")
		}
		time.Sleep(50 * time.Millisecond) // mostly, the look is over
		if err := os.RemoveAll(string(dir)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // mostly, the daemon's end is noticed
	}
}
