// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// TestKeptRecords: a record of each format, as earlier versions have written it, is released. What its claim has
// changed is undone, and what somebody else has made stays.
func TestKeptRecords(t *testing.T) {
	const made, existing = "6d8ba0b6-2d0c-8c5e-9a31-2f6c3c2a5d10", "6d8ba0b6-2d0c-4c5e-9a31-2f6c3c2a5d11"
	states := map[string]struct {
		prepared func(*fixture)
		left     string
	}{
		"v1": {func(*fixture) {}, ""},
		"v2": {func(w *fixture) {
			w.settings["GPU-1"] = gpu.Settings{Mode: gpu.ExclusiveProcess}
			w.settings["GPU-4"] = gpu.Settings{Interval: gpu.IntervalLong}
		}, ""},
		"v2 with a compute mode": {func(w *fixture) {
			w.settings["GPU-1"] = gpu.Settings{Mode: gpu.ExclusiveProcess}
		}, "GPU-1: time slice Default, compute mode PROHIBITED"},
		"v3": {func(w *fixture) {
			w.mig["GPU-1"] = true
			w.partitions[gpu.Placement{Parent: "GPU-1", Profile: "3g.40gb", Start: 4, Size: 4}] = "MIG-4"
			w.partitions[gpu.Placement{Parent: "GPU-1", Profile: "1g.10gb+me", Start: 2, Size: 1}] = "MIG-2"
		}, "GPU-1: 1g.10gb+me at 2, MIG-\nGPU-1: mig"},
		"v4": {func(w *fixture) {
			w.bound[gpu.PCIAddress{Bus: 1}], w.bound[gpu.PCIAddress{Bus: 1, Function: 1}] = true, true
			w.bound[gpu.PCIAddress{Bus: 2}] = true
		}, "0000:02:00.0: vfio-pci\nGPU-1: persistent"},
		"v5": {func(w *fixture) { w.vgpus[made], w.vgpus[existing] = "A16-4Q made", "A16-8Q by hand" },
			"vgpu A16-8Q by hand"},
		"v6": {func(w *fixture) {
			must(w.t, w.mount("", filepath.Join(w.dir, "ipc", "66666666-2222-3333-4444-666666666666"), 64<<20))
		}, ""},
	}
	files, err := filepath.Glob("../checkpoint/testdata/v*/*.json")
	if err != nil || len(files) < len(states) {
		t.Fatalf("got records %v, error %v, want one of each of %d formats", files, err, len(states))
	}
	for _, file := range files {
		format := filepath.Base(filepath.Dir(file))
		if format == "v2" && strings.HasPrefix(filepath.Base(file), "66666666") {
			format += " with a compute mode"
		}
		t.Run(format, func(t *testing.T) {
			state, ok := states[format]
			if !ok {
				t.Fatal("this test does not know the format")
			}
			w := newFixture(t)
			w.run("plug 4; move gpu-1 gpu-01-00-0; move gpu-2 gpu-02-00-0; move gpu-4 gpu-04-00-0")
			state.prepared(w)
			keep(t, file, filepath.Join(w.stateDir(), "claims"))
			p := w.preparer()
			p.BootID = "boot"
			uid := types.UID(strings.TrimSuffix(filepath.Base(file), ".json"))
			if err := p.Unprepare(w.context(), sharing.Claim{Name: "claim", UID: uid}); err != nil {
				t.Error(err)
			}
			lines := strings.Split(w.String(), "\n")
			lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "cdi common") })
			if diff := cmp.Diff(strings.Join(lines, "\n"), state.left); diff != "" {
				t.Errorf("state: got - want +\n%s", diff)
			}
			if marks, _ := filepath.Glob(filepath.Join(w.stateDir(), "devices", "*", string(uid))); len(marks) > 0 {
				t.Errorf("left: %v", marks)
			}
		})
	}
}

// keep copies the record of an earlier version to the records of the node.
func keep(t *testing.T, file, dir string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
