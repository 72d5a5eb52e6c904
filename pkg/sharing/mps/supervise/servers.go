// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"sync"
)

// servers finds the servers that end with an error in the output of a daemon, which says it nowhere else: the commands
// that start and list servers succeed. Clients can write into that output too, so what it says may be false.
type servers struct {
	// failed signals a failure since the last call of failures.
	failed chan struct{}

	line []byte // the last one, as far as it is known

	mu    sync.Mutex
	count int
	last  string // how the last one failed
}

func newServers() *servers { return &servers{failed: make(chan struct{}, 1)} }

// serverEnded is what the daemon prints when a server ends. NVIDIA's programs of R535 to R555 do. An exit status has at
// most three digits.
var serverEnded = regexp.MustCompile(`Server \d+ exited with status (\d{1,3})\b`) // the PID is in the log only

// maxLine is how much of a line is searched, in bytes.
const maxLine = 4 << 10

// Write never fails.
func (s *servers) Write(b []byte) (int, error) {
	written := len(b)
	for {
		line, rest, found := bytes.Cut(b, []byte("\n"))
		s.line = append(s.line, line[:min(len(line), maxLine-len(s.line))]...)
		if !found {
			return written, nil
		}
		s.search(s.line)
		s.line, b = s.line[:0], rest
	}
}

func (s *servers) search(line []byte) {
	found := serverEnded.FindSubmatch(line)
	if found == nil {
		return
	}
	status, err := strconv.Atoi(string(found[1]))
	if err != nil || status == 0 { // without an error, it has made room for another user
		return
	}
	s.mu.Lock()
	s.count, s.last = s.count+1, fmt.Sprint("a server exited with status ", status)
	s.mu.Unlock()
	select {
	case s.failed <- struct{}{}:
	default: // already signalled
	}
}

// failures returns how many servers have ended with an error, and how the last one did.
func (s *servers) failures() (count int, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.last
}
