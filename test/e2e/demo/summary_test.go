// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

func TestSummary(t *testing.T) {
	differs := demos.Failure{Kind: demos.ErrDifferent, Why: `"b" instead of "a"`, Diff: "- a\n+ b\n"}
	stuck := demos.Failure{Kind: kube.ErrStuck, Why: "pod worker-9 is Pending for 4m0s", Diff: "- a\n"}
	skipped := fmt.Errorf("%w: the cluster lacks X", errSkipped)
	for _, tc := range []struct {
		name  string
		demos []error // of a, b
		text  string
	}{
		{"all are right", []error{nil}, "a     2.0      right   What a shows\n" +
			"demos: 1 as their READMEs say, 0 not\n"},
		{"one is skipped", []error{nil, skipped}, "a     2.0      right    What a shows\n" +
			"b     2.0      skipped  What b shows\ndemos: 1 as their READMEs say, 0 not, 1 skipped\n"},
		{"one differs", []error{nil, differs}, "a     2.0      right    What a shows\n" +
			"b     2.0      differs  What b shows\ndemos: 1 as their READMEs say, 1 not\n" +
			"  differs from its README: b: \"b\" instead of \"a\"\n"},
		{"a slow one does not differ", []error{stuck}, "a     2.0      stuck   What a shows\n" +
			"demos: 0 as their READMEs say, 1 not\n" +
			"  slow or stuck, with nothing new to see: a: pod worker-9 is Pending for 4m0s\n"},
		{"one cannot be applied", []error{errors.New("no kind Pod\nmore")}, "a     2.0      not run  What a shows\n" +
			"demos: 0 as their READMEs say, 1 not\n  did not run: a: no kind Pod\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s summary
			for i, err := range tc.demos {
				name := string(rune('a' + i))
				s.add(demos.Demo{Name: name, Title: "What " + name + " shows"}, 2*time.Second, err)
			}
			head, got, _ := strings.Cut(s.String(), "\n")
			if got != tc.text || !strings.HasPrefix(head, "DEMO  SECONDS") {
				t.Errorf("got\n%swant\n%s", got, tc.text)
			}
		})
	}
}

func TestMeant(t *testing.T) {
	for _, tc := range []struct {
		line string
		add  bool
	}{
		{"saw in gpus: no nvidia-smi in this container", true},
		{"saw in gpus: no GPU device node in /dev", true},
		{"landed: pod only-local nowhere, it is Pending", true},
		{"saw:    /dev/nvidia0: allowed", false},
		{"landed: pod worker on node-1: gpu-3b-00-0, Tesla T4 (UUID: GPU-1)", false},
	} {
		want := tc.line
		if tc.add {
			want += ", as it should be"
		}
		if got := meant(tc.line); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
