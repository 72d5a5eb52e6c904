// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

func TestTheProgramIsToldWhatWasSaid(t *testing.T) {
	for _, row := range []struct{ name, args, want string }{
		{"nothing", "", ""},
		{"not which cluster", "--name dev", ""},
		{"several profiles", "--nodes 3 --profile dgx-h100=2 --profile=./mine.yaml --cpu 8",
			"--cpu=8 --nodes=3 --profile=dgx-h100=2 --profile=./mine.yaml"},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := newRoot()
			c, args, err := root.Find(append([]string{"fleet"}, strings.Fields(row.args)...))
			if err == nil {
				err = c.ParseFlags(args)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(givenFlags(c.LocalNonPersistentFlags()), " "); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}
