// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
)

// After a violation, the claims and slices are there as they were when it was seen, and at the look before.
func TestLooksAreKept(t *testing.T) {
	look := func(claim string) check.World {
		return check.World{Claims: []resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Name: claim}}},
			Slices: []resourceapi.ResourceSlice{{ObjectMeta: metav1.ObjectMeta{Name: "slice-of-" + claim}}}}
	}
	l := &lab{looked: [2]check.World{look("earlier"), look("whole")}}
	l.say("VIOLATION %s", "20Gi of 16Gi")
	dir := t.TempDir()
	if err := l.keep(dir); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]string{
		"look-before.yaml": {"name: earlier\n", "name: slice-of-earlier\n"},
		"look.yaml":        {"name: whole\n", "name: slice-of-whole\n"},
		"chaos.log":        {"] VIOLATION 20Gi of 16Gi\n"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s: got\n%s\nwant %q", file, text, part)
			}
		}
	}
}
