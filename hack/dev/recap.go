// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
)

// test runs a command of go test on our own output. When it fails, what the tests said comes once more at the end: the logs that
// failed tests print push it out of sight, and of what CI keeps.
func (c command) test(ctx context.Context) error {
	said := &recap{}
	cmd := c.prepare(ctx)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, said), os.Stderr
	err := cmd.Run()
	if err != nil {
		fmt.Printf("\nonce more, what the tests said:\n%s", said)
	}
	return c.wrap(err)
}

// recap keeps the last things that tests have said, each with a few of the lines below it.
type recap struct {
	kept [][]byte
	more int // lines to come that may belong to the last
	rest []byte
}

const (
	recapLines = 120
	recapBelow = 6
)

// saidByTest is a line of t.Log or t.Error.
var saidByTest = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

// Write takes the output in any pieces.
func (r *recap) Write(p []byte) (int, error) {
	r.rest = append(r.rest, p...)
	for {
		end := bytes.IndexByte(r.rest, '\n')
		if end < 0 {
			return len(p), nil
		}
		r.line(r.rest[:end+1])
		r.rest = r.rest[end+1:]
	}
}

func (r *recap) line(line []byte) {
	switch {
	case saidByTest.Match(line):
		r.more = 1 + recapBelow
	case bytes.HasPrefix(line, []byte("=== ")) || bytes.Contains(line, []byte("--- FAIL")):
		r.more = 0
	}
	if r.more == 0 {
		return
	}
	r.more--
	r.kept = append(r.kept, slices.Clone(line))
	if extra := len(r.kept) - recapLines; extra > 0 {
		r.kept = r.kept[extra:]
	}
}

func (r *recap) String() string { return string(bytes.Join(r.kept, nil)) }
