// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestProcessOf(t *testing.T) {
	const status = "kubeconfig  /var/lib/x/kubeconfig\ncontrol-plane  running (process 11)\n" +
		"node-1  running (process 12)\nnode-2  not running\n"
	for _, test := range []struct{ machine, want, says string }{
		{"node-1", "12", ""},
		{"node-2", "", "no process of node-2"},
		{"node", "", "no process of node:"},
	} {
		got, err := processOf(status, test.machine)
		if got != test.want || (err == nil) != (test.says == "") ||
			err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %q, %v, want %q, %q", test.machine, got, err, test.want, test.says)
		}
	}
}
