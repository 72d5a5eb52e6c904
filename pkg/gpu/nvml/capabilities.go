// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Who may use a partition is decided by device nodes of capabilities: one for its GPU instance and one for its compute instance
// (NVIDIA's MIG User Guide, "Device Nodes and Capabilities"). Their numbers are read from /proc and given to the runtime with the
// node, because nothing makes the nodes on a host on which no program of the host itself has used the partition yet.

// findPartition is what a container needs of a partition: the device node of its GPU and its capabilities.
func (n *Node) findPartition(d gpu.Device) (gpu.Access, error) {
	handle, ret := n.Library.DeviceGetHandleByUUID(string(d.UUID))
	if ret != nvmllib.SUCCESS {
		return gpu.Access{}, fmt.Errorf("find partition %s (%s): %w", d.Name, d.UUID, ret)
	}
	instance, ret := handle.GetGpuInstanceId()
	compute, ret2 := handle.GetComputeInstanceId()
	if ret != nvmllib.SUCCESS || ret2 != nvmllib.SUCCESS {
		return gpu.Access{}, fmt.Errorf("find the instances of partition %s (%s): %w", d.Name, d.UUID, errors.Join(ret, ret2))
	}
	whole, err := n.findDevice(gpu.Device{Name: gpu.ParentName(d.Name), UUID: d.Partition.Parent, Minor: d.Minor})
	if err != nil {
		return gpu.Access{}, err
	}
	var access gpu.Access
	for _, node := range whole.Nodes { // no others: those for graphics are not for partitions
		if node.Path == nodePath(d.Minor) {
			access.Nodes = append(access.Nodes, node)
		}
	}
	gi := fmt.Sprintf("gpu%d/gi%d", d.Minor, instance)
	nodes, err := n.capabilities(gi+"/access", fmt.Sprintf("%s/ci%d/access", gi, compute))
	access.Nodes = append(access.Nodes, nodes...)
	return access, err
}

// findMonitoring is what a container needs beside GPUs to see all partitions of the machine: nothing where there can be none.
func (n *Node) findMonitoring() (gpu.Access, error) {
	nodes, err := n.capabilities("monitor")
	if errors.Is(err, fs.ErrNotExist) {
		return gpu.Access{}, nil
	}
	return gpu.Access{Nodes: nodes}, err
}

// capabilities are the device nodes of capabilities, as the driver's list names them.
func (n *Node) capabilities(names ...string) ([]gpu.Node, error) {
	minors, err := n.capabilityMinors()
	if err != nil {
		return nil, err
	}
	major, err := n.capabilityMajor()
	if err != nil {
		return nil, err
	}
	var nodes []gpu.Node
	for _, name := range names {
		minor, ok := minors[name]
		if !ok {
			return nil, fmt.Errorf("%s does not list %s: is the partition still there?", n.minorsFile(), name)
		}
		path := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)
		nodes = append(nodes, gpu.Node{Path: path, HostPath: path, Type: "c", Major: major, Minor: minor, Permissions: "rw"})
	}
	return nodes, nil
}

func (n *Node) minorsFile() string { return filepath.Join(n.Proc, "driver/nvidia-caps/mig-minors") }

// capabilityMinors reads lines like "gpu0/gi1/access 12".
func (n *Node) capabilityMinors() (map[string]int64, error) {
	content, err := os.ReadFile(n.minorsFile())
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

// capabilityMajor is the major number of capabilities, which the kernel lists among its drivers: "241 nvidia-caps".
func (n *Node) capabilityMajor() (int64, error) {
	file := filepath.Join(n.Proc, "devices")
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("find the device nodes of partitions: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "nvidia-caps" {
			continue
		}
		return strconv.ParseInt(number, 10, 64)
	}
	return 0, fmt.Errorf("find the device nodes of partitions: %s does not list nvidia-caps: load the driver's kernel modules", file)
}
