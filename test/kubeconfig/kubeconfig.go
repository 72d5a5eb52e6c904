// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes kubeconfigs for servers that tests start.
package kubeconfig

import (
	"os"
	"path/filepath"
	"testing"
)

// Write writes a kubeconfig for the server without users, and returns its path.
func Write(t testing.TB, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte("clusters: [{name: c, cluster: {server: '"+url+"'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
