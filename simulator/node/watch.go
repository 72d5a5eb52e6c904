// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Watch waits for changes of a node: of its state and of its events. It uses no processor time meanwhile.
type Watch struct {
	file *os.File // inotify; nil: not available, so it polls
}

// Without inotify, Wait returns after pollPeriod; with it, after recheckPeriod, in case the directory is another one.
const (
	pollPeriod    = 20 * time.Millisecond
	recheckPeriod = 5 * time.Second
)

// Watch begins to watch the node.
func (n *Node) Watch() *Watch {
	if n.dir == "" {
		return &Watch{}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return &Watch{}
	}
	for _, dir := range []string{n.dir, LibraryDir(n.dir)} {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_MOVED_TO); err != nil {
			_ = unix.Close(fd)
			return &Watch{}
		}
	}
	return &Watch{file: os.NewFile(uintptr(fd), "inotify")}
}

// Wait returns when something may have changed, at the latest after that time. Close ends it.
func (w *Watch) Wait(most time.Duration) {
	if w.file == nil {
		time.Sleep(min(most, pollPeriod))
		return
	}
	_ = w.file.SetReadDeadline(time.Now().Add(min(most, recheckPeriod)))
	var changes [4096]byte
	_, err := w.file.Read(changes[:])
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrClosed) {
		time.Sleep(min(most, pollPeriod))
	}
}

// Close ends the watching. It may be called again.
func (w *Watch) Close() {
	if w.file != nil {
		_ = w.file.Close()
	}
}
