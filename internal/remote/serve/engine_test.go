// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testPort = 14833

// TestMain is also the engine: it tells each client its network devices, and whether it may make a network namespace,
// and ends with SIGTERM.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_ENGINE") == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("tcp", fmt.Sprint(":", testPort)) // on all addresses, as Lupine
	if err != nil {
		panic(err)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		_ = l.Close()
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			fmt.Println("the engine drains")
			os.Exit(3)
		}
		var names []string
		devices, err := net.Interfaces()
		for _, d := range devices {
			names = append(names, d.Name)
		}
		_, _ = fmt.Fprint(conn, strings.Join(names, " "), err, unix.Unshare(unix.CLONE_NEWNET))
		_ = conn.Close()
	}
}

func TestEngineIsIsolated(t *testing.T) {
	t.Setenv("TEST_ENGINE", "1")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	e, err := Start(ctx, os.Args[:1], testPort)
	if errors.Is(err, unix.EPERM) {
		const want = "make a network namespace: operation not permitted: the container needs the capabilities " +
			"SYS_ADMIN, NET_ADMIN and SETPCAP"
		if err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		t.Skip(want)
	}
	if err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if conn, err = e.Dial(); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if want := "lo<nil> operation not permitted"; err != nil || string(got) != want {
		t.Errorf("the engine: got %s, %v, want %s", got, err, want)
	}
	if outside, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", testPort)); err == nil {
		t.Error("the engine's port is reached from outside")
		_ = outside.Close()
	}
	stop()
	if err := e.Wait(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("got %v, want that the engine ends by itself", err)
	}
	if _, err := e.Dial(); err == nil || err.Error() != "the engine has ended" {
		t.Errorf("got %v", err)
	}
}
