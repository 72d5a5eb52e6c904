// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/jsonfile"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

func TestProbe(t *testing.T) {
	ok := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer ok.Close()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer busy.Close()
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, row := range []struct {
		name, condition string
		want            bool
	}{
		{"a server that is ready", ok.URL, true},
		{"a server that is not", busy.URL, false},
		{"a server that is not there", "http://127.0.0.1:1", false},
		{"a socket that accepts", "unix:" + socket, true},
		{"a socket that is not there", "unix:" + socket + "2", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := newProber(nil).holds(row.condition); got != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

// TestForward checks that the whole response arrives although the client has closed its sending side, as `kubectl exec`
// does.
func TestForward(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			question, _ := io.ReadAll(conn)
			_, _ = io.WriteString(conn, strings.ToUpper(string(question)))
			_ = conn.Close()
		}
	}()
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := door.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd, err := unix.Dup(int(file.Fd())) // forward closes it
	if err != nil {
		t.Fatal(err)
	}
	if err := forward(uintptr(fd), server.Addr().String()); err != nil {
		t.Fatal(err)
	}
	_ = door.Close() // only the duplicate accepts now
	conn, err := net.Dial("tcp", door.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if string(got) != "HELLO" || err != nil {
		t.Errorf("got %q, %v; want HELLO", got, err)
	}
}

func TestPrepareRefusesSysctlsOfTheHost(t *testing.T) {
	err := prepare(Spec{Set: map[string]string{"kernel.panic": "10"}})
	if err == nil || err.Error() != "set sysctl kernel.panic: it belongs to the whole host" {
		t.Errorf("got %v", err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, process.ErrGone) {
		t.Errorf("got %v without a record, want ErrGone", err)
	}
	want := process.Record{PID: 7, Started: "1", Boot: "b", Command: []string{"x", "y"}}
	if err := jsonfile.Write(filepath.Join(dir, processFile), want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil || got.PID != want.PID || strings.Join(got.Command, " ") != "x y" {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestLogs(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, logFolder), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet", "containerd"} {
		if err := os.WriteFile(LogPath(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(Logs(dir), " "); got != "containerd kubelet" {
		t.Errorf("got %s, want containerd kubelet", got)
	}
}
