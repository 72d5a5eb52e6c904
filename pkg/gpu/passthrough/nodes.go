// SPDX-License-Identifier: Apache-2.0

package passthrough

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Nodes returns the device nodes that a container needs to use the function, which is bound to vfio-pci: those of its
// IOMMU group, or with iommufd its own. Without such a node it returns an error.
func (b Bus) Nodes(at gpu.PCIAddress, iommufd bool) ([]gpu.DeviceNode, error) { //nolint:revive // one of two kinds
	return b.nodes(b.function(at, ""), at.String(), iommufd)
}

// nodes returns the device nodes of the device in the directory of sysfs.
func (b Bus) nodes(dir, at string, iommufd bool) ([]gpu.DeviceNode, error) { //nolint:revive // as above
	find := groupNodes
	if iommufd {
		find = ownNodes
	}
	names, err := find(dir)
	if !exists(dir) {
		err = ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("find the device nodes of %s: %w", at, err)
	}
	var nodes []gpu.DeviceNode
	for _, name := range names {
		n := gpu.DeviceNode{Path: filepath.Join("/dev", name), HostPath: filepath.Join(b.Dev, name), Type: "c",
			Permissions: "rw"}
		var st unix.Stat_t
		if err := unix.Stat(n.HostPath, &st); err != nil {
			return nil, fmt.Errorf("find the device nodes of %s: %s: %w", at, n.HostPath, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR {
			return nil, fmt.Errorf("find the device nodes of %s: %s is no character device", at, n.HostPath)
		}
		n.Major, n.Minor = int64(unix.Major(uint64(st.Rdev))), int64(unix.Minor(uint64(st.Rdev))) //nolint:unconvert // differs between architectures
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// groupNodes returns the names of the nodes for VFIO by groups, below /dev.
func groupNodes(dir string) ([]string, error) {
	group := target(dir, "iommu_group")
	if group == "" {
		return nil, errors.New("it has no IOMMU group")
	}
	return []string{"vfio/" + group, "vfio/vfio"}, nil
}

// ownNodes returns the names of the nodes for iommufd, below /dev.
func ownNodes(dir string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(dir, "vfio-dev/vfio*"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("%s has %d devices, want one: is it bound to %s, and does the kernel have VFIO devices "+
			"(CONFIG_VFIO_DEVICE_CDEV)?", filepath.Join(dir, "vfio-dev"), len(found), Driver)
	}
	return []string{"vfio/devices/" + filepath.Base(found[0]), "iommu"}, nil
}
