// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// writerDir names the directory of records in the environment of the writer.
const writerDir = "POWER_CUT_DIR"

// powerCuts is how often the power fails.
const powerCuts = 25

// A power cut at any moment loses nothing that a call has answered for: the disk has the state after the last call that
// returned, or after the one that was under way, and no torn record. The disk is an ext4 image. A copy of the image,
// taken while the writing process is stopped, has what the kernel has written to the disk by then, and lacks what was
// not synced.
func TestPowerCut(t *testing.T) {
	for _, program := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(program); err != nil || os.Getuid() != 0 {
			t.Skip("needs root and e2fsprogs: it mounts ext4 images")
		}
	}
	// The mounts are in a namespace that ends with this thread, which is never unlocked.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	disk, image, copied := filepath.Join(dir, "disk"), filepath.Join(dir, "image"), filepath.Join(dir, "copy")
	after := filepath.Join(dir, "after")
	for _, at := range []string{disk, after} {
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	command(t, "mkfs.ext4", "-q", image)
	// Without commit=, the journal is written every five seconds, as if somebody had synced.
	command(t, "mount", "-o", "loop,commit=1000", image, disk)
	defer command(t, "umount", disk)
	writer, said := startWriter(t, disk)
	defer func() {
		_ = writer.Process.Kill()
		_ = writer.Wait()
	}()

	answered := -1 // the last operation that returned
	lost := 0      // power cuts in the middle of an operation
	for range powerCuts {
		awaitLine(t, said) // it may take long to start, and to sync
		time.Sleep(rand.N(20 * time.Millisecond))
		stopProcess(t, writer.Process.Pid)
		answered += linesSoFar(t, said)
		command(t, "cp", "--sparse=always", image, copied)
		if err := syscall.Kill(writer.Process.Pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		command(t, "mount", "-o", "loop", copied, after)
		got := stateOf(after)
		command(t, "umount", after)
		switch got {
		case stateAfter(answered):
		case stateAfter(answered + 1):
			lost++
		default:
			t.Errorf("after %d operations: got %q, want %q or %q", answered+1, got, stateAfter(answered),
				stateAfter(answered+1))
		}
	}
	t.Logf("%d operations, %d power cuts, %d of them after an operation that was complete and not answered",
		answered+1, powerCuts, lost)
}

// writerOperations are the operations on each claim, and the phase of its record after each; empty: no record.
var writerOperations = []Phase{Preparing, Prepared, Releasing, ""}

// stateAfter returns the expected state after that many operations and one.
func stateAfter(operation int) string {
	if operation < 0 {
		return ""
	}
	phase := writerOperations[operation%len(writerOperations)]
	if phase == "" {
		return ""
	}
	claim := claimNumber(operation / len(writerOperations))
	return fmt.Sprintf("%s %s, on gpu-1: %s", claim, phase, claim)
}

// stateOf returns the state that a driver finds which starts after the power cut.
func stateOf(dir string) string {
	r, err := Open(dir)
	if err != nil {
		return err.Error()
	}
	records, err := r.List()
	if err != nil {
		return err.Error()
	}
	held := holders(r, "", "gpu-1")
	if len(records) == 0 {
		return held
	}
	var all []string
	for _, rec := range records {
		all = append(all, fmt.Sprintf("%s %s", rec.Claim.UID, rec.Phase))
	}
	return fmt.Sprintf("%s, on gpu-1: %s", strings.Join(all, " "), held)
}

func claimNumber(n int) types.UID { return types.UID(fmt.Sprintf("claim-%d", n)) }

// TestPowerCutWriter is the process that TestPowerCut stops: it writes and removes records until it is killed, and
// prints a line after each operation.
func TestPowerCutWriter(t *testing.T) {
	dir := os.Getenv(writerDir)
	if dir == "" {
		t.Skip("it is a part of TestPowerCut")
	}
	r := open(t, dir)
	for n := 0; ; n++ {
		for _, phase := range writerOperations {
			rec := record(claimNumber(n), phase, "gpu-1")
			if phase != "" {
				put(t, r, rec)
			} else if err := r.Delete(rec); err != nil {
				t.Fatal(err)
			}
			fmt.Println(phase)
			time.Sleep(rand.N(4 * time.Millisecond)) // without a pause, the next operation would sync this one too
		}
	}
}

func startWriter(t *testing.T, dir string) (*exec.Cmd, *os.File) {
	t.Helper()
	said, output, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	t.Cleanup(func() { _ = said.Close() })
	writer := exec.Command(os.Args[0], "-test.run=^TestPowerCutWriter$")
	writer.Env = append(os.Environ(), writerDir+"="+dir)
	writer.Stdout, writer.Stderr = output, os.Stderr
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	return writer, said
}

// stopProcess stops the process and waits until none of its threads is in a system call.
func stopProcess(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		stopped := 0
		for _, file := range threads {
			// pid (name) state
			if stat, err := os.ReadFile(file); err == nil && strings.Contains(string(stat), ") T ") {
				stopped++
			}
		}
		if stopped > 0 && stopped == len(threads) {
			return
		}
	}
	t.Fatalf("process %d does not stop", pid)
}

// awaitLine waits until there is something in the pipe.
func awaitLine(t *testing.T, pipe *os.File) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if size, err := unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ); err != nil || size > 0 {
			return // linesSoFar returns the error
		}
	}
	t.Fatal("the writer does not write")
}

// linesSoFar returns how many lines are in the pipe, to which nobody writes now.
func linesSoFar(t *testing.T, pipe *os.File) int {
	t.Helper()
	size, err := unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ) // no deadline, which a busy machine may miss
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(pipe, text); err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, output)
	}
}
