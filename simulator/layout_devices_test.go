// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"strings"
	"testing"
)

func TestChooseMajor(t *testing.T) {
	const few = "Character devices:\n  1 mem\n  4 /dev/vc/0\n\nBlock devices:\n120 nothing\n"
	all := "Character devices:\n"
	for _, major := range localMajors {
		all += fmt.Sprintf("%3d somebody\n", major)
	}
	for _, tt := range []struct {
		name    string
		wanted  int
		devices string
		want    string
	}{
		{"a new node", 0, few, "120 <nil>"},
		{"a node that has one", 61, few, "61 <nil>"},
		{"whose number has got a driver", 120, "Character devices:\n120 nvidia\n121 somebody\n", "122 <nil>"},
		{"all of the first range are taken", 0, strings.ReplaceAll(all, " 60 somebody\n", ""), "60 <nil>"},
		{"all are taken", 0, all, "every one for local use (60-63, 120-127) has a driver"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			taken, err := characterMajors(strings.NewReader(tt.devices))
			if err != nil {
				t.Fatal(err)
			}
			major, err := chooseMajor(tt.wanted, taken)
			if got := fmt.Sprint(major, " ", err); !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
