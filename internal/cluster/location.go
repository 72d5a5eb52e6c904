// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"
	"unique"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// places are the attributes that say where a GPU is, which several GPUs can have in common. Those before ofGPU are of
// the whole GPU alone: partitions have no part in them.
var places = []resourceapi.QualifiedName{"nvlinkDomain", "fabricDomain",
	deviceattribute.StandardDeviceAttributePCIeRoot, deviceattribute.StandardDeviceAttributeNUMANode}

const ofGPU = 2

// location is the values of places; empty: the GPU does not have the attribute.
type location [4]string

// locate notes where a whole GPU is: slim devices have no attributes of their own. The caller holds v.mu.
func (v *View) locate(pool string, d *resourceapi.Device) {
	l := &location{}
	for i, name := range places {
		if a, ok := d.Attributes[name]; ok {
			l[i] = unique.Make(a.String()).Value()
		}
	}
	v.locations[gpuID{pool, d.Name}] = l
}

// Attribute returns the value of an attribute of a device of the GPU, such that equal values have equal texts: of like,
// or of another one of its kind with that name; empty: it does not have the attribute. known is false if the view has
// dropped it.
func (g *GPU) Attribute(like *Device, device string, of resourceapi.FullyQualifiedName,
	driver string) (value string, known bool) {
	domain, id, _ := strings.Cut(string(of), "/")
	name := resourceapi.QualifiedName(of)
	if domain == driver {
		name = resourceapi.QualifiedName(id)
	}
	at := slices.Index(places, name)
	switch {
	case !IsIdentity(name):
		if a, ok := like.Kind.Device.Attributes[name]; ok {
			value = a.String()
		}
		return value, true
	case name == "parentUUID":
		return g.Name, true
	case name == "uuid", at >= 0 && at < ofGPU && like != g.Whole:
		return device, true
	case at < 0 || g.location == nil:
		return "", false
	}
	return g.location[at], true
}
