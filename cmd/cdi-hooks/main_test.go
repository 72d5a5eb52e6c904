// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// What the hooks do to a container is compared with NVIDIA's program in package nvml.
func TestRun(t *testing.T) {
	for _, row := range []struct {
		name string
		args string
		want string // links, error, warnings
	}{
		{"one hook", "create-symlinks --link b::/a", "a→b"},
		{"several, of which one comes twice",
			"create-symlinks --link b::/a -- enable-cuda-compat -- create-symlinks --link d::/c", "a→b c→d"},
		{"the first that fails is named, and those after it do not run",
			"create-symlinks --link b::/a -- create-symlinks --link x -- create-symlinks --link d::/c",
			"a→b CDI hook create-symlinks: invalid symlink specification x"},
		{"an unknown flag is an error", "create-symlinks --new x",
			"CDI hook create-symlinks: flag provided but not defined: -new"},
		{"an unknown hook is left out", "new-hook --new x -- create-symlinks --link d::/c",
			"c→d Unsupported CDI hook: new-hook"},
		{"no hook", "", "No CDI hook specified"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var log strings.Builder
			logrus.SetOutput(&log)
			logrus.SetLevel(logrus.WarnLevel)
			logrus.SetFormatter(messages{})
			bundle := t.TempDir()
			root := filepath.Join(bundle, "rootfs")
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root":{"path":"rootfs"}}`),
				0o600); err != nil {
				t.Fatal(err)
			}
			defer func(f *os.File) { os.Stdin = f }(os.Stdin)
			state := strings.NewReader(fmt.Sprintf(`{"bundle":%q}`, bundle))
			err := run(append([]string{"cdi-hooks"}, strings.Fields(row.args)...), state)
			if got := describe(t, root, err, log.String()); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// Tools that watch processes see which hook runs.
func TestSetName(t *testing.T) {
	runtime.LockOSThread() // for good: the thread keeps the name, and ends with the test
	setName([]string{"disable-device-node-modification"})
	got, err := os.ReadFile("/proc/thread-self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if want := "disable-device-\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	setName(nil) // no hook: the error follows
}

// messages writes a log without levels and times.
type messages struct{}

func (messages) Format(e *logrus.Entry) ([]byte, error) { return []byte(e.Message), nil }

// describe is the links in a directory, the error, and the log.
func describe(t *testing.T, root string, err error, log string) string {
	entries, readErr := os.ReadDir(root)
	if readErr != nil {
		t.Fatal(readErr)
	}
	var all []string
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(root, e.Name()))
		all = append(all, e.Name()+"→"+target)
	}
	if err != nil {
		all = append(all, err.Error())
	}
	if log != "" {
		all = append(all, log)
	}
	return strings.Join(all, " ")
}
