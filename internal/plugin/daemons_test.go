// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

func TestARestartOfADaemonIsToldToTheClaimsThatUseIt(t *testing.T) {
	records, err := checkpoint.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for claim, daemon := range map[string]string{"a": "gpu-1", "b": "gpu-1", "c": "gpu-2", "d": "gpu-3"} {
		rec := checkpoint.Record{Phase: checkpoint.Prepared, Claim: sharing.Claim{Namespace: "ns", Name: claim, UID: types.UID(claim)}}
		rec.Plan.Assignments = []sharing.Assignment{{Device: daemon, MPS: &sharing.Client{Daemon: daemon}}}
		if err := records.Put(rec); err != nil {
			t.Fatal(err)
		}
	}
	dir := mps.Dir(t.TempDir())
	var told []string
	w := &daemonWatch{daemons: dir, records: records, restarted: func(claim sharing.Claim, daemon string) {
		told = append(told, fmt.Sprint(claim, " ", daemon))
	}}
	for _, look := range []struct {
		name     string
		restarts map[string]int
		want     string
	}{
		{"what was before the first look is not told", map[string]int{"gpu-1": 3, "gpu-2": 0}, "[]"},
		{"nothing has happened", map[string]int{"gpu-1": 3, "gpu-2": 0}, "[]"},
		{"one was started again", map[string]int{"gpu-1": 4, "gpu-2": 0}, "[ns/a gpu-1 ns/b gpu-1]"},
		{"which is told once", map[string]int{"gpu-1": 4, "gpu-2": 1}, "[ns/c gpu-2]"},
		{"a new one was started again before it was looked at", map[string]int{"gpu-1": 4, "gpu-2": 1, "gpu-3": 1}, "[ns/d gpu-3]"},
	} {
		for id, restarts := range look.restarts {
			if err := dir.Want(mps.Daemon{ID: id}); err != nil {
				t.Fatal(err)
			}
			if err := dir.Report(id, mps.State{Ready: true, Restarts: restarts}); err != nil {
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
