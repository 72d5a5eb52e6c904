// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// answers keeps what the toolkit found, for as long as the folders it looked into are the same: looking takes it milliseconds.
// Mistakes are not kept.
type answers struct {
	mu    sync.Mutex
	seen  string // fingerprint of the folders
	known map[gpu.UUID]gpu.Access
}

// get is the answer for a GPU, or for the driver (""), from before or found now.
func (a *answers) get(id gpu.UUID, root DriverRoot, find func() (gpu.Access, error)) (gpu.Access, error) {
	now := root.fingerprint()
	a.mu.Lock()
	if a.seen != now {
		a.seen, a.known = now, map[gpu.UUID]gpu.Access{}
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

// fingerprint changes when a file comes to, goes from or is replaced in a folder where the driver has libraries, programs or
// device nodes.
func (r DriverRoot) fingerprint() string {
	var b strings.Builder
	for _, dir := range append([]string{"dev", "usr/bin"}, libraryDirs...) {
		info, err := os.Stat(filepath.Join(r.Here, dir))
		if err != nil {
			fmt.Fprintf(&b, "%s -\n", dir)
			continue
		}
		fmt.Fprintf(&b, "%s %d\n", dir, info.ModTime().UnixNano())
	}
	return b.String()
}
