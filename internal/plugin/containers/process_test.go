// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOfProcess(t *testing.T) {
	proc := t.TempDir()
	const line = "1 2 8:1 %s /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"
	for i, row := range []struct{ name, root, want string }{
		{"the usual place", "/var/lib/kubelet/pods/0f/containers/main/1a2b", "0f main true"},
		{"a file system of the kubelet's own", "/pods/0f/containers/main/1a2b", "0f main true"},
		{"somebody has removed it", "/pods/0f/containers/main/1a2b//deleted", "0f main true"},
		{"another file of the pod", "/var/lib/kubelet/pods/0f/etc-hosts", "  false"},
		{"a volume that looks like it", "/var/lib/kubelet/pods/0f/volumes/containers/main/1a2b", "  false"},
		{"a directory above", "/var/lib/kubelet/pods/0f/containers/main", "  false"},
		{"a program's own", "/srv/mypods/0f/containers/main/1a2b", "  false"},
		{"beside a path of a volume that looks like another",
			"/var/lib/kubelet/pods/0f/volumes/kubernetes.io~empty-dir/v/pods/1f/containers/other/x|" +
				"/var/lib/kubelet/pods/0f/containers/main/1a2b", "0f main true"},
		{"beside one of another file system",
			"/pods/1f/containers/other/x|/var/lib/kubelet/pods/0f/containers/main/1a2b", "  false"},
	} {
		mounts := "9 1 0:20 / / rw - overlay overlay rw\n"
		for root := range strings.SplitSeq(row.root, "|") {
			mounts += fmt.Sprintf(line, root)
		}
		must(t, os.Mkdir(filepath.Join(proc, fmt.Sprint(i)), 0o755))
		must(t, os.WriteFile(filepath.Join(proc, fmt.Sprint(i), "mountinfo"), []byte(mounts), 0o600))
		pod, container, ok, err := OfProcess(proc, i)
		if got := fmt.Sprint(pod, " ", container, " ", ok); got != row.want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", row.name, got, err, row.want)
		}
	}
}
