// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParseShares(t *testing.T) {
	for _, row := range []struct{ name, items, want, err string }{
		{"a profile without a weight has 1", "dgx-h100=2 l40s-x4", "[{dgx-h100 2} {l40s-x4 1}]", ""},
		{"an unknown profile", "dgx-h200", "[]", `no profile "dgx-h200"; built in are a16-x4, a30-x2, dgx-a100`},
		{"a file that is not there", "./mine.yaml=3", "[]",
			"read profile: open ./mine.yaml: no such file or directory"},
		{"a weight that is no number", "dgx-h100=many", "[]",
			`profile "dgx-h100=many": want PROFILE or PROFILE=WEIGHT, the weight a whole number from 1 to 1000000`},
		{"no weight at all", "dgx-h100=0", "[]", `profile "dgx-h100=0": want PROFILE or PROFILE=WEIGHT`},
		{"a profile twice", "dgx-h100 dgx-h100=2", "[{dgx-h100 1}]", "profile dgx-h100: it has a weight already"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := ParseShares(strings.Fields(row.items))
			if fmt.Sprint(got) != row.want {
				t.Errorf("got %v, want %s", got, row.want)
			}
			requireError(t, err, row.err)
		})
	}
}

func TestSpread(t *testing.T) {
	for _, row := range []struct {
		name  string
		count int
		items string
		want  string // the profiles, in order
		err   string
	}{
		{"profiles take turns", 4, "t4-x2 l40s-x4", "t4-x2 l40s-x4 t4-x2 l40s-x4", ""},
		{"by their weights", 7, "t4-x2=5 l40s-x4=2", "t4-x2 l40s-x4 t4-x2 t4-x2 t4-x2 l40s-x4 t4-x2", ""},
		{"the rare one comes in the middle of its turn", 4, "l40s-x4 t4-x2=3", "t4-x2 l40s-x4 t4-x2 t4-x2", ""},
		{"no nodes", 0, "t4-x2", "", "nodes: want 1 to 9999, got 0"},
		{"no profile", 1, "", "", "nodes: no profile to give them"},
	} {
		t.Run(row.name, func(t *testing.T) {
			shares, err := ParseShares(strings.Fields(row.items))
			requireError(t, err, "")
			nodes, err := Spread(row.count, shares, resource.MustParse("8"), resource.MustParse("64Gi"))
			requireError(t, err, row.err)
			var got []string
			for i, n := range nodes {
				got = append(got, n.Profile)
				if want := fmt.Sprintf("fleet-%04d 8 64Gi", i+1); n.Name+" "+n.CPU.String()+" "+
					n.Memory.String() != want {
					t.Errorf("got %+v, want %s", n, want)
				}
			}
			if got := strings.Join(got, " "); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

func requireError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("got error %v, want %q", err, want)
	}
}
