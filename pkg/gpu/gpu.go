// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// UUID identifies a GPU or a partition for as long as it exists, as NVML writes it: "GPU-…" or "MIG-…".
type UUID string

// Type says what a device is; its values are published in the attribute "type".
type Type string

const (
	// TypeGPU is a whole physical GPU.
	TypeGPU Type = "gpu"
	// TypeMIG is a partition of a GPU.
	TypeMIG Type = "mig"
	// TypeVFIO is a whole physical GPU for a virtual machine.
	TypeVFIO Type = "vfio"
	// TypeVGPU is a part of a physical GPU for a virtual machine.
	TypeVGPU Type = "vgpu"
	// TypeMonitor stands for all GPUs of a node at once.
	TypeMonitor Type = "monitor"
)

// Device is one GPU as NVML describes it, or a partition of one. Unknown fields have their zero value. A partition has
// the values of its GPU in fields that it does not have itself.
type Device struct {
	Name      string // in ResourceSlices, from the PCI address: see PCIAddress.DeviceName
	Type      Type
	UUID      UUID
	PCI       PCIAddress
	PCIeRoot  string // the root complex above it, "pci0000:3a"
	NUMANode  int    // the NUMA node that it is attached to, NoNUMANode when unknown
	Index     int    // NVML's enumeration order; what the plugin publishes stays: see internal/plugin/node
	Minor     int    // N of /dev/nvidiaN
	Topology  Topology
	Product   Product
	Memory    uint64 // bytes, as NVML reports them
	MIG       MIG    `json:"Partitioning"` // how it can be partitioned; a partition has Capable only
	Addresses AddressingMode
	Lost      bool // it does not answer, or it has gone while a claim holds it
	// Gone says of a lost GPU that NVML has said so, or has not listed it, since its last answer: when it answers
	// again, it has been reset. One that was only silent need not have been.
	Gone bool `json:",omitempty"`
	// ResetRequired says of a lost GPU that it answers only that it must be reset.
	ResetRequired bool `json:",omitempty"`
	// MovedTo is the name that the GPU has now, because its place on the PCI bus has changed while a claim holds it
	// under this one; empty: it has not. Such a device is lost, and its UUID is its name.
	MovedTo string      `json:",omitempty"`
	Use     SharingMode // how the administrator lets claims use it
	// Partition says which part of its GPU it is; nil: the whole GPU.
	Partition *Partition `json:",omitempty"`
	// VFIO says how it is given to a virtual machine; nil: it has no IOMMU group, or the machine has no vfio-pci.
	VFIO *VFIO `json:",omitempty"`
	// Guest is set if this machine is a virtual one and the GPU a part of one of its host.
	Guest *Guest `json:",omitempty"`
	// VGPU says which vGPU it is; nil: none.
	VGPU *VGPU `json:",omitempty"`
	// VGPUs are those of a physical GPU; nil: the kernel shows none.
	VGPUs *VGPUs `json:",omitempty"`
	// ComputeMode is the current mode, as NVML reports it.
	ComputeMode ComputeMode `json:",omitempty"`
	// Blocked says what prevents the driver from enabling or disabling the MIG mode, from creating the partition or
	// vGPU, or from binding the GPU for a virtual machine; empty: nothing.
	Blocked string `json:",omitempty"`
	// Taints are those of its health.
	Taints []Taint `json:",omitempty"`

	DriverVersion string // as NVML writes it: "580.95.05"
	CUDAVersion   Version
	CgroupV1      bool `json:",omitempty"` // the machine has no cgroup v2
}

// Physical returns the UUID of the device's physical GPU; empty for the monitor device.
func (d Device) Physical() UUID {
	switch {
	case d.Partition != nil:
		return d.Partition.Parent
	case d.VGPU != nil:
		return d.VGPU.Parent
	case d.Type == TypeMonitor:
		return ""
	}
	return d.UUID
}

// NoNUMANode is the NUMANode of a GPU whose NUMA node is unknown.
const NoNUMANode = -1

// Product has the properties of a GPU's model.
type Product struct {
	Name              string // "NVIDIA H100 80GB HBM3"
	Brand             string // "Nvidia", "Tesla", "GeForce"
	Architecture      string // "Hopper"
	ComputeCapability Version
	Multiprocessors   int // streaming multiprocessors
	MemoryBandwidth   int // GB/s
	PeakCompute       int // dense FP16 tensor throughput in TFLOP/s
}

// MPSLimits reports whether MPS limits what its clients use: from Volta on, and if the capability is not known.
func (p Product) MPSLimits() bool {
	const volta = 7
	return p.ComputeCapability.Major == 0 || p.ComputeCapability.Major >= volta
}

// MPSLimits reports whether MPS limits what its clients use of the device. The driver uses no MPS on a vGPU, where
// NVIDIA does not say that it works.
func (d Device) MPSLimits() bool { return d.Guest == nil && d.Product.MPSLimits() }

// memoryLimitDriver is the first driver branch that limits memory by cgroup (NVML change log, CUDA 13.4).
const memoryLimitDriver = 615

// NoMemoryLimit says why NVIDIA's driver cannot limit the memory of containers on the device by cgroup; empty: it can.
func (d Device) NoMemoryLimit() string {
	branch, _, _ := strings.Cut(d.DriverVersion, ".")
	n, err := strconv.Atoi(branch)
	switch {
	case err != nil:
		return fmt.Sprintf("driver %q is of no known branch", d.DriverVersion)
	case n < memoryLimitDriver:
		return fmt.Sprintf("driver %s is older than R%d", d.DriverVersion, memoryLimitDriver)
	case d.CgroupV1:
		return "the machine has no cgroup v2"
	}
	return ""
}

// Topology says what a GPU is connected to. Both fields name a set of GPUs; a GPU that is alone has its own UUID.
type Topology struct {
	NVLinkDomain string // GPUs that are all directly connected by NVLink
	FabricDomain string // GPUs of one multi-node NVLink fabric: cluster UUID and clique
}

// Version is a version of two numbers, such as a compute capability.
type Version struct{ Major, Minor int }

// AddressingMode says how the GPU reaches the memory of the host: "HMM", "ATS", "None" or unknown (empty).
type AddressingMode string

// PCIAddress is the address of a device on the PCI bus.
type PCIAddress struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// ParsePCIAddress reads an address as NVML or Linux writes it: "00000000:3B:00.0", "0000:3b:00.0".
func ParsePCIAddress(s string) (PCIAddress, error) {
	var a PCIAddress
	n, err := fmt.Sscanf(strings.ToLower(s), "%x:%x:%x.%x", &a.Domain, &a.Bus, &a.Device, &a.Function)
	if err != nil || n != 4 {
		return PCIAddress{}, fmt.Errorf("PCI address %q: want domain:bus:device.function in hexadecimal", s)
	}
	return a, nil
}

// String writes the address as Linux does: "0000:3b:00.0".
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses as Linux and NVML do.
func (a PCIAddress) Compare(b PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus), cmp.Compare(a.Device, b.Device),
		cmp.Compare(a.Function, b.Function))
}

// DeviceName returns the name of the whole GPU at this address: "gpu-3b-00-0", or "gpu-0001-3b-00-0" when the domain is
// not 0. It is a DNS label and survives reboots and re-enumeration.
func (a PCIAddress) DeviceName() string {
	if a.Domain != 0 {
		return fmt.Sprintf("gpu-%04x-%02x-%02x-%x", a.Domain, a.Bus, a.Device, a.Function)
	}
	return fmt.Sprintf("gpu-%02x-%02x-%x", a.Bus, a.Device, a.Function)
}

// Access is what a container needs to use a device, in terms of CDI container edits.
type Access struct {
	Nodes  []DeviceNode
	Mounts []Mount
	Env    []string // NAME=value
	Hooks  []Hook
	Groups []uint32 // additional group IDs of the container's process
	Files  []File   // on the host, needed by mounts
}

// DeviceNode is a device node in the container.
type DeviceNode struct {
	Path        string // in the container
	HostPath    string
	Type        string // "c" or "b"
	Major       int64
	Minor       int64
	Permissions string // of the cgroup: a subset of "rwm"
}

// Mount is a bind mount.
type Mount struct {
	HostPath      string
	ContainerPath string
	Options       []string
}

// Mount options. They exclude device nodes and set-user-ID programs.
var (
	ReadOnly  = []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
	ReadWrite = []string{"rw", "nosuid", "nodev", "rbind", "rprivate"}
)

// File is a file on the host.
type File struct{ Path, Content string }

// Hook is a program that the container runtime runs on the host while it creates the container.
type Hook struct {
	Name string // as in the OCI runtime specification: "createContainer"
	Path string // of the program, on the host
	Args []string
	Env  []string
}

// Append adds everything of other.
func (a *Access) Append(other Access) {
	a.Nodes = append(a.Nodes, other.Nodes...)
	a.Mounts = append(a.Mounts, other.Mounts...)
	a.Env = append(a.Env, other.Env...)
	a.Hooks = append(a.Hooks, other.Hooks...)
	a.Groups = append(a.Groups, other.Groups...)
	a.Files = append(a.Files, other.Files...)
}

// Clone returns a copy that shares no slice with a.
func (a Access) Clone() Access {
	var c Access
	c.Append(a)
	return c
}

// ErrUnmeasured means that the GPU does not support usage per process. It is no failure.
var ErrUnmeasured = errors.New("the GPU does not say what processes use of it")

// Unmeasured is the usage of a process when the GPU does not report it.
const Unmeasured = -1

// Process is a process that uses a GPU.
type Process struct {
	PID         int   // in the PID namespace of the caller
	Memory      int64 // bytes of GPU memory that it holds, or Unmeasured
	Utilization int   // percent of the time of the last seconds in which its kernels ran, or Unmeasured
	// Peak is the highest utilization of the last minute, of multiprocessors, memory, encoder or decoder: percent, or
	// Unmeasured. NVIDIA's driver may keep fewer samples than that.
	Peak int
	// Ended means that it is not on the GPU any more, and has used it in that minute.
	Ended bool
}

// IdleCondition is the type of the condition that a device of a claim has once no pod has used it for a while.
const IdleCondition = "Idle"

// Processes are all processes of a GPU.
type Processes struct {
	All []Process
	// Sampled is unset if the utilization of no process is measured: then ended processes are not in All.
	Sampled bool
}
