// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// freezeTimeout limits the time until all processes have stopped. A process in a system call finishes it first.
const freezeTimeout = 2 * time.Minute

// Freeze stops the recorded process and all its descendants, and returns when all have stopped. It is idempotent.
func (r Record) Freeze() error {
	deadline := time.Now().Add(freezeTimeout)
	for {
		family, err := r.family()
		if err != nil {
			return err
		}
		moving := slices.DeleteFunc(family, func(m member) bool { return m.state == "T" })
		if len(moving) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stop process %d and its descendants: %d still run after %s", r.PID, len(moving),
				freezeTimeout)
		}
		if err := signalAll(moving, unix.SIGSTOP); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // one may have forked before it stopped
	}
}

// Frozen reports whether the recorded process is stopped.
func (r Record) Frozen() bool {
	stat, err := ReadStat(r.PID)
	return err == nil && stat.State == "T"
}

// Thaw undoes Freeze. It is idempotent.
func (r Record) Thaw() error {
	family, err := r.family()
	if err != nil {
		return err
	}
	slices.Reverse(family) // the root last, so that all children continue before their parents
	return signalAll(family, unix.SIGCONT)
}

// member is a process of a process tree.
type member struct {
	pid   int
	state string
}

// family returns the recorded process and all its descendants.
func (r Record) family() ([]member, error) {
	if err := r.verify(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var family []member
	children := map[int][]member{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := ReadStat(pid)
		if err != nil {
			continue // it has ended
		}
		if pid == r.PID {
			family = append(family, member{pid, stat.State})
		} else {
			children[stat.Parent] = append(children[stat.Parent], member{pid, stat.State})
		}
	}
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i].pid]...)
	}
	return family, nil
}

func signalAll(list []member, signal unix.Signal) error {
	for _, m := range list {
		if err := unix.Kill(m.pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d: %w", m.pid, err)
		}
	}
	return nil
}
