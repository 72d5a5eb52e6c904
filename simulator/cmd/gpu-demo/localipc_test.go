// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestGiveAndTake: what is behind a descriptor comes through the directory for local IPC, to each who asks.
func TestGiveAndTake(t *testing.T) {
	t.Setenv(localIPCVariable, t.TempDir())
	ctx, end := context.WithCancel(t.Context())
	var said bytes.Buffer
	given := make(chan error, 1)
	go func() { given <- run(ctx, []string{"give", "a model"}, &said) }()
	for range 2 {
		var got bytes.Buffer
		if err := run(t.Context(), []string{"take"}, &got); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("user %d has taken a file descriptor, and reads: a model\n", os.Getuid())
		if got.String() != want {
			t.Errorf("got %q, want %q", got.String(), want)
		}
	}
	end()
	if err := <-given; err != nil {
		t.Error(err)
	}
	if want := "listens in " + os.Getenv(localIPCVariable) + ", "; !strings.Contains(said.String(), want) {
		t.Errorf("got %q, want %q in it", said.String(), want)
	}
}
