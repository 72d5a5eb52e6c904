// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/jsonfile"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/process"
)

// Names of files in a machine's folder.
const (
	specFile    = "machine.json"
	processFile = "process.json"
	logFolder   = "log"
	restFolder  = "rest"
	initLog     = "init"
)

// program and Subcommand are in the command line of a machine's PID 1; they identify the process as ours.
const (
	program    = "gpu-dra-cluster"
	Subcommand = "machine"
)

// Namespaces are the machine's own namespaces.
const Namespaces = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// Running is a started machine.
type Running struct {
	Name    string
	Process process.Record

	release *os.File
	ended   chan struct{}
}

// Start creates the machine's namespaces and its PID 1, which waits for Release and ends if this process ends before.
// Its record is on disk when Start returns. The listener may be nil.
func Start(spec Spec, listener *os.File) (*Running, error) {
	running, err := start(spec, listener)
	if err != nil {
		return nil, fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	return running, nil
}

func start(spec Spec, listener *os.File) (*Running, error) {
	if err := os.MkdirAll(filepath.Join(spec.Dir, logFolder), 0o755); err != nil {
		return nil, err
	}
	if err := jsonfile.Write(filepath.Join(spec.Dir, specFile), spec); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(LogPath(spec.Dir, initLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	wait, release, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	cmd := &exec.Cmd{
		Path:       "/proc/self/exe", // go run may already have deleted the file
		Args:       []string{program, Subcommand, spec.Dir},
		Env:        environment,
		Dir:        "/",
		Stdout:     log,
		Stderr:     log,
		ExtraFiles: []*os.File{wait},
		SysProcAttr: &unix.SysProcAttr{
			Cloneflags: Namespaces,
			Setsid:     true, // Ctrl-C of `up` must not reach the machine
		},
	}
	if listener != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, listener)
	}
	if err := cmd.Start(); err != nil {
		_ = release.Close()
		return nil, err
	}
	running := &Running{Name: spec.Name, release: release, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(running.ended)
	}()
	if running.Process, err = process.Started(cmd); err == nil {
		err = jsonfile.Write(filepath.Join(spec.Dir, processFile), running.Process)
	}
	if err != nil {
		_ = release.Close() // it ends
		<-running.ended
		return nil, err
	}
	return running, nil
}

// Release lets the machine start its programs.
func (r *Running) Release() error {
	defer r.release.Close()
	if _, err := r.release.Write([]byte{1}); err != nil {
		return fmt.Errorf("release machine %s: %w", r.Name, err)
	}
	return nil
}

// Ended returns a channel that is closed when the machine's PID 1 has ended.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Load returns the record of the machine in the folder, or process.ErrGone if none was started there.
func Load(dir string) (process.Record, error) {
	var record process.Record
	err := jsonfile.Read(filepath.Join(dir, processFile), &record)
	if errors.Is(err, fs.ErrNotExist) {
		return record, process.ErrGone
	}
	return record, err
}

// LoadSpec returns the spec of the machine in the folder.
func LoadSpec(dir string) (Spec, error) {
	var spec Spec
	if err := jsonfile.Read(filepath.Join(dir, specFile), &spec); err != nil {
		return spec, fmt.Errorf("read machine: %w", err)
	}
	return spec, nil
}

// Find returns the PID 1 of every machine whose folder is below dir, with or without a record.
func Find(dir string) ([]process.Record, error) {
	return process.Find(func(command []string) bool {
		return len(command) == 3 && command[0] == program && command[1] == Subcommand &&
			strings.HasPrefix(command[2], dir+"/")
	})
}

// LogPath returns the log file of a program of the machine.
func LogPath(dir, name string) string { return filepath.Join(dir, logFolder, name+".log") }

// Logs returns the names of the machine's programs that have a log.
func Logs(dir string) []string {
	files, _ := filepath.Glob(LogPath(dir, "*"))
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".log"))
	}
	slices.Sort(names)
	return names
}
