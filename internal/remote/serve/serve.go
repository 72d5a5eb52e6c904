// SPDX-License-Identifier: Apache-2.0

// Package serve stands before the server of an engine: only nodes with the certificate of a session that the controller
// has admitted reach it.
package serve

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

const (
	// handshakeTimeout limits how long a client without a certificate holds a connection.
	handshakeTimeout = 10 * time.Second
	// maxSessionList is the size limit of a SessionList, in bytes: for thousands of claims.
	maxSessionList = 1 << 20
)

// Server relays the connections of admitted sessions to the engine.
type Server struct {
	// Pod is the UID of the server pod. Certificates for other servers are refused.
	Pod types.UID
	// Certificates is a directory with tls.crt, tls.key and ca.crt. It is read at each handshake.
	Certificates string
	// Dial connects to the engine.
	Dial func() (net.Conn, error)
	Log  *slog.Logger

	mu       sync.Mutex
	sessions map[types.UID]map[net.Conn]bool // by claim; the admitted ones
	answered bool                            // by the engine
}

// Serve takes connections until ctx ends. Those that are open then stay open.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if _, err := s.tls(nil); err != nil {
		return err
	}
	calls := &listener{Listener: l, conns: make(chan net.Conn), ended: ctx.Done()}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+remote.SessionsPath, s.put)
	controller := &http.Server{Handler: mux, ReadTimeout: handshakeTimeout, WriteTimeout: handshakeTimeout,
		IdleTimeout: time.Minute}
	go func() { _ = controller.Serve(calls) }()
	defer controller.Close()
	failed := func(err error) { s.Log.Warn("connection not accepted", "reason", err) }
	remote.Accept(ctx, l, failed, func(conn net.Conn) {
		if err := s.handle(ctx, conn, calls.conns); err != nil {
			s.Log.Warn("connection refused", "from", conn.RemoteAddr(), "reason", err)
			_ = conn.Close()
		}
	})
	return nil
}

// tls returns how to take a connection, with the certificates of now.
func (s *Server) tls(*tls.ClientHelloInfo) (*tls.Config, error) {
	var files [3][]byte
	for i, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		text, err := os.ReadFile(filepath.Join(s.Certificates, name))
		if err != nil {
			return nil, err
		}
		files[i] = text
	}
	return remote.ServerTLS(files[0], files[1], files[2])
}

// handle relays the connection of a session until it ends, and gives one of the controller to calls.
func (s *Server) handle(ctx context.Context, raw net.Conn, calls chan<- net.Conn) error {
	conn := tls.Server(raw, &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: s.tls})
	shake, done := context.WithTimeout(ctx, handshakeTimeout)
	defer done()
	if err := conn.HandshakeContext(shake); err != nil {
		return err
	}
	identity, err := remote.IdentityOf(conn.ConnectionState().PeerCertificates[0])
	if err != nil {
		return err
	}
	if identity.Controller {
		select {
		case calls <- conn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if identity.Server != s.Pod {
		return fmt.Errorf("the certificate is for server %s; this one is %s", identity.Server, s.Pod)
	}
	if !s.open(identity.Claim, conn) {
		return fmt.Errorf("claim %s is not admitted", identity.Claim)
	}
	defer s.close(identity.Claim, conn)
	engine, err := s.Dial()
	if err != nil {
		return fmt.Errorf("reach the engine: %w", err)
	}
	remote.Relay(conn, engine)
	return nil
}

// open notes a connection of the claim, if the controller has admitted the claim.
func (s *Server) open(claim types.UID, conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns, ok := s.sessions[claim]
	if ok {
		conns[conn] = true
	}
	return ok
}

func (s *Server) close(claim types.UID, conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions[claim], conn)
}

// put handles the controller's call.
func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	var list remote.SessionList
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSessionList)).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.admit(list.Claims)
	if err := s.probe(); err != nil {
		http.Error(w, fmt.Sprintf("reach the engine: %v", err), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// End ends all sessions.
func (s *Server) End() { s.admit(nil) }

// admit replaces the sessions, and closes the connections of those that are gone.
func (s *Server) admit(claims []types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := map[types.UID]map[net.Conn]bool{}
	for _, claim := range claims {
		if sessions[claim] = s.sessions[claim]; sessions[claim] == nil {
			sessions[claim] = map[net.Conn]bool{}
			s.Log.Info("session admitted", "claim", claim)
		}
	}
	for claim, conns := range s.sessions {
		if slices.Contains(claims, claim) {
			continue
		}
		s.Log.Info("session ended", "claim", claim, "connections", len(conns))
		for conn := range conns {
			go conn.Close() // a close of TLS may wait for the client
		}
	}
	s.sessions = sessions
}

// probe returns an error until the engine has accepted a connection. When the engine ends, so does this program.
func (s *Server) probe() error {
	s.mu.Lock()
	answered := s.answered
	s.mu.Unlock()
	if answered {
		return nil
	}
	conn, err := s.Dial()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
	return conn.Close()
}

// listener gives an HTTP server connections that another has accepted.
type listener struct {
	net.Listener
	conns chan net.Conn
	ended <-chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}
