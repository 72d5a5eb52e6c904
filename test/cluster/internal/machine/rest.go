// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

// A step rests while a file with its name is in the machine's folder rest. SIGHUP tells PID 1 that the folder has
// changed.

// stopTimeout is the time until a program that was asked to end is killed.
const stopTimeout = 5 * time.Second

// Rest stops the step's program in the machine until Wake. It is idempotent.
func Rest(ctx context.Context, dir, step string) error {
	file := filepath.Join(dir, restFolder, step)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("stop %s: %w", step, err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return fmt.Errorf("stop %s: %w", step, err)
	}
	if err := notify(ctx, dir, step, false); err != nil {
		return fmt.Errorf("stop %s: %w", step, err)
	}
	return nil
}

// Wake lets the step's program run again and returns when it has started. It is idempotent.
func Wake(ctx context.Context, dir, step string) error {
	err := os.Remove(filepath.Join(dir, restFolder, step))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start %s: %w", step, err)
	}
	if err := notify(ctx, dir, step, true); err != nil {
		return fmt.Errorf("start %s: %w", step, err)
	}
	return nil
}

// notify signals PID 1 and waits until the program runs or has ended, as wanted.
func notify(ctx context.Context, dir, step string, wanted bool) error {
	init, err := Load(dir)
	if err != nil {
		return err
	}
	fd, err := init.Open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGHUP, nil, 0); err != nil {
		return fmt.Errorf("signal process %d: %w", init.PID, err)
	}
	for {
		_, err := os.Stat(Path(init, pidFile(step)))
		if runs := err == nil; runs == wanted {
			return nil
		}
		if !init.Alive() {
			return process.ErrGone
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Path returns the host's path of a file of the running machine.
func Path(init process.Record, path string) string {
	return fmt.Sprintf("/proc/%d/root%s", init.PID, path)
}

// stopResting stops the programs of resting steps on each SIGHUP.
func (s *supervisor) stopResting() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGHUP)
	for range told {
		s.mu.Lock()
		for name, pid := range s.running {
			if rests(name) && !s.stopped[name] {
				s.stopped[name] = true
				log.Printf("%s is asked to end", name)
				_ = unix.Kill(pid, unix.SIGTERM)
				time.AfterFunc(stopTimeout, func() { s.kill(name, pid) })
			}
		}
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

// kill kills the program after stopTimeout.
func (s *supervisor) kill(name string, pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[name] == pid && s.stopped[name] {
		log.Printf("%s did not end within %s", name, stopTimeout)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// waitForLeave returns when the step may run.
func (s *supervisor) waitForLeave(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rests(step) {
		s.changed.Wait()
	}
}

// wasStopped reports whether the step's program ended because of a rest.
func (s *supervisor) wasStopped(step string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.stopped[step]
	delete(s.stopped, step)
	return was
}

func rests(step string) bool {
	_, err := os.Stat(filepath.Join(Home, restFolder, step))
	return err == nil
}

// Steps returns the names of the long-running programs of the machine in the folder.
func Steps(dir string) ([]string, error) {
	spec, err := LoadSpec(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, step := range spec.Steps {
		if !step.Once {
			names = append(names, step.Name)
		}
	}
	return names, nil
}
