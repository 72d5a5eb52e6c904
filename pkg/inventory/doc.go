// SPDX-License-Identifier: Apache-2.0

// Package inventory turns the GPUs of a node into DRA devices: ResourceSlices with attributes, capacities, counters and
// taints. It does no I/O.
//
// Inventory is a list of devices. New sorts GPUs, fastest first. Inventory.WithPartitions makes of them the devices
// that claims can get: whole GPUs, MIG partitions, GPUs for virtual machines and vGPUs (partitions.go, vgpus.go).
// Inventory.Retain keeps devices that are missing now. Inventory.Pools returns what the node publishes, and Slices the
// ResourceSlices of it (publish.go). AllAttributes, AllCapacities and AllTaints describe each field; their texts are in
// docs/reference/devices.md. countersOf (counters.go) makes the shared counters. The monitor device stands for all
// GPUs of the node, in a pool of its own (monitor.go). Inventory.Offer decides of which GPUs possible partitions
// are published (offer.go), and Unclaimed is the inventory of a node without claims.
//
// What must hold:
//   - The same devices always have the same order: the scheduler takes the first that fits (TestOrder,
//     TestOrderOfPartitions).
//   - Every device has the driver's own attributes, because a selector on a missing one fails for the whole pod. The
//     comment on AllAttributes has the exceptions (TestDevicesHaveTheSameAttributes).
//   - A slice has at most 64 devices or 8 counter sets, also without taints (TestSlicesWithinAPILimits,
//     TestPoolOfPartitionsWithinLimits).
//   - A GPU is used in one shape at a time. Counters allow the partitions that NVIDIA allows, and no others
//     (TestAllocationForVirtualMachines, TestCountersMatchNVIDIAsPlacements).
//   - A device that a claim holds stays published, tainted if its GPU is lost (TestRetain, TestALostGPUIsTainted).
//   - A possible partition that overlaps one of somebody else is Blocked, which is published as a taint.
//
// TestPublished compares what each simulated and each recorded machine publishes with files in testdata. TestAllocation
// and others run Kubernetes' allocator on it.
package inventory
