// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// watcher notices when a daemon may be wanted otherwise than before. It costs nothing while nothing happens.
type watcher struct {
	file    *os.File
	changed chan struct{}
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	w := &watcher{os.NewFile(uintptr(fd), "inotify"), make(chan struct{}, 1)}
	go w.read()
	return w, nil
}

// watch adds the directory and those in it. It may be repeated.
func (w *watcher) watch(dir string) error {
	const mask = unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE | unix.IN_CLOSE_WRITE | unix.IN_ONLYDIR
	if err := w.add(dir, mask); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := w.add(filepath.Join(dir, e.Name()), mask); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (w *watcher) add(dir string, mask uint32) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var added error
	err = raw.Control(func(fd uintptr) { _, added = unix.InotifyAddWatch(int(fd), dir, mask) })
	if err = errors.Join(err, added); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return nil
}

// read turns events into a word on the channel, until the watcher is closed.
func (w *watcher) read() {
	buf := make([]byte, 4096)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		if matters(buf[:n]) {
			select {
			case w.changed <- struct{}{}:
			default: // it has been said already
			}
		}
	}
}

// matters says whether one of the events can be about what is wanted. The supervisor's own reports are not.
func matters(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if end > len(events) {
			return true
		}
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		if mask&(unix.IN_ISDIR|unix.IN_Q_OVERFLOW) != 0 || name == mps.WantedFile {
			return true
		}
		events = events[end:]
	}
	return false
}

func (w *watcher) close() { _ = w.file.Close() }
