// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gpudra/gpu-dra-driver/internal/controller"
)

func TestFlags(t *testing.T) {
	const needed = "--name=x --namespace=y "
	for _, tc := range []struct{ name, flags, want string }{
		{"what is needed", needed, ""},
		{"no name", "--namespace=y", "--name is required"},
		{"no namespace", "--name=x --namespace=", "--namespace (or NAMESPACE) is required"},
		{"one rank", needed + "--strongest-ranks=1", "--strongest-ranks 1: must be from 2 to 8"},
		{"nine ranks", needed + "--strongest-ranks=9", "--strongest-ranks 9: must be from 2 to 8"},
		{"families and models", needed + "--convert-families=hami,kai --convert-model=15Gi/65 " +
			"--convert-model=80Gi/989", ""},
		{"gpushare in MiB", needed + "--gpushare-memory-unit=MiB", ""},
		{"an unknown family", needed + "--convert-families=hamii",
			"--convert-families hamii: want some of gpu-manager, "},
		{"no events about claims that wait", needed + "--waiting-events-after=0", ""},
		{"events about all claims", needed + "--waiting-events-after=1ms",
			"--waiting-events-after 1ms: must be 0 or at least 1s"},
		{"a certificate that ends at once", needed + "--certificate-lifetime=1s",
			"--certificate-lifetime 1s: must be at least 1m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c controller.Config
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			addFlags(flags, &c)
			if err := flags.Parse(strings.Fields(tc.flags)); err != nil {
				t.Fatal(err)
			}
			err := check(c)
			if got := err == nil; got != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestModels(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"15Gi/65", "15Gi/65"}, {"46068Mi/362", "46068Mi/362"}, {"15Gi", ""}, {"15Gi/", ""}, {"15/65", ""},
		{"-1Gi/65", ""}, {"15Gi/0", ""}, {"a/b", ""}, {"", ""},
	} {
		var m models
		if err := m.Set(tc.text); (err == nil) != (tc.want != "") || m.String() != tc.want {
			t.Errorf("%q: got %q, error %v, want %q", tc.text, m.String(), err, tc.want)
		}
	}
}
