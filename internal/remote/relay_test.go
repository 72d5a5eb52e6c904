// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"net"
	"testing"
)

// scripted is a listener whose first Accept fails, and whose second gives a connection.
type scripted struct {
	net.Listener
	calls  int
	closed chan struct{}
}

func (l *scripted) Accept() (net.Conn, error) {
	switch l.calls++; l.calls {
	case 1:
		return nil, errors.New("too many open files")
	case 2:
		conn, _ := net.Pipe()
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *scripted) Close() error {
	close(l.closed)
	return nil
}

// An error of accept ends nothing; the end of the context does.
func TestAccept(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	var failures []string
	handled, done := make(chan net.Conn), make(chan struct{})
	go func() {
		defer close(done)
		l := &scripted{closed: make(chan struct{})}
		Accept(ctx, l, func(err error) { failures = append(failures, err.Error()) },
			func(conn net.Conn) { handled <- conn })
	}()
	if conn := <-handled; conn == nil {
		t.Error("no connection")
	}
	end()
	<-done
	if len(failures) != 1 || failures[0] != "too many open files" {
		t.Errorf("got failures %q, want the first one", failures)
	}
}
