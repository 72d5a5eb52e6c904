// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// localIPCDir is where the driver mounts the claim's directory for local IPC, and localIPCVariable names it.
const (
	localIPCDir      = "/run/nvidia-dra/local-ipc"
	localIPCVariable = "NVIDIA_DRA_LOCAL_IPC_DIR"
)

// give gives each client of a socket in the directory for local IPC a descriptor of memory that has no name, as a
// program that shares memory of a GPU does, until ctx ends.
func give(ctx context.Context, text string, out io.Writer) error {
	dir := os.Getenv(localIPCVariable)
	if dir == "" {
		return errors.New("no " + localIPCVariable)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	where := "on a disk"
	if fs.Type == unix.TMPFS_MAGIC {
		where = "in memory"
	}
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		return err
	}
	socket := filepath.Join(dir, "demo.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer listener.Close()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	if err := os.Chmod(socket, 0o666); err != nil { // its clients are other users
		return err
	}
	fmt.Fprintf(out, "user %d listens in %s, %d MiB %s\n", os.Getuid(), dir, int64(fs.Blocks)*fs.Bsize>>20, where)
	for {
		client, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		_, _, err = client.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
		if err := errors.Join(err, client.Close()); err != nil {
			fmt.Fprintln(out, err)
		}
	}
}

// take asks for the descriptor that give gives, and prints what is behind it.
func take(ctx context.Context, out io.Writer) error {
	dir := os.Getenv(localIPCVariable)
	if _, err := os.Lstat(localIPCDir); dir == "" && errors.Is(err, os.ErrNotExist) {
		_, err := fmt.Fprintln(out, "no directory for local IPC")
		return err
	}
	fd, err := takeFrom(ctx, filepath.Join(dir, "demo.sock"))
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "shared")
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<10))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "user %d has taken a file descriptor, and reads: %s\n", os.Getuid(),
		strings.TrimSpace(string(text)))
	return err
}

// takeFrom returns the descriptor that the program behind the socket gives, once it listens.
func takeFrom(ctx context.Context, socket string) (int, error) {
	for {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			defer conn.Close()
			rights := make([]byte, unix.CmsgSpace(4))
			_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), rights)
			if err != nil {
				return 0, err
			}
			messages, err := unix.ParseSocketControlMessage(rights[:n])
			if err != nil || len(messages) != 1 {
				return 0, fmt.Errorf("%s gives no file descriptor: %w", socket, err)
			}
			fds, err := unix.ParseUnixRights(&messages[0])
			if err != nil {
				return 0, err
			}
			return fds[0], nil
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
