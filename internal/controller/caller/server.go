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
	// headerTimeout is how long a stranger may take for a TLS handshake and the header of a request.
	headerTimeout, maxHeader = 5 * time.Second, 16 << 10
	// idleTimeout is how long a connection from the address of a known caller may have no request. API servers close
	// theirs after 90 seconds. The server must not be the first: a call fails on a connection that it is closing.
	idleTimeout = 2 * time.Minute
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
	inContext := func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c.(*tls.Conn).NetConn())
	}
	server := &http.Server{Handler: s.WebhookMux(), BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: inContext, MaxHeaderBytes: maxHeader, IdleTimeout: idleTimeout, ReadHeaderTimeout: idleTimeout}
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
func (g *Gate) listen(l net.Listener) net.Listener { return listener{l, g.strangers} }

type listener struct {
	net.Listener
	strangers *strangers
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.strangers.enter(c), nil
}

// connection is one whose caller is not known before its first call.
type connection struct {
	net.Conn
	host   string
	called atomic.Bool
}

// connectionKey marks the connection in the context of its requests.
type connectionKey struct{}

const (
	// maxStrangers is how many connections are open whose callers have called nothing yet, and maxUnused how many such
	// ones from the addresses of known callers. If there are more, the oldest one is closed.
	maxStrangers, maxUnused = 512, 1024
	// trust is how long the address of a caller that is known counts as one.
	trust = time.Hour
)

// strangers are connections whose callers are not known yet. API servers open many at once, and use some of them only
// later, so those from addresses of known callers have places and time of their own.
type strangers struct {
	mu                sync.Mutex
	strange, familiar chan *connection     // the latest ones
	known             map[string]time.Time // hosts of known callers, and when they called
}

func newStrangers() *strangers {
	return &strangers{strange: make(chan *connection, maxStrangers), familiar: make(chan *connection, maxUnused),
		known: map[string]time.Time{}}
}

func (s *strangers) enter(conn net.Conn) *connection {
	c := &connection{Conn: conn}
	c.host, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
	s.mu.Lock()
	defer s.mu.Unlock()
	places := s.familiar
	if !s.knows(c.host) {
		places = s.strange
		time.AfterFunc(headerTimeout, func() { s.end(c) })
	}
	if len(places) == cap(places) {
		if oldest := <-places; !oldest.called.Load() && (places == s.familiar || !s.knows(oldest.host)) {
			_ = oldest.Close() // it may be closed already
		}
	}
	places <- c
	return c
}

// end closes the connection of a stranger.
func (s *strangers) end(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.knows(c.host) {
		_ = c.Close()
	}
}

// knows reports whether a known caller has called from the host.
func (s *strangers) knows(host string) bool {
	at, ok := s.known[host]
	return ok && time.Since(at) < trust
}

// leave takes note that the caller of the request is known.
func (s *strangers) leave(r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		c.called.Store(true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[host] = time.Now()
}
