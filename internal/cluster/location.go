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

// placed marks the place of a whole GPU in BindingConditions of its slim device, which has no attributes of its own:
// the values of places follow. No device is published with that many conditions.
const placed = "place"

// placeOf returns the place of a whole GPU, as in its slim device; a value is empty if the GPU does not have it. An
// informer may pass a slim device again.
func placeOf(d *resourceapi.Device) []string {
	if len(d.BindingConditions) > len(places) && d.BindingConditions[0] == placed {
		return d.BindingConditions
	}
	all := []string{placed}
	for _, name := range places {
		value := ""
		if a, ok := d.Attributes[name]; ok {
			value = unique.Make(a.String()).Value()
		}
		all = append(all, value)
	}
	return all
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
	case at < 0 || len(g.place) <= len(places):
		return "", false
	}
	return g.place[at+1], true
}
