// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
)

// A program opens three device nodes to use a partition: the GPU's, the GPU instance's and the compute instance's. The
// latter two are /dev/nvidia-caps/nvidia-capMINOR. Their minor numbers follow from the GPU's minor number and the IDs
// of the instances, whether the partition exists or not. Their major number is that of the other device nodes, whose
// minor numbers end at 255.
const (
	firstCapability  = 256
	firstInstance    = firstCapability + 3 // as on real machines, after config and monitor
	gpuInstances     = 15                  // per GPU, at most
	computeInstances = 8                   // per GPU instance, at most
	perInstance      = 1 + computeInstances
	perGPU           = gpuInstances * perInstance
)

// Capabilities returns the minor numbers of the partition's capability device nodes: GPU instance, compute instance.
func (c GPU) Capabilities(p Partition) [2]int {
	return [2]int{c.instanceMinor(p.Instance.ID), c.instanceMinor(p.Instance.ID) + 1 + p.Compute.ID}
}

func (c GPU) instanceMinor(instance int) int {
	return firstInstance + c.Minor*perGPU + instance*perInstance
}

// CapabilityNode is the path below /dev of the capability device node with that minor number.
func CapabilityNode(minor int) string { return fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor) }

// MigMinors is the content of /proc/driver/nvidia-caps/mig-minors for the GPUs of the view that support MIG.
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

// KernelDevices is the content of /proc/devices for the simulated driver. IMEX channels have a major number of their
// own, because their minor numbers begin at 0.
func (v *View) KernelDevices(imexMajor int) string {
	return fmt.Sprintf("Character devices:\n%3d nvidia\n%3d nvidia-caps\n%3d nvidia-caps-imex-channels\n\n"+
		"Block devices:\n", v.Major, v.Major, imexMajor)
}

// IMEXManagement is the content of /proc/driver/nvidia/capabilities/fabric-imex-mgmt: the capability device node of the
// IMEX daemon.
func IMEXManagement() string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 256\nDeviceFileModify: 1\n", firstCapability)
}

// ModuleVersion is the content of /proc/driver/nvidia/version for the simulated kernel module.
func (v *View) ModuleVersion() string {
	return fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated)\n",
		v.Profile.Driver())
}
