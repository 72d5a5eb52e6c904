// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Others remembers the PCI functions that are no NVIDIA GPUs, for Drivers: a function never becomes another one. The
// zero value remembers none yet.
type Others struct {
	mu     sync.Mutex
	inodes map[gpu.PCIAddress]uint64 // of sysfs's entries; Linux gives each new entry another one
}

// displays returns the addresses of NVIDIA's display controllers, with virtual functions.
func (b Bus) displays() ([]gpu.PCIAddress, error) {
	entries, err := os.ReadDir(filepath.Join(b.Sysfs, "bus/pci/devices"))
	if err != nil {
		return nil, err
	}
	others := b.Others
	if others == nil {
		others = &Others{}
	}
	others.mu.Lock()
	defer others.mu.Unlock()
	var found []gpu.PCIAddress
	now := map[gpu.PCIAddress]uint64{}
	for _, e := range entries {
		at, err := gpu.ParsePCIAddress(e.Name())
		if err != nil {
			continue
		}
		inode := inodeOf(e)
		if inode != 0 && others.inodes[at] == inode {
			now[at] = inode
			continue
		}
		switch vendor, class := b.number(at, "vendor"), b.number(at, "class"); {
		case vendor == numberNVIDIA && class>>16 == classDisplay:
			found = append(found, at)
		case vendor != 0 && class != 0: // otherwise it has just gone
			now[at] = inode
		}
	}
	others.inodes = now
	return found, nil
}

// inodeOf returns the inode of the entry, not of what it links to; 0: it has just gone.
func inodeOf(e fs.DirEntry) uint64 {
	info, err := e.Info()
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}
