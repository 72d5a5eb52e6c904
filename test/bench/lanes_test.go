// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"
)

// TestLanes: what containerd reads for a pod is one run, runc runs for the sandbox and for the container, and what only
// one of three pods runs is left out.
func TestLanes(t *testing.T) {
	run := func(name string, begin, end float64) ran { // milliseconds
		const unit = float64(time.Millisecond)
		return ran{name: name, begin: time.Duration(begin * unit), end: time.Duration(end * unit)}
	}
	pod := func(more ...ran) parts {
		return parts{programs: append([]ran{run("runc create", 10, 15), run("runc create", 20, 30)}, more...)}
	}
	claim := pod(run(cdiRead, 5, 6), run(cdiRead, 12, 15))
	lanes := lanesOf([][]parts{{pod(), pod(), pod()}, {claim, claim, pod(run("ldconfig", 1, 2), run(cdiRead, 7, 8))}})
	var got string
	for _, l := range lanes {
		got += l.name
		for _, s := range l.runs {
			if s == nil {
				got += " -"
				continue
			}
			got += fmt.Sprintf(" %v+%v", s.begin, s.took)
		}
		got += "\n"
	}
	want := cdiRead + " - 5+4\nrunc create (sandbox) 10+5 10+5\nrunc create (container) 20+10 20+10\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
