// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu/driverroot"
)

// Access to a partition needs the capability device nodes of its GPU instance and of its compute instance (NVIDIA's MIG
// User Guide, "Device Nodes and Capabilities"). Their numbers are read from /proc and given to the runtime, because the
// nodes do not exist on the host until one of its own programs has used the partition. In a container with a user
// namespace, the runtime cannot make them and mounts the host's.

// partition returns what a container needs for a partition: the device node of its GPU and its capabilities.
func (t *Toolkit) partition(ctx context.Context, d gpu.Device) (gpu.Access, error) {
	instance, minor, err := t.NVML.Instance(ctx, d)
	if err != nil {
		return gpu.Access{}, err
	}
	whole, err := t.whole(ctx, gpu.Device{Name: gpu.ParentName(d.Name), UUID: d.Partition.Parent, Minor: minor})
	if err != nil {
		return gpu.Access{}, err
	}
	var access gpu.Access
	for _, node := range whole.Nodes { // no others, because partitions have no graphics
		if node.Path == driverroot.DeviceNode(minor) {
			access.Nodes = append(access.Nodes, node)
		}
	}
	gi := fmt.Sprintf("gpu%d/gi%d", minor, instance.GPU)
	nodes, err := t.capabilities(gi+"/access", fmt.Sprintf("%s/ci%d/access", gi, instance.Compute))
	access.Nodes = append(access.Nodes, nodes...)
	if makeErr := t.makeCapabilities(nodes); makeErr != nil {
		klog.ErrorS(makeErr, "Pods with hostUsers: false cannot use the partition", "device", d.Name)
	}
	return access, err
}

// makeCapabilities makes the device nodes in the /dev of the host, if that is mounted here. One with the number of an
// earlier start of the driver is replaced.
func (t *Toolkit) makeCapabilities(nodes []gpu.DeviceNode) error {
	if t.Driver.HostDev == "" {
		return nil
	}
	for _, node := range nodes {
		file, number := filepath.Join(t.Driver.HostDev, node.Path), unix.Mkdev(uint32(node.Major), uint32(node.Minor))
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == number {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// NVIDIA's programs create them with this mode.
		if err := unix.Mknod(file, unix.S_IFCHR|0o444, int(number)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", node.Path, err)
		}
		if err := os.Chmod(file, 0o444); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// monitor returns what a container needs, besides GPUs, to see all partitions of the machine; nothing without
// MIG.
func (t *Toolkit) monitor(nvmllib.Interface) (gpu.Access, error) {
	nodes, err := t.capabilities("monitor")
	if errors.Is(err, fs.ErrNotExist) {
		return gpu.Access{}, nil
	}
	return gpu.Access{Nodes: nodes}, err
}

// capabilities returns the device nodes of the named capabilities in the driver's list.
func (t *Toolkit) capabilities(names ...string) ([]gpu.DeviceNode, error) {
	minors, err := t.capabilityMinors()
	if err != nil {
		return nil, err
	}
	major, err := t.major("nvidia-caps")
	if err != nil {
		return nil, fmt.Errorf("find the device nodes of partitions: %w", err)
	}
	var nodes []gpu.DeviceNode
	for _, name := range names {
		minor, ok := minors[name]
		if !ok {
			return nil, fmt.Errorf("%s does not list %s: the driver has no such instance", t.minorsFile(), name)
		}
		path := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)
		nodes = append(nodes, gpu.DeviceNode{Path: path, HostPath: path, Type: "c", Major: int64(major), Minor: minor,
			Permissions: "rw"})
	}
	return nodes, nil
}

func (t *Toolkit) minorsFile() string { return filepath.Join(t.Proc, "driver/nvidia-caps/mig-minors") }

// capabilityMinors reads lines like "gpu0/gi1/access 12".
func (t *Toolkit) capabilityMinors() (map[string]int64, error) {
	content, err := os.ReadFile(t.minorsFile())
	if err != nil {
		return nil, fmt.Errorf("find the device nodes of partitions: %w", err)
	}
	minors := map[string]int64{}
	for line := range strings.Lines(string(content)) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if minor, err := strconv.ParseInt(number, 10, 64); err == nil {
			minors[name] = minor
		}
	}
	return minors, nil
}
