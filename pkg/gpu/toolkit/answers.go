// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// answers caches the toolkit's answers until the watched directories change, because an answer takes milliseconds.
// Errors are not cached.
type answers struct {
	mu    sync.Mutex
	seen  string    // fingerprint of the directories
	since time.Time // when the first answer was found
	found map[subject]gpu.Access
}

// maxAge is the maximum age of an answer, because the toolkit also uses files outside of the watched directories.
const maxAge = 5 * time.Minute

// subject is the key of an answer: a GPU with the minor number of its device node, or the driver (zero).
type subject struct {
	gpu   gpu.UUID
	minor int
}

// get returns the cached answer, or calls find.
func (a *answers) get(id subject, driver driverroot.Root, find func() (gpu.Access, error)) (gpu.Access, error) {
	now := fingerprint(driver)
	a.mu.Lock()
	if a.seen != now || time.Since(a.since) > maxAge {
		a.seen, a.since, a.found = now, time.Now(), map[subject]gpu.Access{}
	}
	access, ok := a.found[id]
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
	if a.seen == now { // not changed meanwhile
		a.found[id] = access.Clone()
	}
	return access, nil
}

// watchedDirs are the directories of the driver's device nodes, programs and libraries, and of its services' sockets.
var watchedDirs = append(driverroot.Watched(), "dev", "run/nvidia-persistenced", "run/nvidia-fabricmanager",
	"tmp/nvidia-mps")

// fingerprint changes when a file is added to, removed from or replaced in a watched directory, and when another root
// is mounted.
func fingerprint(driver driverroot.Root) string {
	var b strings.Builder
	add := func(root, dir string) {
		info, err := os.Stat(filepath.Join(root, dir))
		if err != nil {
			fmt.Fprintf(&b, "%s -\n", dir)
			return
		}
		stat := info.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&b, "%s %d %d %d\n", dir, stat.Dev, stat.Ino, info.ModTime().UnixNano())
	}
	for _, dir := range watchedDirs {
		add(driver.Here, dir)
	}
	if dev, _ := driver.Dev(); dev != driver.Here {
		add(dev, "dev")
	}
	return b.String()
}
