// SPDX-License-Identifier: Apache-2.0

package node

import "slices"

// Proximity is what both GPUs have in common on the way to the CPU: as the profile says, else by their place on the bus.
func (c Card) Proximity(other Card) (Proximity, Error) {
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
		return ProximitySingle, "" // the same switch, whose upstream port is the second bridge
	case a.Root == b.Root && len(a.Bridges) > 0 && len(b.Bridges) > 0 && a.Bridges[0] == b.Bridges[0]:
		return ProximityMultiple, ""
	case a.Root == b.Root:
		return ProximityHostBridge, ""
	case a.NUMANode == b.NUMANode:
		return ProximityNode, ""
	}
	return ProximitySystem, ""
}

// Linked says whether the GPUs reach each other by NVLink: both by an enabled link to a switch, or by one between them.
func (c Card) Linked(other Card) bool {
	mine, theirs := c.ends(), other.ends()
	return slices.Contains(mine, other.PCI.Address) || slices.ContainsFunc(mine, func(a Address) bool {
		return slices.Contains(theirs, a)
	})
}

// ends is where the GPU's enabled NVLinks lead to.
func (c Card) ends() []Address {
	state, _ := c.Calls.GetNvLinkState.Get()
	remote, _ := c.Calls.GetNvLinkRemotePciInfo.Get()
	var out []Address
	for link, on := range state {
		if end, ok := remote[link]; ok && on == 1 && !slices.Contains(out, end) {
			out = append(out, end)
		}
	}
	return out
}
