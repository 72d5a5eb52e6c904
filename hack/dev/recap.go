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

// test runs go test with our stdout. If it fails, it repeats the tests' messages at the end, because the logs of failed
// tests push them out of sight and out of what CI keeps.
// The output also goes to the writers.
func (c command) test(ctx context.Context, also ...io.Writer) error {
	messages := &recap{}
	cmd := c.prepare(ctx)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(append(also, os.Stdout, messages)...), os.Stderr
	err := cmd.Run()
	if err != nil {
		fmt.Printf("\nthe messages of the tests again:\n%s", messages)
	}
	return c.wrap(err)
}

// recap keeps the last messages of tests, each with a few of the lines below it.
type recap struct {
	kept [][]byte
	more int // following lines that may belong to the last message
	rest []byte
}

const (
	recapLines = 120
	recapBelow = 6
)

// testMessage matches a line of t.Log or t.Error.
var testMessage = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

// Write accepts output in pieces of any size.
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
	case testMessage.Match(line):
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
