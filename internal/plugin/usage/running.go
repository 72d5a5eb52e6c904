// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Running finds running containers of a claim.
type Running struct {
	Proc string // where the proc file system of the host's PID namespace is mounted
	// MetadataDir is where kubeletplugin keeps the metadata of claims. It is mounted into their containers.
	MetadataDir string
}

// With returns descriptions of the containers that run with the claim. It reads /proc, because the kubelet forgets a
// pod that was deleted by force, and a stopped runtime does not answer, while the container still runs. It misses a
// container whose processes have all changed their root directory: mountinfo shows only mounts below the root of a
// process.
func (r Running) With(claim sharing.Claim) ([]string, error) {
	entries, err := os.ReadDir(r.Proc)
	if err != nil {
		return nil, fmt.Errorf("look for containers of claim %s: %w", claim, err)
	}
	// Paths in mountinfo are relative to the root of their file system.
	parent, name := filepath.Split(r.MetadataDir)
	mounted := []byte("/" + filepath.Base(parent) + "/" + name + "/" + claim.Namespace + "_" + claim.Name + "/")
	seen := map[string]bool{} // cgroups of containers already found
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		group, err := r.read(pid, "cgroup")
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(group, []byte("pod")) || seen[string(group)] {
			continue
		}
		mounts, err := r.read(pid, "mountinfo")
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(mounts, mounted) {
			continue // ended, or changed its root; another process of the cgroup may have the mount
		}
		seen[string(group)] = true
		container := "a container"
		if pod, name, ok := ownerOf(mounts); ok {
			container = fmt.Sprintf("container %s of pod %s", name, pod)
		}
		found = append(found, fmt.Sprintf("%s (process %d)", container, pid))
	}
	return found, nil
}

// read returns a file of a process. It is empty if the process has ended.
func (r Running) read(pid int, file string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(r.Proc, strconv.Itoa(pid), file))
	if hasEnded(err) {
		return nil, nil
	}
	return data, err
}

// hasEnded reports whether an error of reading a file in /proc/PID means that the process has ended.
func hasEnded(err error) bool {
	// EINVAL: the process is exiting
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
