// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
)

// A program reaches a partition through three device nodes: that of the GPU, and one each for the GPU instance and the compute
// instance, /dev/nvidia-caps/nvidia-capMINOR. Their minor numbers follow from those of the GPU and the IDs, whether there is
// such a partition or not. They have the major number of the other nodes, of which the minor numbers end at 255.
const (
	firstCapability  = 256
	firstInstance    = firstCapability + 3 // as on real machines, behind two for other things
	gpuInstances     = 15                  // of a GPU, at most
	computeInstances = 8                   // of a GPU instance, at most
	perInstance      = 1 + computeInstances
	perGPU           = gpuInstances * perInstance
)

// Capabilities are the minor numbers of the device nodes for the partition: that of its GPU instance and that of its compute instance.
func (c Card) Capabilities(p Partition) [2]int {
	return [2]int{c.instanceMinor(p.Instance.ID), c.instanceMinor(p.Instance.ID) + 1 + p.Compute.ID}
}

func (c Card) instanceMinor(instance int) int {
	return firstInstance + c.Minor*perGPU + instance*perInstance
}

// CapabilityNode is the name in /dev of the device node with the minor number.
func CapabilityNode(minor int) string { return fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor) }

// MigMinors is what /proc/driver/nvidia-caps/mig-minors says, for the GPUs of the view that can be partitioned.
func (v *View) MigMinors() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", firstCapability+1, firstCapability+2)
	for _, c := range v.GPUs {
		if _, e := c.Calls.GetMigMode.Get(); e != "" {
			continue
		}
		for g := range gpuInstances {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", c.Minor, g, c.instanceMinor(g))
			for ci := range computeInstances {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", c.Minor, g, ci, c.instanceMinor(g)+1+ci)
			}
		}
	}
	return b.String()
}

// KernelDevices is what /proc/devices says of the simulated driver.
func (v *View) KernelDevices() string {
	return fmt.Sprintf("Character devices:\n%3d nvidia\n%3d nvidia-caps\n\nBlock devices:\n", v.Major, v.Major)
}

// ModuleVersion is what /proc/driver/nvidia/version says of the simulated kernel module.
func (v *View) ModuleVersion() string {
	return fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated)\n", v.Profile.Driver())
}
