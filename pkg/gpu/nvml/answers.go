// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// answers keeps what the toolkit found, for as long as the folders it looked into are the same: looking takes it milliseconds.
// Mistakes are not kept.
type answers struct {
	mu    sync.Mutex
	seen  string    // fingerprint of the folders
	since time.Time // when the first of the answers was found
	known map[subject]gpu.Access
}

// maxAge is how long an answer holds at most: not all that the toolkit gives is in the folders of the fingerprint.
const maxAge = 5 * time.Minute

// subject is what an answer is about: a GPU, under the minor number of its device node, or the driver (zero).
type subject struct {
	gpu   gpu.UUID
	minor int
}

// get is the answer from before, or the one found now.
func (a *answers) get(id subject, root DriverRoot, find func() (gpu.Access, error)) (gpu.Access, error) {
	now := root.fingerprint()
	a.mu.Lock()
	if a.seen != now || time.Since(a.since) > maxAge {
		a.seen, a.since, a.known = now, time.Now(), map[subject]gpu.Access{}
	}
	access, ok := a.known[id]
	a.mu.Unlock()
	if ok {
		return access.Clone(), nil
	}
	access, err := find()
	if err != nil {
		return gpu.Access{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == now { // not changed while the toolkit was looking
		a.known[id] = access.Clone()
	}
	return access, nil
}

// watchedDirs are where the driver has device nodes, programs and libraries, and its services their sockets.
var watchedDirs = append([]string{"dev", "usr/bin", "run/nvidia-persistenced", "run/nvidia-fabricmanager", "tmp/nvidia-mps"}, libraryDirs...)

// fingerprint changes when a file comes to, goes from or is replaced in a folder that is watched.
func (r DriverRoot) fingerprint() string {
	var b strings.Builder
	look := func(root, dir string) {
		info, err := os.Stat(filepath.Join(root, dir))
		if err != nil {
			fmt.Fprintf(&b, "%s -\n", dir)
			return
		}
		fmt.Fprintf(&b, "%s %d\n", dir, info.ModTime().UnixNano())
	}
	for _, dir := range watchedDirs {
		look(r.Here, dir)
	}
	if dev, _ := r.dev(); dev != r.Here {
		look(dev, "dev")
	}
	return b.String()
}
