// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A record that cannot be read keeps the plugin from nothing, and a session that is replaced leaves no token.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "torn.json"), []byte(`{"claim":`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"old", "new"} {
		s, err := openSessions(dir) // again, as after a restart
		if err != nil {
			t.Fatal(err)
		}
		if err := s.put(session{Claim: "claim", Token: "before " + token}); err != nil {
			t.Fatal(err)
		}
		if err := s.put(session{Claim: "claim", Token: token}); err != nil {
			t.Fatal(err)
		}
		conn, _ := net.Pipe()
		if _, ok := s.open("before "+token, conn); ok {
			t.Errorf("the token that %s replaces is accepted", token)
		}
		if _, ok := s.open(token, conn); !ok {
			t.Errorf("the token %s is refused", token)
		}
	}
}
