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

// A step rests while there is a file of its name in the machine's folder rest.
// Whoever changes that folder tells PID 1 by SIGHUP.

// stopTimeout is how long a program may take to end before it is killed.
const stopTimeout = 5 * time.Second

// Rest ends the step's program in the machine and keeps it from running until
// Wake. It may be repeated.
func Rest(ctx context.Context, dir, step string) error {
	file := filepath.Join(dir, restFolder, step)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("stop %s: %w", step, err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return fmt.Errorf("stop %s: %w", step, err)
	}
	if err := tell(ctx, dir, step, false); err != nil {
		return fmt.Errorf("stop %s: %w", step, err)
	}
	return nil
}

// Wake lets the step's program run again and returns when it has started. It
// may be repeated.
func Wake(ctx context.Context, dir, step string) error {
	err := os.Remove(filepath.Join(dir, restFolder, step))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start %s: %w", step, err)
	}
	if err := tell(ctx, dir, step, true); err != nil {
		return fmt.Errorf("start %s: %w", step, err)
	}
	return nil
}

// tell wakes PID 1 up and waits until the program runs, or does not.
func tell(ctx context.Context, dir, step string, wanted bool) error {
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

// Path is where the host finds a file of the running machine.
func Path(init process.Record, path string) string {
	return fmt.Sprintf("/proc/%d/root%s", init.PID, path)
}

// obey ends what is to rest, each time it is told to look.
func (s *supervisor) obey() {
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

// kill ends a program that did not end when it was asked to.
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

// wasStopped says whether the step's program ended because it was asked to.
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

// Steps returns the names of the programs that the machine in the folder keeps
// running.
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
