// SPDX-License-Identifier: Apache-2.0

// Package gpu has the types of the driver: what a GPU is, and what a container needs to use one. It does no I/O and
// imports the standard library only.
//
// Discovery is what nvml.Machine.Discover reads of all GPUs of a machine. Each of them is a Device, and so is each
// device that package inventory publishes: Type says whether it is a whole GPU, a partition (mig.go), a GPU or a vGPU
// for a virtual machine (vfio.go, vgpu.go), or the monitor device. Health is what a GPU answers about itself, and Event
// is what NVML reports (health.go). SharingMode is how the administrator lets claims use a GPU; package nodeconfig
// reads it. DesiredState is how claims need a physical GPU: sharing.State decides it, and nvml.Machine.Set applies it.
// Access is what a container needs: device nodes, mounts, variables and hooks. Package cdi writes it as a CDI
// specification.
//
// What must hold:
//   - Unknown fields of a Device have their zero value. The exceptions are NoNUMANode, and -1 for an index, a minor
//     number or an IOMMU group.
//   - The zero DesiredState changes nothing. The zero SharingMode is the default.
//   - The name of a GPU follows from its PCI address (PCIAddress.DeviceName) and is a DNS label. Names of partitions
//     and of devices for virtual machines begin with it (PartitionName, VFIOName, VGPUName, PossibleVGPUName), and
//     ParentName returns it.
//   - A Placement identifies a partition also before it exists and after its end, so that a creation can be undone.
//   - No share is silently without limits: SharingMode.EnforceableOn makes a fractional GPU exclusive if its isolation
//     limits nothing there. Replicas are then only counted.
//   - Placement, Settings, PCIAddress and PCIFunction are part of the records of claims on disk (sharing.Plan), so
//     later versions must still read their JSON.
//
// TestPartitionProfile tests names, and TestIsolationThatIsNotEnforced of package nodeconfig tests EnforceableOn.
// TestImports of package archtest keeps this package from importing others of the project.
package gpu
