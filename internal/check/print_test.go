// SPDX-License-Identifier: Apache-2.0

package check

import "testing"

func TestCounted(t *testing.T) {
	for n, want := range map[int]string{0: "0 errors", 1: "1 error", 2: "2 errors"} {
		if got := counted(n, "error"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
