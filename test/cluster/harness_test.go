// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/residue"
)

// ours is the prefix of all cluster names of this test run.
var ours = fmt.Sprintf("test%d", os.Getpid())

var workDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gpu-dra-cluster-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workDir = dir
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// binary builds the program once. With `go run`, a kill would only reach the go command.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(workDir, "cluster")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return path, nil
})

// requireMachine skips the test on a machine that cannot run a cluster.
func requireMachine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: -short, and this starts clusters")
	}
	if os.Geteuid() != 0 {
		t.Skip("skipped: not root, and this makes namespaces, mounts and control groups")
	}
	if out, err := command(t, "check").CombinedOutput(); err != nil {
		t.Skipf("skipped: %s", bytes.TrimSpace(out))
	}
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// must runs the program and returns its standard output.
func must(t *testing.T, args ...string) string {
	t.Helper()
	cmd := command(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("cluster %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// fails runs the program, which must fail, and returns its stderr.
func fails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command(t, args...).CombinedOutput()
	if err == nil {
		t.Fatalf("cluster %s: succeeded\n%s", strings.Join(args, " "), out)
	}
	return string(out)
}

// ending makes the test remove the cluster at its end.
func ending(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := command(t, "down", "--name", name).CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
}

// until starts the program and returns when it has printed the text on stderr. The program still runs then.
func until(t *testing.T, cmd *exec.Cmd, text string) {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen []string
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	_ = cmd.Wait()
	t.Fatalf("ended before it said %q:\n%s", text, strings.Join(seen, "\n"))
}

// leavesNothing runs do and fails the test if the machine has changed. If only other clusters changed, it logs that and
// tries again; it fails if that happens every time.
func leavesNothing(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	const attempts = 3
	for attempt := 1; ; attempt++ {
		before := snapshot(t)
		do(t)
		own, foreign := split(residue.Diff(before, snapshot(t)))
		switch {
		case len(own) == 0 && len(foreign) == 0:
			return
		case len(own) > 0:
			t.Fatalf("the machine changed:\n%s\nbeside %d changes of other clusters", strings.Join(own, "\n"),
				len(foreign))
		case attempt == attempts:
			t.Fatalf("other clusters of this machine changed each time, so nothing is proved; stop them, or wait. "+
				"The last time:\n%s",
				strings.Join(foreign[:min(len(foreign), 10)], "\n"))
		}
		t.Logf("attempt %d: only other clusters of this machine changed (%d changes); again", attempt, len(foreign))
	}
}

// split separates changes that certainly belong to other clusters from the rest. The folder of all clusters appears
// with the first cluster and disappears with the last.
func split(changes []string) (own, foreign []string) {
	for _, c := range changes {
		if other := residue.ClusterOf(c); other != "" && !strings.HasPrefix(other, ours) {
			foreign = append(foreign, c)
		} else {
			own = append(own, c)
		}
	}
	if len(foreign) > 0 {
		own = slices.DeleteFunc(own, func(c string) bool { return strings.HasSuffix(c, " path "+cluster.DefaultState) })
	}
	return own, foreign
}

func snapshot(t *testing.T) residue.Snapshot {
	t.Helper()
	s, err := residue.Take()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
