// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// controlProgram is NVIDIA's program that is both the daemon and what talks to it.
const controlProgram = "nvidia-cuda-mps-control"

// Where distributions put the driver's programs and libraries, relative to its root.
var (
	programDirs = []string{"usr/bin", "bin", "usr/sbin", "sbin", "usr/local/bin"}
	libraryDirs = []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
		"lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	}
)

// driver is the root of NVIDIA's driver, as this program sees it.
type driver string

// control is the path of the control program.
func (d driver) control() (string, error) {
	for _, dir := range programDirs {
		path := filepath.Join(string(d), dir, controlProgram)
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s is in no directory for programs below %s: install the driver with its compute utilities", controlProgram, d)
}

// environment is what the programs of the daemon need to know. libraries is a directory of the driver's libraries, "" for none.
func (d driver) environment(dir mps.Dir, id string, libraries string) []string {
	var path []string
	for _, p := range programDirs {
		path = append(path, filepath.Join(string(d), p))
	}
	env := []string{
		"PATH=" + strings.Join(append(path, os.Getenv("PATH")), ":"), // the daemon looks there for its server
		"CUDA_MPS_PIPE_DIRECTORY=" + dir.Pipe(id),
		"CUDA_MPS_LOG_DIRECTORY=" + dir.Log(id),
	}
	if libraries != "" {
		env = append(env, "LD_LIBRARY_PATH="+libraries)
	}
	return env
}

// gather fills the directory with links to the driver's own libraries and returns it. A search path into the root would also find
// the root's C library, which may not fit the loader of this container. Where the driver is that of this system there is nothing to
// gather: then it returns "".
func (d driver) gather(dir string) (string, error) {
	if filepath.Clean(string(d)) == "/" {
		return "", nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, from := range libraryDirs {
		for _, pattern := range []string{"libcuda*.so*", "libnvidia-*.so*"} {
			found, err := filepath.Glob(filepath.Join(string(d), from, pattern))
			if err != nil {
				return "", err
			}
			for _, path := range found {
				if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil && !errors.Is(err, fs.ErrExist) {
					return "", err
				}
			}
		}
	}
	return dir, nil
}

// answerTime is how long the daemon may take to answer commands.
const answerTime = 10 * time.Second

// errNoDaemon means that no daemon answers.
var errNoDaemon = errors.New("no daemon answers")

// say sends the commands, a line each, to the daemon that the environment names, and returns what it prints. Of real drivers it is
// not documented whether the exit code tells that a command was refused, so the text is looked at, too. Error: errNoDaemon.
func say(ctx context.Context, program string, env []string, commands ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	lower := strings.ToLower(text)
	switch {
	case ctx.Err() != nil:
		return text, fmt.Errorf("%s: no answer within %s", commands[0], answerTime)
	case strings.Contains(lower, "cannot find mps control"):
		return text, errNoDaemon
	case err != nil || strings.Contains(lower, "invalid") || strings.Contains(lower, "fail") || strings.Contains(lower, "error"):
		if err == nil {
			err = errors.New("refused")
		}
		return text, fmt.Errorf("%s: %w: %s", strings.Join(commands, "; "), err, oneLine(text))
	}
	return text, nil
}

// oneLine is the text with its lines after each other.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.TrimSpace(text), func(c rune) bool { return c == '\n' || c == '\r' }), "; ")
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

const tailSize = 1 << 10

// Write takes everything.
func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// lines are the last few lines, as one.
func (t *tail) lines() string {
	const few = 3
	all := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return oneLine(strings.Join(all[max(0, len(all)-few):], "\n"))
}
