// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// terminationLog matches the line in mountinfo of the file that the kubelet mounts into every container, with any
// runtime. Its path contains the pod's UID and the container's name. See proc_pid_mountinfo(5): the fourth field is the
// path within the file system.
var terminationLog = regexp.MustCompile(
	`^\S+ \S+ \S+ (/\S*)?/pods/([^/\s]+)/containers/([^/\s]+)/[^/\s]+(?://deleted)? `)

// OfProcess returns the container of the process with this PID in the proc file system proc. It reads mountinfo, which
// needs no ptrace permission. ok is false if the process is in no container, has ended, or has other mounts, as in a
// nested container.
func OfProcess(proc string, pid int) (pod types.UID, container string, ok bool, err error) {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "mountinfo"))
	if hasEnded(err) {
		return "", "", false, nil
	}
	if err != nil {
		return "", "", false, fmt.Errorf("find the container of a process: %w", err)
	}
	pod, container, ok = ownerOf(data)
	return pod, container, ok, nil
}

// ownerOf finds the container in the mountinfo of a process. A pod can mount a path of a volume that looks like that of
// another container: below the pod's own directory, which does not count, or in another file system. Then it is nobody.
func ownerOf(mountinfo []byte) (pod types.UID, container string, ok bool) {
	for line := range bytes.Lines(mountinfo) {
		m := terminationLog.FindSubmatch(line)
		if m == nil || bytes.Contains(m[1], []byte("/pods/")) {
			continue
		}
		if ok && (pod != types.UID(m[2]) || container != string(m[3])) {
			return "", "", false
		}
		pod, container, ok = types.UID(m[2]), string(m[3]), true
	}
	return pod, container, ok
}

// hasEnded reports whether an error of reading a file in /proc/PID means that the process has ended.
func hasEnded(err error) bool {
	// EINVAL: the process is exiting
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
