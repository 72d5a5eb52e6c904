// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestCheckWatches: what a control plane, and one node with the driver, use is just enough. The limit is that of
// a user namespace for the test program alone.
func TestCheckWatches(t *testing.T) {
	const limit, inside = "/proc/sys/user/max_inotify_instances", "PREFLIGHT_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCheckWatches$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "--- SKIP") {
			t.Skip(string(out))
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for nodes, counted := range []int{11, 23} {
		needs := fmt.Sprintf("%d nodes need about %d inotify instances and this user can have ", nodes, counted)
		for _, missing := range []int{1, 0} {
			if err := os.WriteFile(limit, fmt.Append(nil, counted-missing), 0); err != nil {
				t.Skip("a user namespace cannot have its own limit here:", err)
			}
			got := fmt.Sprint(CheckWatches(nodes))
			switch {
			case missing > 0 && !strings.Contains(got, fmt.Sprint(needs, counted-1, " more")):
				t.Errorf("%d instances: got %q, want %q", counted-1, got, needs)
			case missing == 0 && strings.Contains(got, needs):
				t.Skip("the programs of this machine have used up fs.inotify.max_user_instances:", got)
			case missing == 0 && got != "<nil>":
				t.Errorf("%d instances: got %q, want no error", counted, got)
			}
		}
	}
}
