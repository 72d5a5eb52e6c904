// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// processTimeout is the timeout for listing the processes of a GPU.
const processTimeout = 2 * time.Second

// processes lists the processes on GPUs, and finds their containers.
type processes struct{ config Config }

type processAnswer struct {
	processes []gpu.Process
	err       error
}

// listAll lists the processes of all GPUs in parallel, in the order of the GPUs.
func (p *processes) listAll(ctx context.Context, gpus inventory.Inventory) []processAnswer {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	answers := make([]processAnswer, len(gpus))
	var all sync.WaitGroup
	for i, d := range gpus {
		all.Go(func() {
			found, err := p.config.Processes(ctx, d)
			if err != nil {
				err = fmt.Errorf("%s: %w", d.Name, err)
			}
			answers[i] = processAnswer{found, err}
		})
	}
	all.Wait()
	return answers
}

// terminationLog matches the line in mountinfo of the file that the kubelet mounts into every container, with any
// runtime. Its path contains the pod's UID and the container's name. See proc_pid_mountinfo(5): the fourth field is the
// path within the file system.
var terminationLog = regexp.MustCompile(
	`^\S+ \S+ \S+ (/\S*)?/pods/([^/\s]+)/containers/([^/\s]+)/[^/\s]+(?://deleted)? `)

// containerOf returns the container of a process. It reads mountinfo, which needs no ptrace permission. ok is false if
// the process is in no container, has ended, or has other mounts, as in a nested container.
func (p *processes) containerOf(pid int) (pod types.UID, container string, ok bool, err error) {
	data, err := os.ReadFile(filepath.Join(p.config.Proc, strconv.Itoa(pid), "mountinfo"))
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
