// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
)

func TestOnlyLeaderReports(t *testing.T) {
	leader := make(chan struct{})
	close(leader)
	all, some := func() error { return nil }, func() error { return errors.New("slices are still being read") }
	for _, tc := range []struct {
		name    string
		elected chan struct{}
		known   func() error
		want    bool
	}{
		{"the leader", leader, all, true},
		{"a leader with an incomplete view", leader, some, false},
		{"another replica", make(chan struct{}), all, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := isReportingLeader(tc.elected, tc.known)(); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestProfilesAreServedOnRequestAndLocally(t *testing.T) {
	for port, want := range map[int]string{0: "", 6060: "127.0.0.1:6060"} {
		if got := (Options{ProfilesPort: port}).profiles(); got != want {
			t.Errorf("port %d: got %q, want %q", port, got, want)
		}
	}
}

// The authorities of API servers are those of the file, if there is one to be.
func TestAuthoritiesOfAPIServers(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"gitVersion": "v1.37.0"}`)
	}))
	defer server.Close()
	authorities := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authorities, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, file   string
		some, failed bool
	}{
		{"no file", "", false, false},
		{"a file", authorities, true, false},
		{"a file that is missing", authorities + "x", false, true},
	} {
		o := Options{WebhookAuthorities: row.file, REST: &rest.Config{Host: server.URL,
			TLSClientConfig: rest.TLSClientConfig{CAData: text}}}
		g, err := o.gate(nil)
		if (err != nil) != row.failed || err == nil && (g.Authorities != nil) != row.some {
			t.Errorf("%s: got %+v, %v, want authorities: %t, an error: %t", row.name, g, err, row.some, row.failed)
		}
	}
}
