// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// known is what outlasts sessions: what discoveries have found of the GPUs.
type known struct {
	mu          sync.Mutex
	gpus        map[int]discovered   // by NVML index
	version     int                  // increased when a GPU appears, disappears, answers again, or changes its MIG mode
	switching   map[gpu.UUID]int     // number of calls that are changing the MIG mode of the GPU
	partitioned map[gpu.UUID]gpu.MIG // the last known partitioning
	said        map[string]string    // logged errors, so that each is logged once

	opened      atomic.Pointer[found]
	offered     sync.Map // UUID of a GPU → []profile
	deviceNodes sync.Map // paths of device nodes that have existed
	registering sync.Map // UUID of a GPU → since when it is not registered with the fabric
}

// discovered is what a discovery has read from a GPU.
type discovered struct {
	device gpu.Device
	links  links
	// persistent is whether the driver keeps the GPU's settings when no program has it open.
	persistent bool
	silent     bool // it did not answer at the last discovery
	health     gpu.Health
	checked    time.Time // when the health was read
	recheck    time.Time // when Recheck last asked for it
	full       time.Time // the last full read
	last       time.Time // the last answer
}

// at returns what is known of the GPU with the index, and the key of calls for it.
func (k *known) at(index int) (discovered, gpu.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.gpus[index]
	if known.device.UUID != "" {
		return known, known.device.UUID
	}
	return known, gpu.UUID(fmt.Sprintf("index %d", index))
}

func (k *known) keep(index int, r discovered) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gpus == nil {
		k.gpus = map[int]discovered{}
	}
	if was := k.gpus[index]; was.silent || was.device.UUID != r.device.UUID {
		k.version++
	}
	r.silent, r.recheck = false, k.gpus[index].recheck // which may be newer than r
	k.gpus[index] = r
}

// silent records that the GPU with the index, which is known, does not answer.
func (k *known) silent(index int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r, known := k.gpus[index]; known {
		r.silent = true
		k.gpus[index] = r
	}
}

func (k *known) answered() map[gpu.UUID]time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[gpu.UUID]time.Time{}
	for _, r := range k.gpus {
		all[r.device.UUID] = r.last
	}
	return all
}

// keepFirst forgets the GPUs with higher indices: there are fewer now.
func (k *known) keepFirst(count int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.gpus)
	maps.DeleteFunc(k.gpus, func(index int, _ discovered) bool { return index >= count })
	if len(k.gpus) != before {
		k.version++
	}
}

// indexOf returns the index of the GPU at the last discovery.
func (k *known) indexOf(id gpu.UUID) (int, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for index, r := range k.gpus {
		if r.device.UUID == id {
			return index, true
		}
	}
	return 0, false
}

// persistent reports whether all GPUs keep their settings when no program has them open.
func (k *known) persistent() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.gpus {
		if !r.persistent {
			return false
		}
	}
	return true
}

// startSwitch records that the MIG mode of the GPU is being changed, until end is called.
func (k *known) startSwitch(id gpu.UUID) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.switching == nil {
		k.switching = map[gpu.UUID]int{}
	}
	k.switching[id]++
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.switching[id]--
	}
}

func (k *known) isSwitching(id gpu.UUID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.switching[id] > 0
}

// anySwitching reports whether the MIG mode of any GPU is being changed.
func (k *known) anySwitching() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.switching {
		if n > 0 {
			return true
		}
	}
	return false
}

// partitioning returns the last known partitioning of the GPU.
func (k *known) partitioning(id gpu.UUID) (was gpu.MIG, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, known = k.partitioned[id]
	return was, known
}

func (k *known) keepPartitioning(id gpu.UUID, m gpu.MIG) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.partitioned == nil {
		k.partitioned = map[gpu.UUID]gpu.MIG{}
	}
	k.partitioned[id] = m
}

// note logs an error about a property of the GPU, once, unless it is one of fine.
func (k *known) note(d gpu.Device, what string, err error, fine ...error) {
	if slices.Contains(fine, err) {
		return
	}
	about := d.Name + " " + what
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.said == nil {
		k.said = map[string]string{}
	}
	if text := err.Error(); k.said[about] != text {
		k.said[about] = text
		klog.Background().Info(what, "device", d.Name, "uuid", d.UUID, "err", err)
	}
}

// changed records a change of a GPU that no discovery sees.
func (k *known) changed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
}

// changes returns how often the GPUs have changed.
func (k *known) changes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.version
}
