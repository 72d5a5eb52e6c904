// SPDX-License-Identifier: Apache-2.0

// Package gpu is the vocabulary of the driver: what a GPU is, and what a container needs in order to use one.
// It does no I/O and imports the standard library only.
package gpu

import (
	"fmt"
	"strings"
)

// UUID identifies a GPU or a partition of one for as long as the hardware exists, as NVML writes it: "GPU-…" or "MIG-…".
type UUID string

// Type says what a device is; its values are published in the attribute "type".
type Type string

const (
	// TypeGPU is a whole physical GPU.
	TypeGPU Type = "gpu"
	// TypeMIG is a partition of a GPU.
	TypeMIG Type = "mig"
	// TypeMonitor stands for all GPUs of a node at once.
	TypeMonitor Type = "monitor"
)

// Device is one GPU as NVML describes it, or a partition of one. A field that the machine does not know has its zero value. What a
// partition does not have of its own is that of its GPU.
type Device struct {
	Name      string // the name it is published under, from its PCI address: see PCIAddress.DeviceName
	Type      Type
	UUID      UUID
	PCI       PCIAddress
	PCIeRoot  string // the root complex above it, "pci0000:3a"
	NUMANode  int    // the NUMA node it is attached to, NoNUMANode when the machine does not say
	Index     int    // NVML's enumeration order
	Minor     int    // N of /dev/nvidiaN
	Topology  Topology
	Product   Product
	Memory    uint64 // bytes, as NVML reports them
	MIG       MIG    `json:"Partitioning"` // how it can be partitioned; of a partition, only whether its GPU can
	Addresses AddressingMode
	Lost      bool // it does not answer, or is not there any more and a claim still holds it
	Use       Use  // what the administrator lets claims do with it
	// Partition is which part of its GPU it is; nil: it is the whole GPU.
	Partition *Partition `json:",omitempty"`
	// Blocked says who keeps the driver from partitioning the GPU, or from making it whole; empty: nobody.
	Blocked string `json:",omitempty"`

	DriverVersion string // as NVML writes it: "580.95.05"
	CUDAVersion   Version
}

// NoNUMANode is the NUMANode of a GPU whose machine does not say where it is attached.
const NoNUMANode = -1

// Product is what the model of a GPU says about it.
type Product struct {
	Name              string // "NVIDIA H100 80GB HBM3"
	Brand             string // "Nvidia", "Tesla", "GeForce"
	Architecture      string // "Hopper"
	ComputeCapability Version
	Multiprocessors   int // streaming multiprocessors
	MemoryBandwidth   int // GB/s
	PeakCompute       int // dense FP16 tensor throughput in TFLOP/s
}

// Topology is what a GPU is connected to. Both fields name a set of GPUs; a GPU that is alone carries its own UUID.
type Topology struct {
	NVLinkDomain string // GPUs that are all directly connected by NVLink
	FabricDomain string // GPUs of one multi-node NVLink fabric: cluster UUID and clique
}

// Version is a version of two parts, such as a compute capability.
type Version struct{ Major, Minor int }

// AddressingMode says how the GPU reaches the memory of the host: "HMM", "ATS", "None" or unknown (empty).
type AddressingMode string

// PCIAddress is where a device sits on the PCI bus.
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

// DeviceName is the name of the whole GPU at this address. It is a DNS label and survives reboots and re-enumeration:
// "gpu-3b-00-0", with the domain in front when it is not 0: "gpu-0001-3b-00-0".
func (a PCIAddress) DeviceName() string {
	if a.Domain != 0 {
		return fmt.Sprintf("gpu-%04x-%02x-%02x-%x", a.Domain, a.Bus, a.Device, a.Function)
	}
	return fmt.Sprintf("gpu-%02x-%02x-%x", a.Bus, a.Device, a.Function)
}

// Access is what a container needs in order to use a device: what a CDI edit can say.
type Access struct {
	Nodes  []Node
	Mounts []Mount
	Env    []string // NAME=value
	Hooks  []Hook
	Groups []uint32 // additional group ids of the container's process
}

// Node is a device node in the container.
type Node struct {
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

// Hook is a program that the container runtime runs on the host while it makes the container.
type Hook struct {
	Name string // the moment, as the OCI runtime specification names it: "createContainer"
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
}

// Clone is a copy that shares no list with a.
func (a Access) Clone() Access {
	var c Access
	c.Append(a)
	return c
}
