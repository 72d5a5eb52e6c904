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

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Users name the programs that NVML lists on the GPU.
func (n *Node) Users(d gpu.Device) ([]string, error) {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(d.UUID))
	if ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("get handle of GPU %s: %w", d.UUID, ret)
	}
	listed, err := n.memoryByProcess(handle)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", d.UUID, err)
	}
	return n.processNames(slices.Sorted(maps.Keys(listed))), nil
}

// clients name the programs that use the GPU: those that NVML lists, or else those that have its device node open, as monitoring
// programs do. Both see the PID namespace of this process only.
func (n *Node) clients(handle nvmllib.Device) []string {
	var pids []int
	if listed, err := n.memoryByProcess(handle); err == nil {
		pids = slices.Sorted(maps.Keys(listed))
	}
	if len(pids) == 0 {
		if minor, ret := handle.GetMinorNumber(); ret == nvmllib.SUCCESS {
			pids = n.openers(nodePath(minor))
		}
	}
	return n.processNames(pids)
}

func (n *Node) processNames(pids []int) []string {
	var names []string
	for _, pid := range pids {
		names = append(names, fmt.Sprintf("process %d (%s)", pid, n.processName(pid)))
	}
	return names
}

// openers are the processes, other than this one, that have the file open.
func (n *Node) openers(path string) []int {
	links, err := filepath.Glob(filepath.Join(n.Proc, "[0-9]*", "fd", "*"))
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

func (n *Node) processName(pid int) string {
	if name, ret := n.Library.SystemGetProcessName(pid); ret == nvmllib.SUCCESS && name != "" {
		return filepath.Base(name)
	}
	comm, err := os.ReadFile(filepath.Join(n.Proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(comm))
}
