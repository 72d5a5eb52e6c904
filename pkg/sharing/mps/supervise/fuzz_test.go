// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// FuzzAnswers reads any answers of the control program. Limits count as set only if the answers say so, and a PID that
// goes back to the program is one.
func FuzzAnswers(f *testing.F) {
	for _, text := range []string{"", "30.0\n1G\n17\n18", "30\n1024M\n", "30.0 2G", "NaN 1G", "3e1 1G -5 +7 0x1 017",
		"Inf", "30.0 1GG", "30.0 G", "30.0 1G 99999999999999999999 quit"} {
		f.Add(text, 30, uint64(1<<30))
		f.Add(text, 0, uint64(0))
	}
	f.Fuzz(func(t *testing.T, text string, percent int, memory uint64) {
		limits := mps.Daemon{ID: "g0", GPUs: []gpu.UUID{"GPU-1", "GPU-2"}, ThreadPercentage: percent}
		if memory > 0 {
			limits.Memory = map[gpu.UUID]uint64{"GPU-1": memory}
		}
		answers := strings.Fields(text)
		servers, err := checkLimits(limits, slices.Clone(answers))
		if err != nil {
			if len(servers) > 0 {
				t.Errorf("got the servers %v and error %v", servers, err)
			}
			return
		}
		if asked := len(questionsFor(limits)); len(answers) < asked {
			t.Errorf("%d answers to %d questions count as limits that are set", len(answers), asked)
		}
		for _, pid := range servers {
			if strings.Trim(pid, "0123456789") != "" || strings.Trim(pid, "0") == "" {
				t.Errorf("%q goes back to the program as a PID", pid)
			}
		}
		for _, command := range commandsFor(limits, unknownLimits(limits), "default_", "") {
			if strings.ContainsAny(command, "\n;") {
				t.Errorf("%q is more than a command", command)
			}
		}
		lower := limits
		lower.ThreadPercentage = percent%100 + 1
		if _, err := checkLimits(lower, slices.Clone(answers)); err == nil && lower.ThreadPercentage != percent &&
			percent != 0 {
			t.Errorf("%q says both %d and %d percent", text, percent, lower.ThreadPercentage)
		}
	})
}

// FuzzOutput reads any output of a daemon, in any parts. What is found does not depend on the parts, and a line without
// an end takes no more memory.
func FuzzOutput(f *testing.F) {
	const failure = "[2026-01-01 Control 5] Server 12 exited with status 1\n"
	for _, text := range []string{"", failure, failure + failure, "Server 1 exited with status 0\n" + failure,
		strings.Repeat("x", 5000) + failure, strings.TrimSpace(failure) + strings.Repeat(" x", 5000) + "\n",
		failure[:40] + strings.Repeat("y", 5000) + "\n" + failure, "\n\n\x00\xff"} {
		f.Add(text, uint16(1))
		f.Add(text, uint16(3000))
	}
	f.Fuzz(func(t *testing.T, text string, size uint16) {
		whole, parts := newServers(), newServers()
		out, ends := &tail{}, &tail{}
		write := func(to *servers, end *tail, b []byte) {
			if n, err := to.Write(b); n != len(b) || err != nil {
				t.Errorf("wrote %d of %d bytes, error %v", n, len(b), err)
			}
			_, _ = end.Write(b)
			if len(to.line) > maxLine || len(end.text) > tailSize {
				t.Errorf("%d bytes of a line are kept, and %d of the output", len(to.line), len(end.text))
			}
		}
		write(whole, out, []byte(text))
		for part := range slices.Chunk([]byte(text), int(size)+1) {
			write(parts, ends, part)
		}
		said := func(s *servers, end *tail) string {
			count, last := s.failures()
			return fmt.Sprintf("%d %q %q %q", count, last, end.firstLine(), end.lastLines())
		}
		if got, want := said(parts, ends), said(whole, out); got != want {
			t.Errorf("in parts of %d: got %s, want %s", int(size)+1, got, want)
		}
		if strings.ContainsAny(out.lastLines(), "\r\n") {
			t.Errorf("%q is more than a line", out.lastLines())
		}
	})
}
