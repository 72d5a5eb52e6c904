// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// FuzzFiles reads any bytes as a requested daemon and as its state. A daemon counts as ready only by a report about
// what is requested now. A new request replaces what cannot be read, and in the end nothing is left.
func FuzzFiles(f *testing.F) {
	const request = `{"id": "g0", "gpus": ["GPU-1"], "memory": {"GPU-1": 1073741824}, "ask": "x"}`
	for _, row := range [][2]string{{request, `{"ready": true, "wanted": "` + digest([]byte(request)) + `"}`},
		{request, `{"ready": true}`}, {`{"id": "../g1"}`, `null`}, {`{`, `{`}, {``, ``}, {`null`, `[]`},
		{`{"id": "g0", "gpus": [5], "memory": -1}`, `{"pid": 1e30, "restarts": -9223372036854775808}`}} {
		f.Add([]byte(row[0]), []byte(row[1]))
	}
	base := tmpfs.Dir(f)
	f.Fuzz(func(t *testing.T, requested, state []byte) {
		top, err := os.MkdirTemp(base, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		dir := Dir(filepath.Join(top, "mps"))
		if err := errors.Join(os.MkdirAll(filepath.Join(string(dir), "g0"), 0o755),
			os.WriteFile(filepath.Join(string(dir), "g0", RequestedFile), requested, 0o600),
			os.WriteFile(filepath.Join(string(dir), "g0", stateFile), state, 0o600)); err != nil {
			t.Fatal(err)
		}
		found, unreadable := dir.Requested()
		switch {
		case len(found) == 1 && unreadable == nil && found[0].ID == "g0" && found[0].Digest == digest(requested):
		case len(found) == 0 && unreadable != nil:
		default:
			t.Errorf("got the daemons %+v and error %v", found, unreadable)
		}
		if !dir.IsRequested("g0") {
			t.Error("a request that cannot be read counts as none")
		}
		if err := dir.Check("g0"); err == nil {
			t.Error("a daemon is ready without a supervisor")
		}
		if s, err := dir.State("g0"); err == nil && s.Ready {
			if err := dir.ResetStates(); err != nil {
				t.Error(err)
			}
			after, err := dir.State("g0")
			if err != nil || after.Ready || after.Restarts != s.Restarts+1 {
				t.Errorf("got %+v after a reset of %+v, error %v", after, s, err)
			}
		}
		want := Daemon{ID: "g0", GPUs: []gpu.UUID{"GPU-1"}, Memory: map[gpu.UUID]uint64{"GPU-1": 1 << 30},
			ThreadPercentage: 30}
		if err := dir.Request(want); err != nil {
			t.Fatal(err)
		}
		found, err = dir.Requested()
		if err != nil || len(found) != 1 {
			t.Fatalf("got %+v and error %v, want what was requested", found, err)
		}
		got := found[0].Daemon
		if got.Nonce == "" && unreadable != nil {
			t.Error("a new daemon has no nonce")
		}
		got.Nonce, got.SharedMemory = "", 0 // those of the daemon that was requested before
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if err := errors.Join(dir.Release("g0"), dir.Clear("g0")); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(string(dir))
		above, err2 := os.ReadDir(top)
		if err := errors.Join(err, err2); err != nil || len(left) > 0 || len(above) != 1 {
			t.Errorf("got %v in the directory and %v above it, error %v", left, above, err)
		}
	})
}
