// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// controlProgram is NVIDIA's program for both the daemon and its commands.
const controlProgram = "nvidia-cuda-mps-control"

// findControl returns the path of the control program.
func findControl(driver driverroot.Root) (string, error) {
	path, err := driver.Program(controlProgram)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: install the driver with its compute utilities", err)
	}
	return path, err
}

// environment returns the variables of the daemon's programs. libraries is a directory of the driver's libraries, ""
// for none.
func environment(driver driverroot.Root, dir mps.Dir, id, libraries string) []string {
	env := []string{
		// The daemon looks there for its server.
		"PATH=" + strings.Join(append(driver.ProgramDirs(), os.Getenv("PATH")), ":"),
		"CUDA_MPS_PIPE_DIRECTORY=" + dir.Pipe(id),
		"CUDA_MPS_LOG_DIRECTORY=" + dir.Log(id),
	}
	if libraries != "" {
		env = append(env, "LD_LIBRARY_PATH="+libraries)
	}
	return env
}

// linkLibraries fills the directory with links to the driver's libraries and returns it. A search path into the root
// would also find the root's C library, which may not fit the loader of this container. It returns "" if the root is
// that of this system.
func linkLibraries(driver driverroot.Root, dir string) (string, error) {
	if filepath.Clean(driver.Here) == "/" {
		return "", nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	found, err := driver.Libraries("libcuda*.so*", "libnvidia-*.so*")
	if err != nil {
		return "", err
	}
	for name, path := range found {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// commandTimeout is how long the daemon may take to answer commands.
const commandTimeout = 10 * time.Second

// noControlDaemon is what the control program prints when it finds no daemon, in lower case.
const noControlDaemon = "cannot find mps control daemon"

// cannotSend is what the control program prints when the daemon does not take a command, such as while another program
// sends some, in lower case. R535 to R555 do.
const cannotSend = "cannot send command to mps control daemon"

// errNoAnswer means that there is no daemon, or that it does not take the commands or answer in time.
var errNoAnswer = errors.New("no answer")

// refusals are the texts of commands that the daemon has not carried out, in lower case.
var refusals = []string{"invalid", "fail", "error", "unknown command", "not found"}

// sendCommands sends the commands to the daemon that the environment names, one per line, and returns its output. It
// also searches the output for errors, because it is not documented that refused commands set the exit code. Error:
// errNoAnswer.
func sendCommands(ctx context.Context, program string, env []string, commands ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
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
		return text, fmt.Errorf("%s: %w within %s", strings.Join(commands, "; "), errNoAnswer, commandTimeout)
	case strings.Contains(lower, noControlDaemon), strings.Contains(lower, cannotSend):
		return text, fmt.Errorf("%w: %s", errNoAnswer, oneLine(text))
	case err != nil || slices.ContainsFunc(refusals, func(r string) bool { return strings.Contains(lower, r) }):
		if err == nil {
			err = errors.New("refused")
		}
		return text, fmt.Errorf("%s: %w: %s", strings.Join(commands, "; "), err, oneLine(text))
	}
	return text, nil
}

// oneLine joins the lines of the text.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.TrimSpace(text), func(c rune) bool {
		return c == '\n' || c == '\r'
	}), "; ")
}

// tail keeps the end of what is written to it.
type tail struct {
	text []byte
	cut  bool // text does not have the beginning
}

const tailSize = 1 << 10

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text, t.cut = append(t.text[:0], t.text[over:]...), true
	}
	return len(b), nil
}

// firstLine returns the first line, "" if it is not kept.
func (t *tail) firstLine() string {
	if t.cut {
		return ""
	}
	line, _, _ := strings.Cut(string(t.text), "\n")
	return line
}

// lastLines returns the last few lines, joined.
func (t *tail) lastLines() string {
	const few = 3
	all := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return oneLine(strings.Join(all[max(0, len(all)-few):], "\n"))
}
