// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// FuzzRecords opens a directory with any bytes as a record and as its mark on a device. Each record is read or refused,
// none is lost, what it holds is held, and nothing is written elsewhere.
func FuzzRecords(f *testing.F) {
	for _, file := range []string{"v1", "v2", "v3"} {
		found, err := filepath.Glob(filepath.Join("testdata", file, "*.json"))
		if err != nil || len(found) == 0 {
			f.Fatalf("no records of %s: %v", file, err)
		}
		for _, path := range found {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(strings.TrimSuffix(filepath.Base(path), recordSuffix), data, "gpu-3b-00-0")
		}
	}
	for _, assignments := range []string{`[]`, `[{}]`, `[{"device": "gpu-1"}, {"device": "gpu-2-mig-1g10gb-0"}]`,
		`[{"device": "../../x"}]`, `[{"device": "-mig-x"}]`, `[{"device": ".lock"}]`, `null`} {
		f.Add("u1", []byte(`{"version": 1, "phase": "Prepared", "claim": {"uid": "u1"}, "plan": {"assignments": `+
			assignments+`}}`), "")
	}
	f.Add("u1", []byte(`{"version": 9, "phase": "Prepared", "claim": {"uid": "u1"}}`), "gpu-1 gpu-2")
	f.Add("u1", []byte(`{"version": 1, "phase": "Prepared", "claim": {"uid": "u1"}, "grants": [{}]}`), "../x\n/x\n.")
	f.Add("", []byte("{"), "")
	f.Add("u[1", []byte("{"), "gpu-1")
	f.Add("*", []byte("{"), "\x00")
	base := tmpfs.Dir(f)
	f.Fuzz(func(t *testing.T, name string, data []byte, mark string) {
		if strings.ContainsAny(name, "/\x00") || len(name) > 200 || name == "other" {
			return // no name of a file, or of the other claim
		}
		top, err := os.MkdirTemp(base, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		dir := filepath.Join(top, "a", "b")
		put(t, open(t, dir), record("other", Prepared, "gpu-other"))
		uid, file := types.UID(name), filepath.Join(dir, "claims", name+recordSuffix)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if mark != "" && !isHidden(name) {
			marked := filepath.Join(dir, "devices", "gpu-marked")
			if err := errors.Join(os.MkdirAll(marked, 0o700), os.WriteFile(filepath.Join(marked, name), []byte(mark),
				0o600)); err != nil {
				t.Fatal(err)
			}
		}

		r := open(t, dir)
		if got := holders(r, uid, "gpu-other"); got != "other" {
			t.Errorf("gpu-other is held by %q, want other", got)
		}
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, data) {
			t.Errorf("the record has become %q, error %v", now, err)
		}
		rec, err := r.Get(uid)
		switch {
		case isHidden(name):
			if err == nil || errors.Is(err, ErrUnreadable) {
				t.Errorf("got error %v of a hidden file, want one about the name", err)
			}
		case err == nil:
			requireHeld(t, r, rec)
		case !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), file):
			t.Errorf("got error %v, want a record that is unreadable, with its file", err)
		default:
			requireBlocked(t, r)
		}
		entries, err := os.ReadDir(top)
		above, err2 := os.ReadDir(filepath.Join(top, "a"))
		within, err3 := os.ReadDir(dir)
		if err := errors.Join(err, err2, err3); err != nil || len(entries)+len(above)+len(within) != 1+1+3 {
			t.Errorf("got %v, %v and %v, error %v: something is written elsewhere", entries, above, within, err)
		}
	})
}

// requireHeld: a record that can be read holds its devices, can be written again, and is gone when it is deleted.
func requireHeld(t *testing.T, r *Records, rec PreparedClaim) {
	t.Helper()
	for _, device := range rec.Plan.Devices() {
		if got := holders(r, "", device); !strings.Contains(" "+got+" ", " "+string(rec.Claim.UID)+" ") {
			t.Errorf("%s is held by %q, want %s", device, got, rec.Claim.UID)
		}
	}
	before, err := encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Put(rec); err != nil {
		t.Fatal(err)
	}
	again, err := r.Get(rec.Claim.UID)
	if err != nil {
		t.Fatal(err)
	}
	after, err := encode(again)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("written again: got %s, want %s, error %v", after, before, err)
	}
	if err := r.Delete(rec); err != nil {
		t.Fatal(err)
	}
	for _, device := range rec.Plan.Devices() {
		if got := holders(r, "other", device); got != "" {
			t.Errorf("%s is held by %q after the record was deleted", device, got)
		}
	}
}

// requireBlocked: a record that cannot be read keeps at least one device from others.
func requireBlocked(t *testing.T, r *Records) {
	t.Helper()
	dirs, err := os.ReadDir(r.devicesDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if _, err := r.Holders([]string{dir.Name()}, ""); errors.Is(err, ErrUnreadable) {
			return
		}
	}
	t.Errorf("nobody is kept from the devices of a record that cannot be read: %v", dirs)
}
