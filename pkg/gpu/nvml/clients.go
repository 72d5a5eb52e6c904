// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// programs implements Machine.Users.
func (s *session) programs(d gpu.Device) ([]string, error) {
	handle, err := s.handle(d.UUID)
	if err != nil {
		return nil, err
	}
	listed, err := s.memoryByProcess(handle)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", d.UUID, err)
	}
	return s.processNames(slices.Sorted(maps.Keys(listed))), nil
}

// clients names the programs that use the GPU: those that NVML lists, or else those that have its device node open,
// such as monitoring programs. Both cover only the PID namespace of this process.
func (s *session) clients(handle nvmllib.Device) []string {
	var pids []int
	if listed, err := s.memoryByProcess(handle); err == nil {
		pids = slices.Sorted(maps.Keys(listed))
	}
	if len(pids) == 0 {
		pids = s.openedBy(handle, s.cachedOpeners)
	}
	return s.processNames(pids)
}

// openersOf implements Machine.Openers.
func (s *session) openersOf(id gpu.UUID) ([]string, error) {
	handle, err := s.handle(id)
	if err != nil {
		return nil, err
	}
	names := s.clients(handle)
	if len(names) > 0 || persistent(handle) { // NVIDIA's persistence daemon lets it go when the mode ends
		return names, nil
	}
	return s.allNames(s.openedBy(handle, s.cachedOpeners)), nil
}

// openedBy returns the processes that have the GPU open.
func (s *session) openedBy(handle nvmllib.Device, open func(path string) []int) []int {
	minor, ret := handle.GetMinorNumber()
	if ret != nvmllib.SUCCESS {
		return nil
	}
	return open(driverroot.DeviceNode(minor))
}

// processNames names the processes, without NVIDIA's persistence daemon.
func (s *session) processNames(pids []int) []string {
	return s.allNames(slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		return strings.HasPrefix(s.processName(pid), persistenced)
	}))
}

func (s *session) allNames(pids []int) []string {
	var names []string
	for _, pid := range pids {
		names = append(names, fmt.Sprintf("process %d (%s)", pid, s.processName(pid)))
	}
	return names
}

// persistenced is the beginning of nvidia-persistenced, as long as the kernel keeps a name. It has every GPU open and
// is in nobody's way.
const persistenced = "nvidia-persiste"

// openersAge is how long the result of openers is cached. A call that waits for a GPU needs it each second, and it
// reads every open file descriptor of the machine.
const openersAge = 5 * time.Second

// found is a result of openers.
type found struct {
	at   time.Time
	pids map[string][]int // of processes, by the file that they have open
}

// cachedOpeners returns the openers of a device node, cached for openersAge.
func (s *session) cachedOpeners(path string) []int { return s.known.openers(s.config.Proc)[path] }

// openers returns openers, cached for openersAge.
func (k *known) openers(proc string) map[string][]int {
	if last := k.opened.Load(); last != nil && time.Since(last.at) < openersAge {
		return last.pids
	}
	pids := openers(proc)
	k.opened.Store(&found{time.Now(), pids})
	return pids
}

// openers returns the PIDs of other processes, ascending, by the device nodes of NVIDIA's driver that they have open.
func openers(proc string) map[string][]int {
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return nil
	}
	pids := map[string][]int{}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, driverroot.DeviceNodes) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link)))); err == nil && pid != os.Getpid() {
			pids[target] = append(pids[target], pid)
		}
	}
	for path, all := range pids {
		slices.Sort(all)
		pids[path] = slices.Compact(all)
	}
	return pids
}

func (s *session) processName(pid int) string {
	if name, ret := s.lib.SystemGetProcessName(pid); ret == nvmllib.SUCCESS && name != "" {
		return filepath.Base(name)
	}
	comm, err := os.ReadFile(filepath.Join(s.config.Proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(comm))
}
