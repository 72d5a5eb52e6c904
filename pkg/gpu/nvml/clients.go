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
		if minor, ret := handle.GetMinorNumber(); ret == nvmllib.SUCCESS {
			pids = s.cachedOpeners(driverroot.DeviceNode(minor))
		}
	}
	return s.processNames(pids)
}

func (s *session) processNames(pids []int) []string {
	var names []string
	for _, pid := range pids {
		name := s.processName(pid)
		if strings.HasPrefix(name, persistenced) {
			continue
		}
		names = append(names, fmt.Sprintf("process %d (%s)", pid, name))
	}
	return names
}

// persistenced is the beginning of nvidia-persistenced, as long as the kernel keeps a name. It has every GPU open and
// is in nobody's way.
const persistenced = "nvidia-persiste"

// openersAge is how long the result of openers is cached. A call that waits for a GPU needs it each second, and it
// reads every open file descriptor of the machine.
const openersAge = 5 * time.Second

// found is a cached result of openers.
type found struct {
	at   time.Time
	pids []int
}

// cachedOpeners returns openers, cached for openersAge.
func (s *session) cachedOpeners(path string) []int {
	if last, ok := s.opened.Load(path); ok && time.Since(last.(found).at) < openersAge {
		return last.(found).pids
	}
	now := found{time.Now(), openers(s.config.Proc, path)}
	s.opened.Store(path, now)
	return now.pids
}

// openers returns the PIDs of other processes that have the file open.
func openers(proc, path string) []int {
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != path {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link)))); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
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
