// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// TestHangup: when the terminal is closed, a command ends by itself, so that defrag removes its rules.
func TestHangup(t *testing.T) {
	closed := sync.OnceFunc(func() { // several requests come at once; a second signal may come when nobody waits for it
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		closed()
		<-r.Context().Done()
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}],
users: [{name: c, user: {}}], contexts: [{name: c, context: {cluster: c, user: c}}]}`, server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	also := make(chan os.Signal, 1)
	signal.Notify(also, syscall.SIGHUP) // it is not ignored any more, if the tests run under nohup
	defer signal.Stop(also)
	before := os.Args
	defer func() { os.Args = before }()
	os.Args = []string{"kubectl-gpu", "--kubeconfig", file, "defrag"}
	if got := run(); got != 1 {
		t.Errorf("got exit status %d, want 1", got)
	}
}
