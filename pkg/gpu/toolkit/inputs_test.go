// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A directory that changed while a slow answer was found may have changed after it was read.
func TestSettled(t *testing.T) {
	start := time.Now()
	end := start.Add(time.Minute)
	for _, row := range []struct {
		name     string
		modified time.Time
		want     bool
	}{
		{"an hour before", start.Add(-time.Hour), true},
		{"just before", start.Add(-time.Second), false},
		{"while it was found", start.Add(time.Second), false},
		{"just after", end.Add(time.Second), false},
		{"by a wrong clock", end.Add(time.Hour), true},
	} {
		in := inputs{"usr/lib64": {modified: unix.NsecToTimespec(row.modified.UnixNano())}}
		if got := in.settled(start, end); got != row.want {
			t.Errorf("modified %s: got %t, want %t", row.name, got, row.want)
		}
	}
}
