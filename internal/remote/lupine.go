// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// lupine is https://github.com/lupinemachines/lupine. Its client speaks HTTP/2 without TLS, and sends the value of
// LUPINE_SESSION as a header of the first request of each connection.
type lupine struct{}

const (
	lupineHeader = "x-lupine-session"
	// lupinePreface limits what is read until the token: the client's preface, its settings and its first headers.
	lupinePreface = 16 << 10
)

func (lupine) Env(address, token string) []string {
	return []string{"LUPINE_SERVER=" + address, "LUPINE_SESSION=" + token}
}

func (lupine) Port() int { return 14833 }

func (lupine) Token(conn net.Conn) (string, net.Conn, error) {
	var read bytes.Buffer
	in := io.TeeReader(io.LimitReader(conn, lupinePreface), &read)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in, preface); err != nil {
		return "", nil, fmt.Errorf("read the client's preface: %w", err)
	}
	if string(preface) != http2.ClientPreface {
		return "", nil, errors.New("no HTTP/2 client")
	}
	framer := http2.NewFramer(io.Discard, in)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.MaxHeaderListSize = lupinePreface
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return "", nil, fmt.Errorf("read the client's first request: %w", err)
		}
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		for _, f := range headers.RegularFields() {
			if f.Name == lupineHeader && f.Value != "" {
				return f.Value, &replayed{Conn: conn, in: io.MultiReader(&read, conn)}, nil
			}
		}
		return "", nil, errors.New("the client's first request has no token")
	}
}

// replayed is a connection that gives bytes again that were read from it.
type replayed struct {
	net.Conn
	in io.Reader
}

func (r *replayed) Read(p []byte) (int, error) { return r.in.Read(p) }
