// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// restartDelay limits how fast a program that ends at once fills the log.
	restartDelay = time.Second
	// If no run of a program lasts as long as settled in that many attempts, it cannot work, for example because of a
	// wrong flag. The machine ends, and `up` reports the reason.
	settled  = 10 * time.Second
	attempts = 5
)

// supervisor runs the steps of a machine. As PID 1 it also reaps orphaned processes.
type supervisor struct {
	spec  Spec
	probe prober

	mu      sync.Mutex
	started *sync.Cond
	waiting map[int]chan syscall.WaitStatus // by process number
	done    map[string]chan struct{}        // by name of a step with Once
	running map[string]int                  // process number, by name of a step
	stopped map[string]bool                 // steps whose process was asked to end
	changed *sync.Cond                      // which steps rest
}

func newSupervisor(spec Spec) *supervisor {
	s := &supervisor{
		spec:    spec,
		waiting: map[int]chan syscall.WaitStatus{},
		done:    map[string]chan struct{}{},
		running: map[string]int{},
		stopped: map[string]bool{},
	}
	s.started, s.changed = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	for _, step := range spec.Steps {
		if step.Once {
			s.done[step.Name] = make(chan struct{})
		}
	}
	s.probe = newProber(s.done)
	return s
}

// run returns when a step cannot work.
func (s *supervisor) run() error {
	failed := make(chan error)
	go s.stopResting()
	for _, step := range s.spec.Steps {
		go func() {
			if err := s.keep(step); err != nil {
				failed <- err
			}
		}()
	}
	go func() { failed <- s.reap() }()
	return <-failed
}

// keep runs the step repeatedly, or until it has succeeded once.
func (s *supervisor) keep(step Step) error {
	for _, condition := range step.After {
		s.probe.wait(condition)
	}
	works := false
	for attempt := 1; works || step.Optional || attempt <= attempts; attempt++ {
		s.waitForLeave(step.Name)
		start := time.Now()
		status, err := s.runOnce(step)
		works = works || time.Since(start) >= settled
		if s.wasStopped(step.Name) {
			attempt--
			continue
		}
		switch {
		case err != nil:
			log.Printf("run %s: %v", step.Name, err)
		case step.Once && status.ExitStatus() == 0:
			close(s.done[step.Name])
			return nil
		default:
			log.Printf("%s ended: %s", step.Name, describe(status))
		}
		time.Sleep(restartDelay)
	}
	return fmt.Errorf("%s ended %d times within %s", step.Name, attempts, settled)
}

func (s *supervisor) runOnce(step Step) (syscall.WaitStatus, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	out, err := os.OpenFile(LogPath(Home, step.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	// The lock is held until the PID is known: the process may end and be reaped before ForkExec returns.
	s.mu.Lock()
	pid, err := syscall.ForkExec(step.Command[0], step.Command, &syscall.ProcAttr{
		Dir:   "/",
		Env:   environment,
		Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		s.mu.Unlock()
		return 0, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	s.waiting[pid] = ended
	s.running[step.Name] = pid
	s.started.Signal()
	s.mu.Unlock()
	log.Printf("%s started as process %d", step.Name, pid)
	_ = os.WriteFile(pidFile(step.Name), []byte(strconv.Itoa(pid)+"\n"), 0o644)
	status := <-ended
	_ = os.Remove(pidFile(step.Name))
	return status, nil
}

func pidFile(step string) string { return filepath.Join("/run", step+".pid") }

// reap reaps processes for ever.
func (s *supervisor) reap() error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == nil:
			s.mu.Lock()
			if ended, ok := s.waiting[pid]; ok {
				ended <- status
				delete(s.waiting, pid)
				maps.DeleteFunc(s.running, func(_ string, p int) bool { return p == pid })
			}
			s.mu.Unlock()
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD): // nothing to wait for until something starts
			s.mu.Lock()
			for len(s.waiting) == 0 {
				s.started.Wait()
			}
			s.mu.Unlock()
		default:
			return fmt.Errorf("wait for processes: %w", err)
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}
