// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"maps"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// answers caches the toolkit's answers until a file or directory changes that the toolkit looked at, because an answer
// takes milliseconds. Errors are not cached.
type answers struct {
	mu    sync.Mutex
	found map[subject]answer
}

// subject is the key of an answer: a GPU with the minor number of its device node, or the driver with the version of
// its kernel module.
type subject struct {
	gpu    gpu.UUID
	minor  int
	module string
}

type answer struct {
	access gpu.Access
	inputs inputs
	since  time.Time
}

// maxAge is the maximum age of an answer. It bounds what the inputs do not tell, such as the mode of a program.
const maxAge = time.Hour

// get returns the cached answer, or calls find, which records what it looks at.
func (a *answers) get(id subject, find func(inputs) (gpu.Access, error)) (gpu.Access, error) {
	a.mu.Lock()
	known, ok := a.found[id]
	a.mu.Unlock()
	if ok && time.Since(known.since) < maxAge && known.inputs.unchanged() {
		return known.access.Clone(), nil
	}
	now, start := inputs{}, time.Now()
	access, err := find(now)
	if err != nil || !now.settled(start, time.Now()) {
		return access, err
	}
	now.compact()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.found == nil {
		a.found = map[subject]answer{}
	}
	maps.DeleteFunc(a.found, func(other subject, _ answer) bool { return other.gpu == id.gpu })
	a.found[id] = answer{access.Clone(), now, start}
	return access, nil
}
