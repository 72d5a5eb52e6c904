// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
)

// Proximity is the topology level of two GPUs: from the profile, otherwise from their positions on the bus.
func (c GPU) Proximity(other GPU) (hwprofile.Proximity, hwprofile.Error) {
	listed, e := c.Calls.GetTopologyCommonAncestor.Or(nil).Get()
	if e != "" {
		return 0, e
	}
	if level, ok := listed[other.PCI.Address]; ok {
		return level, ""
	}
	a, b := c.PCI, other.PCI
	switch {
	case a.Root == b.Root && len(a.Bridges) > 1 && len(b.Bridges) > 1 && a.Bridges[1] == b.Bridges[1]:
		return hwprofile.ProximitySingle, "" // the same switch, whose upstream port is the second bridge
	case a.Root == b.Root && len(a.Bridges) > 0 && len(b.Bridges) > 0 && a.Bridges[0] == b.Bridges[0]:
		return hwprofile.ProximityMultiple, ""
	case a.Root == b.Root:
		return hwprofile.ProximityHostBridge, ""
	case a.NUMANode == b.NUMANode:
		return hwprofile.ProximityNode, ""
	}
	return hwprofile.ProximitySystem, ""
}

// Linked reports whether NVLink connects the GPUs: directly, or through a switch to which both have an enabled link.
func (c GPU) Linked(other GPU) bool {
	mine, theirs := c.ends(), other.ends()
	return slices.Contains(mine, other.PCI.Address) || slices.ContainsFunc(mine, func(a hwprofile.Address) bool {
		return slices.Contains(theirs, a)
	})
}

// ends returns what the GPU's enabled NVLinks lead to.
func (c GPU) ends() []hwprofile.Address {
	state, _ := c.Calls.GetNvLinkState.Get()
	remote, _ := c.Calls.GetNvLinkRemotePciInfo.Get()
	var out []hwprofile.Address
	for link, on := range state {
		if end, ok := remote[link]; ok && on == 1 && !slices.Contains(out, end) {
			out = append(out, end)
		}
	}
	return out
}
