// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// NodeDevices are the published GPUs of a node, also those for virtual machines, and its partitions. Of possible
// partitions, SlimSlice has kept some.
type NodeDevices struct {
	// Devices are in the order in which the scheduler tries them.
	Devices []NodeDevice
	GPUs    []*GPU // in the order of their first devices

	possible []*Device   // the first of each kind of possible partitions, and then of vGPUs
	mig      int         // how many of these are partitions
	parts    []nodeSlice // sorted
}

// NodeDevice is a device of a node.
type NodeDevice struct {
	*Device
	GPU int // index in NodeDevices.GPUs
}

// nodeSlice is a slice of a node.
type nodeSlice struct {
	pool, name string
	devices    []Device
}

// addToNode adds the devices of a slice to those of its node.
func (v *View) addToNode(s *resourceapi.ResourceSlice, devices []Device) {
	if len(devices) == 0 {
		return
	}
	node := cmp.Or(ptr.Deref(s.Spec.NodeName, ""), s.Spec.Pool.Name)
	for i := range devices {
		devices[i].node = node
	}
	n := v.nodes[node]
	if n == nil {
		n = &NodeDevices{}
		v.nodes[node] = n
	}
	n.parts = append(n.parts, nodeSlice{s.Spec.Pool.Name, s.Name, devices})
	slices.SortFunc(n.parts, func(a, b nodeSlice) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.name, b.name))
	})
	n.order()
}

// dropFromNode removes the devices of a slice from those of its node.
func (v *View) dropFromNode(name string, devices []Device) {
	if len(devices) == 0 {
		return
	}
	node := devices[0].node
	n := v.nodes[node]
	n.parts = slices.DeleteFunc(n.parts, func(s nodeSlice) bool { return s.name == name })
	if len(n.parts) == 0 {
		delete(v.nodes, node)
		return
	}
	n.order()
}

// order lists the devices of all slices.
func (n *NodeDevices) order() {
	n.Devices, n.GPUs, n.possible, n.mig = nil, nil, nil, 0
	index := map[*GPU]int{}
	for _, s := range n.parts {
		for i := range s.devices {
			d := &s.devices[i]
			if t := d.Kind.Type(); t != gpu.TypeGPU && t != gpu.TypeVFIO && !d.Kind.isPart() {
				continue
			}
			at, ok := index[d.gpu]
			if !ok {
				at = len(n.GPUs)
				index[d.gpu] = at
				n.GPUs = append(n.GPUs, d.gpu)
			}
			n.Devices = append(n.Devices, NodeDevice{d, at})
			known := func(p *Device) bool { return p.Kind == d.Kind }
			if d.Kind.isPart() && !d.Exists() && !slices.ContainsFunc(n.possible, known) {
				n.possible = append(n.possible, d)
				if d.Kind.Type() == gpu.TypeMIG {
					n.mig++
				}
			}
		}
	}
}

// Possible returns the kind of the possible partition, or vGPU, at that place of the order in which the scheduler tries
// them, by a device of it, and the GPU: partitions by kind, each of the last GPU first, and then the vGPUs of each GPU.
// ok is false if there are no more.
func (n *NodeDevices) Possible(place int) (like *Device, index int, ok bool) {
	gpus, virtual := len(n.GPUs), len(n.possible)-n.mig
	if partitions := gpus * n.mig; place < partitions {
		return n.possible[place/gpus], gpus - 1 - place%gpus, true
	} else if place -= partitions; place < gpus*virtual {
		return n.possible[n.mig+place%virtual], place / virtual, true
	}
	return nil, 0, false
}

// DifferentNodes returns the names of nodes, one for each combination of kinds of devices. The caller must not change
// them. They are computed when slices have changed, and not for each claim: a cluster has thousands of nodes.
func (v *View) DifferentNodes() []string {
	if known := v.different.Load(); known != nil {
		return *known
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	different := map[string]string{}
	for name, n := range v.nodes {
		var kinds []string
		for _, d := range n.Devices {
			kinds = append(kinds, d.Kind.ID)
		}
		slices.Sort(kinds)
		different[strings.Join(kinds, "")] = name
	}
	all := slices.Collect(maps.Values(different))
	v.different.Store(&all) // changes wait for v.mu
	return all
}

// Nodes calls yield for each of the nodes, with nil for one without devices of the driver. yield must not call the
// view, and must not keep or change the devices.
func (v *View) Nodes(names []string, yield func(index int, devices *NodeDevices)) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for i, name := range names {
		yield(i, v.nodes[name])
	}
}
