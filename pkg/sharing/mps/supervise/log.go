// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The log of a daemon: its output, because in the foreground it writes no log file itself. At most two files are kept.
const (
	logName = "control.log"
	oldLog  = logName + ".1"
	logSize = 1 << 20 // bytes, before a new file begins
)

// logFile is the log of a daemon.
type logFile struct {
	dir  string
	file *os.File
	size int64
}

// openLog opens the log in the directory, to append to it.
func openLog(dir string) (*logFile, error) {
	file, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &logFile{dir: dir, file: file, size: info.Size()}, nil
}

// Write never fails: a daemon must not end because the disk is full.
func (l *logFile) Write(b []byte) (int, error) {
	if l.size+int64(len(b)) > logSize {
		l.rotate()
	}
	n, _ := l.file.Write(b)
	l.size += int64(n)
	return len(b), nil
}

// rotate begins a new file. If it cannot, the present one is emptied.
func (l *logFile) rotate() {
	l.size = 0
	path := filepath.Join(l.dir, logName)
	err := os.Rename(path, filepath.Join(l.dir, oldLog))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		next, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err == nil {
			_ = l.file.Close()
			l.file = next
			return
		}
	}
	_ = l.file.Truncate(0)
}

// Close closes the file.
func (l *logFile) Close() error { return l.file.Close() }
