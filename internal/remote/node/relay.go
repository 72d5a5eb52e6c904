// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/remote"
)

const (
	// tokenTimeout limits how long a client without a token holds a connection.
	tokenTimeout = 10 * time.Second
	// dialTimeout is the timeout of a connection to a server.
	dialTimeout = 10 * time.Second
	// refusalPeriod is the least time between two log lines of refused connections.
	refusalPeriod = 10 * time.Second
)

// relay takes the connections of containers and connects each to the server of its session.
type relay struct {
	engine   remote.Engine
	sessions *sessions

	mu      sync.Mutex
	refused int       // connections
	logged  time.Time // when a refused connection was logged last
}

// serve takes connections until ctx ends.
func (r *relay) serve(ctx context.Context, l net.Listener) {
	failed := func(err error) { klog.FromContext(ctx).Error(err, "Connection not accepted") }
	remote.Accept(ctx, l, failed, func(conn net.Conn) {
		defer conn.Close()
		if err := r.handle(conn); err != nil && !errors.Is(err, io.EOF) { // a probe sends nothing
			r.refuse(ctx, conn, err)
		}
	})
}

// handle relays a connection until it ends.
func (r *relay) handle(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(tokenTimeout)); err != nil {
		return err
	}
	token, client, err := r.engine.Token(conn)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	s, ok := r.sessions.open(token, conn)
	if !ok {
		return errors.New("no claim of this node has the token")
	}
	defer r.sessions.close(s.Claim, conn)
	config, err := remote.ClientTLS([]byte(s.Certificate), []byte(s.Key), []byte(s.Certificate))
	if err != nil {
		return err
	}
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{Timeout: dialTimeout, Control: remote.LimitLoss,
		KeepAliveConfig: remote.Keepalive}}
	server, err := dialer.Dial("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("claim %s: connect to its server: %w", s.Claim, err)
	}
	remote.Relay(client, server)
	return nil
}

// refuse counts a refused connection, and logs some of them.
func (r *relay) refuse(ctx context.Context, conn net.Conn, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused++
	if now := time.Now(); now.Sub(r.logged) >= refusalPeriod {
		r.logged = now
		klog.FromContext(ctx).Info("Connection refused", "from", conn.RemoteAddr(), "reason", reason, "refused",
			r.refused)
	}
}
