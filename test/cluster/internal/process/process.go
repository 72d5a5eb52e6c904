// SPDX-License-Identifier: Apache-2.0

// Package process records processes, and detects when a PID was reused by another process.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Record identifies a process: its PID, its start time, the boot ID, and its command line.
type Record struct {
	PID     int      `json:"pid"`
	Started string   `json:"started"` // clock ticks after boot
	Boot    string   `json:"boot"`
	Command []string `json:"command"`
}

// ErrGone means that the process has ended or that another process has its PID.
var ErrGone = errors.New("process is gone")

// NewRecord describes the process with that PID. For a command that this process has just started, use Started.
func NewRecord(pid int) (Record, error) {
	stat, err := ReadStat(pid)
	if err != nil {
		return Record{}, err
	}
	boot, err := bootID()
	if err != nil {
		return Record{}, err
	}
	command, err := commandLine(pid)
	if err != nil {
		return Record{}, err
	}
	return Record{PID: pid, Started: stat.Started, Boot: boot, Command: command}, nil
}

// Started describes a command that was just started. The kernel closes the descriptor by which Start detects the exec
// before it sets the new command line, and a record with an empty command line would never match.
func Started(cmd *exec.Cmd) (Record, error) {
	for range 1000 {
		record, err := NewRecord(cmd.Process.Pid)
		if err != nil || slices.Equal(record.Command, cmd.Args) {
			return record, err
		}
		time.Sleep(time.Millisecond)
	}
	return Record{}, fmt.Errorf("process %d did not become %s", cmd.Process.Pid, cmd.Args[0])
}

// Alive reports whether the recorded process still runs.
func (r Record) Alive() bool { return r.verify() == nil }

// Open returns a pidfd of the recorded process, or ErrGone. It stays valid for that process even if the PID is reused.
// The caller closes it.
func (r Record) Open() (fd int, err error) {
	fd, err = unix.PidfdOpen(r.PID, 0)
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", r.PID, ErrGone)
	}
	// Verified after opening, so that the descriptor is that of the verified process.
	if err := r.verify(); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Kill kills the recorded process and waits until it has ended, at most for the timeout. It is no error if the process
// has already ended.
func (r Record) Kill(timeout time.Duration) error {
	fd, err := r.Open()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", r.PID, err)
	}
	deadline := time.Now().Add(timeout)
	for {
		left := max(time.Until(deadline), 0)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(left.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for process %d: %w", r.PID, err)
		}
		if n == 0 {
			return fmt.Errorf("process %d did not end within %s of SIGKILL", r.PID, timeout)
		}
		// If this process is the parent, it must reap the process.
		_, _ = unix.Wait4(r.PID, nil, unix.WNOHANG, nil)
		return nil
	}
}

func (r Record) verify() error {
	now, err := NewRecord(r.PID)
	if err != nil {
		return err
	}
	if now.Started != r.Started || now.Boot != r.Boot || !slices.Equal(now.Command, r.Command) {
		return fmt.Errorf("process %d is another one now: %w", r.PID, ErrGone)
	}
	return nil
}

// Stat is a part of /proc/PID/stat.
type Stat struct {
	Parent  int
	State   string // one letter, see proc(5)
	Started string // clock ticks after boot
}

// ReadStat reads the Stat of the process. It returns ErrGone if the process has ended, also if it is a zombie.
func ReadStat(pid int) (Stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, fmt.Errorf("read process %d: %w", pid, ErrGone)
	}
	return parseStat(string(data))
}

func parseStat(text string) (Stat, error) {
	// The second field is the name in parentheses, which may contain anything.
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	const state, parent, started = 0, 1, 19 // fields 3, 4 and 22, counted from the third
	if len(fields) <= started {
		return Stat{}, fmt.Errorf("parse process state %q: too few fields", text)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return Stat{}, fmt.Errorf("process has ended: %w", ErrGone)
	}
	number, err := strconv.Atoi(fields[parent])
	if err != nil {
		return Stat{}, fmt.Errorf("parse process state %q: %w", text, err)
	}
	return Stat{Parent: number, State: fields[state], Started: fields[started]}, nil
}

func commandLine(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, fmt.Errorf("read process %d: %w", pid, ErrGone)
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		args = append(args, string(arg))
	}
	return args, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// Find returns every process on this machine whose command line matches.
func Find(match func(command []string) bool) ([]Record, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Record
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		record, err := NewRecord(pid)
		if err != nil || !match(record.Command) {
			continue // it has ended meanwhile, or is not ours
		}
		found = append(found, record)
	}
	return found, nil
}
