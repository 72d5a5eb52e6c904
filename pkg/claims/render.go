// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Paths are places on the host that containers get to see.
type Paths struct {
	// SharedMemory is where MPS daemons have their /dev/shm, which their clients need. Empty: they need none.
	SharedMemory string
	// Preload keeps the files that make the dynamic loader load a hook library.
	Preload string
}

// render asks what the containers need: one CDI device for each assignment.
func (p *Preparer) render(node Node, rec checkpoint.Record) ([]cdi.Device, error) {
	var devices []cdi.Device
	for _, a := range rec.Plan.Assignments {
		access, err := node.access(a)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
			access.Env = append(access.Env, name+"="+a.Environment[name])
		}
		limits, err := p.limits(node, a)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", a.Device, err)
		}
		access.Append(limits)
		devices = append(devices, cdi.Device{Name: cdiName(rec.Claim.UID, a), Access: access})
	}
	return devices, nil
}

// limits is what keeps the containers within their limits.
func (p *Preparer) limits(node Node, a sharing.Assignment) (gpu.Access, error) {
	switch {
	case a.MPS != nil:
		pipe := p.Daemons.Pipe(a.MPS.Daemon)
		access := gpu.Access{
			Env:    append([]string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe}, a.MPS.Env()...),
			Mounts: []gpu.Mount{{HostPath: pipe, ContainerPath: pipe, Options: []string{"rw", "nosuid", "nodev", "rbind", "rprivate"}}},
		}
		if p.Paths.SharedMemory != "" {
			access.Mounts = append(access.Mounts, gpu.Mount{HostPath: p.Paths.SharedMemory, ContainerPath: "/dev/shm",
				Options: []string{"rw", "nosuid", "nodev", "rbind", "rprivate"}})
		}
		return access, nil
	case a.Hook != nil:
		preload, err := p.preload(a.Hook.Library)
		if err != nil {
			return gpu.Access{}, err
		}
		options := []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
		return gpu.Access{Env: a.Hook.Env(), Mounts: []gpu.Mount{
			{HostPath: a.Hook.Library, ContainerPath: a.Hook.Library, Options: options},
			{HostPath: preload, ContainerPath: "/etc/ld.so.preload", Options: options},
		}}, nil
	case a.Cgroup != nil:
		device, _ := node.Inventory.Find(a.Device)
		access, err := node.Hardware.MemoryLimit(device)
		access.Env = append(access.Env, a.Cgroup.Env()...)
		return access, err
	}
	return gpu.Access{}, nil
}

// preload is a file for /etc/ld.so.preload that names the library. There is one for each library, and it never changes: containers
// have it mounted.
func (p *Preparer) preload(library string) (string, error) {
	sum := sha256.Sum256([]byte(library))
	file := filepath.Join(p.Paths.Preload, hex.EncodeToString(sum[:8])+".preload")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(p.Paths.Preload, 0o755); err != nil {
		return "", err
	}
	return file, renameio.WriteFile(file, []byte(library+"\n"), 0o644, renameio.IgnoreUmask())
}

// access is what the containers need of the assigned GPU, or of every GPU for a monitor.
func (n Node) access(a sharing.Assignment) (gpu.Access, error) {
	if !a.Monitors() {
		device, ok := n.Inventory.Find(a.Device)
		p := a.Partition
		switch {
		case p != nil && ok && device.Partition != nil && device.Partition.Parent == a.GPU:
			device.UUID = p.UUID                    // a place for a partition has its name there
			ok = !device.Lost || a.MakesPartition() // it may have been made again since it was missed
		case p == nil && device.UUID == a.GPU:
			ok = !device.Lost
		default:
			ok = false
		}
		if !ok {
			return gpu.Access{}, fmt.Errorf("device %s (%s): %w", a.Device, a.GPU, sharing.ErrGone)
		}
		return n.Hardware.Access(device)
	}
	present := n.Inventory.Present()
	if len(present) == 0 {
		return gpu.Access{}, fmt.Errorf("device %s: %w", a.Device, sharing.ErrGone)
	}
	var all gpu.Access
	if slices.ContainsFunc(present, func(d gpu.Device) bool { return d.MIG.Capable }) {
		present = append(present, gpu.Device{Name: inventory.Monitor, Type: gpu.TypeMonitor}) // what it takes to see partitions
	}
	for _, device := range present {
		access, err := n.Hardware.Access(device)
		if err != nil {
			return gpu.Access{}, err
		}
		all.Append(access)
	}
	return all, nil
}

// cdiName is unique for ever, because runtimes remember names.
func cdiName(claim types.UID, a sharing.Assignment) string {
	name := string(claim) + "-" + a.Device
	if a.ShareID != "" {
		name += "-" + string(a.ShareID)
	}
	return name
}
