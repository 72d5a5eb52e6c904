// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// usageTimeout is how long a GPU may take to answer.
const usageTimeout = 2 * time.Second

// usage finds out which processes use GPUs, and whose they are.
type usage struct {
	processes func(gpu.Device) ([]gpu.Process, error)
	proc      string // the proc file system of the PID namespace in which processes has its PIDs

	mu     sync.Mutex
	asking map[gpu.UUID]bool // GPUs that have not answered yet: one that hangs is not asked again
}

type usageAnswer struct {
	processes []gpu.Process
	err       error
}

// ask asks all GPUs at once, and answers in their order.
func (u *usage) ask(ctx context.Context, gpus inventory.Inventory) []usageAnswer {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	answers := make([]usageAnswer, len(gpus))
	var all sync.WaitGroup
	for i, d := range gpus {
		all.Go(func() { answers[i] = u.askOne(ctx, d) })
	}
	all.Wait()
	return answers
}

func (u *usage) askOne(ctx context.Context, d gpu.Device) usageAnswer {
	u.mu.Lock()
	hangs := u.asking[d.UUID]
	u.asking[d.UUID] = true
	u.mu.Unlock()
	if hangs {
		return usageAnswer{err: fmt.Errorf("%s: still does not answer", d.Name)}
	}
	answered := make(chan usageAnswer, 1)
	go func() {
		processes, err := u.processes(d)
		u.mu.Lock()
		delete(u.asking, d.UUID)
		u.mu.Unlock()
		answered <- usageAnswer{processes, err}
	}()
	select {
	case answer := <-answered:
		return answer
	case <-ctx.Done():
		return usageAnswer{err: fmt.Errorf("%s: does not answer: %w", d.Name, ctx.Err())}
	}
}

// terminationLog is, in a line of mountinfo, the file that the kubelet mounts into every container, whatever the runtime: its path
// has the pod and the name of the container in it. See proc_pid_mountinfo(5): the fourth field is the path within the file system.
var terminationLog = regexp.MustCompile(`^\S+ \S+ \S+ (?:/\S*)?/pods/([^/\s]+)/containers/([^/\s]+)/[^/\s]+(?://deleted)? `)

// containerOf says whose container a process is in. It reads mountinfo, for which no right is needed to look into the process. ok is
// false when it is in none, has ended, or has mounts of its own, such as a container within a container.
func (u *usage) containerOf(pid int) (pod types.UID, container string, ok bool, err error) {
	data, err := os.ReadFile(filepath.Join(u.proc, strconv.Itoa(pid), "mountinfo"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: it is ending
		return "", "", false, nil
	}
	if err != nil {
		return "", "", false, fmt.Errorf("find the container of a process: %w", err)
	}
	for line := range bytes.Lines(data) {
		if m := terminationLog.FindSubmatch(line); m != nil {
			return types.UID(m[1]), string(m[2]), true, nil
		}
	}
	return "", "", false, nil
}
