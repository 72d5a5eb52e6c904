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
		{"idle pods are warned a second before", needed + "--idle-warning=1s", ""},
		{"idle pods are not warned", needed + "--idle-warning=1ms", "--idle-warning 1ms: must be 0 or at least 1s"},
		{"nine ranks", needed + "--strongest-ranks=9", "--strongest-ranks 9: must be from 2 to 8"},
		{"pods of another scheduler preempt", needed + "--preempt --preempt-schedulers=mine,default-scheduler", ""},
		{"pods of no scheduler preempt", needed + "--preempt --preempt-schedulers=",
			"--preempt-schedulers: must name at least one scheduler, such as default-scheduler"},
		{"no events about claims that wait", needed + "--waiting-events-after=0", ""},
		{"events about all claims", needed + "--waiting-events-after=1ms",
			"--waiting-events-after 1ms: must be 0 or at least 1s"},
		{"a certificate that ends at once", needed + "--certificate-lifetime=1s",
			"--certificate-lifetime 1s: must be at least 1m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o controller.Options
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			addFlags(flags, &o)
			if err := flags.Parse(strings.Fields(tc.flags)); err != nil {
				t.Fatal(err)
			}
			err := check(o)
			if got := err == nil; got != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
