// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	webhookserver "sigs.k8s.io/controller-runtime/pkg/webhook"
)

const (
	// headerTimeout is how long a TLS handshake and the header of a request may take.
	headerTimeout, maxHeader = 5 * time.Second, 16 << 10
	// shutdownTimeout is how long calls may take when the server ends.
	shutdownTimeout = time.Minute
)

// Server is controller-runtime's server of webhooks with bounds for callers that are not known yet.
type Server struct {
	*webhookserver.DefaultServer
	Gate *Gate
	// GetCertificate finds the certificate to serve. Nil: that of the files in Options.CertDir.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

	started atomic.Bool
}

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", s.Options.Host, s.Options.Port))
	if err != nil {
		return err
	}
	// API servers and schedulers show a certificate if they have one; who serves the request verifies it.
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		ClientAuth: tls.RequestClientCert, GetCertificate: s.GetCertificate}
	if config.GetCertificate == nil {
		dir := s.Options.CertDir
		files, err := certwatcher.New(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			return err
		}
		go func() { _ = files.Start(ctx) }() // it logs errors
		config.GetCertificate = files.GetCertificate
	}
	server := &http.Server{Handler: s.WebhookMux(), BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader, IdleTimeout: 90 * time.Second}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		until, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		ended <- server.Shutdown(until)
	}()
	s.started.Store(true)
	if err := server.Serve(tls.NewListener(s.Gate.listen(listener), config)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// StartedChecker returns an error until the port is open.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.started.Load() {
			return errors.New("webhooks are not served yet")
		}
		return nil
	}
}

// listen notes all connections that a listener accepts.
func (g *Gate) listen(l net.Listener) net.Listener { return listener{l, &g.strangers} }

type listener struct {
	net.Listener
	strangers *strangers
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.strangers.enter(c)
	}
	return c, err
}

const (
	// maxStrangers is how many connections are open whose callers have called nothing yet.
	maxStrangers = 512
	// trust is how long the address of a caller that is known counts as one.
	trust = time.Hour
)

// strangers are connections whose callers are not known yet. If there are too many, the oldest one is closed. API
// servers open many connections at once, so those from addresses of known callers do not count.
type strangers struct {
	mu     sync.Mutex
	latest [maxStrangers]struct {
		net.Conn
		from string
	}
	next  int
	known map[string]time.Time // hosts of known callers, and when they called
}

func (s *strangers) enter(c net.Conn) {
	from := c.RemoteAddr().String()
	host, _, _ := net.SplitHostPort(from)
	s.mu.Lock()
	if at, ok := s.known[host]; ok && time.Since(at) < trust {
		s.mu.Unlock()
		return
	}
	oldest := s.latest[s.next].Conn
	s.latest[s.next].Conn, s.latest[s.next].from = c, from
	s.next = (s.next + 1) % maxStrangers
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // it may be closed already
	}
}

// leave lets the connections from that address stay: its caller is known.
func (s *strangers) leave(from string) {
	host, _, _ := net.SplitHostPort(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.known[host]) < trust/2 {
		return // its connections do not count
	}
	if s.known == nil {
		s.known = map[string]time.Time{}
	}
	s.known[host] = time.Now()
	for i := range s.latest {
		if one, _, _ := net.SplitHostPort(s.latest[i].from); one == host {
			s.latest[i].Conn, s.latest[i].from = nil, ""
		}
	}
}
