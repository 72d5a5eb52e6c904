// SPDX-License-Identifier: Apache-2.0

// Package node gives pods of its node the GPUs of servers: it prepares claims for remote devices, and relays the
// connections of their containers.
package node

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

// session is a prepared claim, as its record has it.
type session struct {
	Claim  types.UID            `json:"claim"`
	Of     types.NamespacedName `json:"of,omitzero"` // the claim; empty in records of 0.1.0
	Device string               `json:"device"`
	remote.Session
	// Token is what the client in the container shows.
	Token string `json:"token"`
	// Certificate, also that of the authority, and Key are what this node shows to the server, in PEM.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// newToken returns a token of 256 random bits.
func newToken() string {
	token := make([]byte, sha256.Size)
	_, _ = rand.Read(token) // never fails
	return hex.EncodeToString(token)
}

// sessions are the prepared claims of the node, each in a file of dir that only root reads.
type sessions struct {
	dir string

	mu      sync.Mutex
	byClaim map[types.UID]session
	// byToken has digests, so that the time of a look tells nothing about a token.
	byToken map[[sha256.Size]byte]types.UID
	conns   map[types.UID]map[net.Conn]bool
}

// openSessions reads the records of dir, and makes it if it is absent.
func openSessions(dir string) (*sessions, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &sessions{dir: dir, byClaim: map[types.UID]session{}, byToken: map[[sha256.Size]byte]types.UID{},
		conns: map[types.UID]map[net.Conn]bool{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var one session
		if err := json.Unmarshal(text, &one); err != nil { // the claim gets another session when it is prepared again
			klog.Background().Error(err, "Record of a session ignored", "file", file)
			continue
		}
		s.note(one)
	}
	return s, nil
}

func (s *sessions) file(claim types.UID) string { return filepath.Join(s.dir, string(claim)+".json") }

// note replaces the session of the claim.
func (s *sessions) note(one session) {
	delete(s.byToken, sha256.Sum256([]byte(s.byClaim[one.Claim].Token)))
	s.byClaim[one.Claim] = one
	s.byToken[sha256.Sum256([]byte(one.Token))] = one.Claim
}

// put records a session, so that a restart of the plugin finds it. After a power cut its containers are gone, too.
func (s *sessions) put(one session) error {
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(s.file(one.Claim), text, 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(one)
	return nil
}

func (s *sessions) get(claim types.UID) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.byClaim[claim]
	return one, ok
}

func (s *sessions) all() []session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byClaim))
}

// remove ends a session with its connections, and removes its record. It is no error if there is none.
func (s *sessions) remove(claim types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byToken, sha256.Sum256([]byte(s.byClaim[claim].Token)))
	for conn := range s.conns[claim] {
		_ = conn.Close()
	}
	if err := os.Remove(s.file(claim)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.byClaim, claim)
	return nil
}

// open returns the session with the token, and notes a connection of it.
func (s *sessions) open(token string, conn net.Conn) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim, ok := s.byToken[sha256.Sum256([]byte(token))]
	if !ok {
		return session{}, false
	}
	if s.conns[claim] == nil {
		s.conns[claim] = map[net.Conn]bool{}
	}
	s.conns[claim][conn] = true
	return s.byClaim[claim], true
}

func (s *sessions) close(claim types.UID, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.conns[claim], conn); len(s.conns[claim]) == 0 {
		delete(s.conns, claim)
	}
}
