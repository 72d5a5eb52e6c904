// SPDX-License-Identifier: Apache-2.0

package node

import "strconv"

// DeviceNode is a character device of the simulated driver.
type DeviceNode struct {
	Name  string // in /dev
	Minor int
}

// DeviceNodes returns one device node per GPU, and those that every container with a GPU gets. All have one major
// number.
func (v *View) DeviceNodes() []DeviceNode {
	var out []DeviceNode
	for _, c := range v.GPUs {
		out = append(out, DeviceNode{c.DeviceNode(), c.Minor})
	}
	return append(out,
		DeviceNode{"nvidia-uvm-tools", 252},
		DeviceNode{"nvidia-uvm", 253},
		DeviceNode{"nvidia-modeset", 254}, // the real driver also uses 254 and 255
		DeviceNode{"nvidiactl", 255})
}

// DeviceNode is the name of the GPU's device node in /dev.
func (c GPU) DeviceNode() string { return "nvidia" + strconv.Itoa(c.Minor) }
