// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/e2e/demos"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

func TestSummary(t *testing.T) {
	differs := demos.Failure{Kind: demos.ErrDifferent, Why: `"b" instead of "a"`, Diff: "- a\n+ b\n"}
	stuck := demos.Failure{Kind: kube.ErrStuck, Why: "pod worker-9 is Pending for 4m0s", Diff: "- a\n"}
	skipped := fmt.Errorf("%w: the cluster lacks X", errSkipped)
	for _, tc := range []struct {
		name  string
		demos map[string]error
		text  string
	}{
		{"all are right", map[string]error{"a": nil}, "demos: 1 as their READMEs say, 0 not\n"},
		{"one is skipped", map[string]error{"a": nil, "b": skipped},
			"demos: 1 as their READMEs say, 0 not, 1 skipped\n"},
		{"one differs", map[string]error{"a": nil, "b": differs},
			"demos: 1 as their READMEs say, 1 not\n  differs from its README: b: \"b\" instead of \"a\"\n"},
		{"a slow one does not differ", map[string]error{"replicas": stuck},
			"demos: 0 as their READMEs say, 1 not\n" +
				"  slow or stuck, with nothing new to see: replicas: pod worker-9 is Pending for 4m0s\n"},
		{"one cannot be applied", map[string]error{"a": errors.New("no kind Pod\nmore")},
			"demos: 0 as their READMEs say, 1 not\n  did not run: a: no kind Pod\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s summary
			for name, err := range tc.demos {
				s.add(name, err)
			}
			if got := s.String(); got != tc.text {
				t.Errorf("got\n%swant\n%s", got, tc.text)
			}
		})
	}
}
