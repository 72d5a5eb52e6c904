// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestLupineToken(t *testing.T) {
	request := func(fields ...hpack.HeaderField) []byte {
		var out, block bytes.Buffer
		out.WriteString(http2.ClientPreface)
		framer := http2.NewFramer(&out, nil)
		encoder := hpack.NewEncoder(&block)
		for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
			{Name: ":path", Value: "/"}, {Name: ":authority", Value: "lupine"}}, fields...) {
			if err := encoder.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(framer.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}),
			framer.WriteWindowUpdate(0, 1<<20), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
				BlockFragment: block.Bytes(), EndHeaders: true})); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for _, row := range []struct {
		name  string
		bytes []byte
		token string
		err   string
	}{
		{"a token", request(hpack.HeaderField{Name: "x-lupine-compress", Value: "lz4"},
			hpack.HeaderField{Name: "x-lupine-session", Value: "secret"}), "secret", ""},
		{"no token", request(), "", "the client's first request has no token"},
		{"an empty token", request(hpack.HeaderField{Name: "x-lupine-session"}), "",
			"the client's first request has no token"},
		{"another protocol", []byte("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n"), "", "no HTTP/2 client"},
		{"it ends early", request()[:40], "", "read the client's first request: unexpected EOF"},
		{"endless settings", append([]byte(http2.ClientPreface), bytes.Repeat([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0},
			lupinePreface)...), "", "read the client's first request: unexpected EOF"},
	} {
		t.Run(row.name, func(t *testing.T) {
			client, server := net.Pipe()
			go func() {
				_, _ = client.Write(append(row.bytes, "more"...))
				_ = client.Close()
			}()
			if row.token == "" {
				go func() { _, _ = io.Copy(io.Discard, client) }()
			}
			token, replay, err := lupine{}.Token(server)
			if token != row.token || (err == nil) != (row.err == "") || err != nil && err.Error() != row.err {
				t.Fatalf("got token %q, %v, want %q, %q", token, err, row.token, row.err)
			}
			if err != nil {
				return
			}
			if got, err := io.ReadAll(replay); err != nil || string(got) != string(row.bytes)+"more" {
				t.Errorf("got %d bytes, %v, want the %d that were sent", len(got), err, len(row.bytes)+4)
			}
		})
	}
}

// An accepted connection has the timeout of its listener, and so has one that is dialed.
func TestLimitLoss(t *testing.T) {
	listener := net.ListenConfig{Control: LimitLoss}
	l, err := listener.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialer := net.Dialer{Control: LimitLoss}
	dialed, err := dialer.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	for _, conn := range []net.Conn{dialed, accepted} {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			if err != nil || got != 60_000 {
				t.Errorf("got %d ms, %v, want 60000", got, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEngineOf(t *testing.T) {
	if _, err := EngineOf("lupin"); err == nil || !strings.HasSuffix(err.Error(), "known are: lupine") {
		t.Errorf("got %v", err)
	}
}

func TestSessionOf(t *testing.T) {
	whole := Session{Engine: "lupine", Address: "10.0.0.1:14834", Server: "pod"}
	data, err := whole.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		data *runtime.RawExtension
		err  string
	}{
		{"whole", data, ""},
		{"not admitted", nil, ErrNotReady.Error()},
		{"no address", &runtime.RawExtension{Raw: []byte(`{"engine":"lupine","server":"pod"}`)},
			`session of device d: {"engine":"lupine","server":"pod"}: engine, address and server are required`},
	} {
		claim := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{
			Devices: []resourceapi.AllocatedDeviceStatus{{Driver: "other", Pool: Pool, Device: "d"},
				{Driver: "remote.gpu.nvidia.com", Pool: Pool, Device: "d", Data: row.data}}}}
		got, err := SessionOf(claim, Driver("gpu.nvidia.com"), "d")
		if row.err == "" && (err != nil || got != whole) || row.err != "" && (err == nil || err.Error() != row.err) {
			t.Errorf("%s: got %v, %v, want %q", row.name, got, err, row.err)
		}
	}
}

func TestAuthority(t *testing.T) {
	first, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	a, err := ParseAuthority(first.PEM())
	if err != nil {
		t.Fatal(err)
	}
	request, _, err := NewRequest("claim")
	if err != nil {
		t.Fatal(err)
	}
	claim, public, err := ParseRequest(request)
	if err != nil || claim != "claim" {
		t.Fatalf("got claim %q, %v", claim, err)
	}
	text, err := a.Session(public, "server", claim)
	if err != nil {
		t.Fatal(err)
	}
	leaf, rest := pem.Decode(text)
	c, err := x509.ParseCertificate(leaf.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := poolOf(rest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if i, e := IdentityOf(c); err != nil || e != nil || i != (Identity{Server: "server", Claim: "claim"}) {
		t.Errorf("got %+v, %v, %v", i, e, err)
	}
	if _, err := c.Verify(x509.VerifyOptions{Roots: pool}); err == nil {
		t.Error("the certificate of a session is good for a server")
	}
	// A claim's UID is text that the API server has made, but a request is text of its client.
	text, err = a.Session(public, "server", "claim/../controller")
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ = pem.Decode(text)
	if c, err = x509.ParseCertificate(leaf.Bytes); err != nil {
		t.Fatal(err)
	}
	if i, err := IdentityOf(c); i.Controller {
		t.Errorf("got %+v, %v", i, err)
	}
	if _, err := ParseAuthority(text, nil); err == nil {
		t.Error("a certificate without its key is an authority")
	}
}
