// SPDX-License-Identifier: Apache-2.0

package view

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// placeAttributes say which device it is, or where; all others say what it is.
var placeAttributes = map[resourceapi.QualifiedName]bool{
	"uuid": true, "parentUUID": true, "index": true, "minor": true, "nvlinkDomain": true, "fabricDomain": true,
	deviceattribute.StandardDeviceAttributePCIBusID: true,
	deviceattribute.StandardDeviceAttributePCIeRoot: true,
	deviceattribute.StandardDeviceAttributeNUMANode: true,
}

// Kind is what all devices have in common that differ only in which one they are: there are as many as there are models, MIG profiles
// and ways of sharing in the cluster, however many GPUs it has.
type Kind struct {
	ID     string             // tells kinds apart
	Device resourceapi.Device // one of them, without name and taints; what says which one it is is that of the first that was seen
}

// kindsOf are the keys of the devices' kinds. They take a while: whoever has the view's lock should have them already.
func kindsOf(devices []resourceapi.Device) []string {
	var keys []string
	for _, d := range devices {
		keys = append(keys, kindOf(d))
	}
	return keys
}

// kindOf tells devices of different kinds apart. An attribute that only some devices have makes a difference even where its value
// does not: selectors fail without it.
func kindOf(d resourceapi.Device) string {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range d.Attributes {
		if placeAttributes[name] {
			value = resourceapi.DeviceAttribute{}
		}
		attributes[name] = value
	}
	text, err := json.Marshal([]any{attributes, d.Capacity, d.AllowMultipleAllocations})
	if err != nil {
		return fmt.Sprintf("%p", d.Attributes) // no API object is like that: a kind of its own
	}
	digest := sha256.Sum256(text)
	return string(digest[:])
}

// Matchable is the device as selectors see it.
func (k *Kind) Matchable(driver string) cel.Device {
	return cel.Device{Driver: driver, AllowMultipleAllocations: k.Device.AllowMultipleAllocations, Attributes: k.Device.Attributes, Capacity: k.Device.Capacity}
}

// Type is the kind of device: a GPU, a partition, the monitor.
func (k *Kind) Type() gpu.Type { return gpu.Type(k.text("type")) }

// Product is the model, as NVML names it.
func (k *Kind) Product() string { return k.text("productName") }

// Profile is the MIG profile of a partition.
func (k *Kind) Profile() string { return k.text("profile") }

// Sharing is how the administrator lets such GPUs be used.
func (k *Kind) Sharing() string { return k.text("sharing") }

// Isolation is what keeps a share of such a GPU within its limits.
func (k *Kind) Isolation() string { return k.text("isolation") }

// PeakCompute is in TFLOP/s, and orders GPUs.
func (k *Kind) PeakCompute() int64 { return ptr.Deref(k.Device.Attributes["peakCompute"].IntValue, 0) }

// Capacity is how much such a device has of it, in the unit that is published; 0: none.
func (k *Kind) Capacity(name resourceapi.QualifiedName) int64 {
	q := k.Device.Capacity[name].Value
	return q.Value()
}

// Has says whether a request can get so much of such a device's capacities, while it is free.
func (k *Kind) Has(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, wanted := range asked {
		if most, ok := k.Most(name); !ok || most.Cmp(wanted) < 0 {
			return false
		}
	}
	return true
}

// Most is how much of the capacity a request can get: of a GPU that is replicated no memory, however much it has. ok says whether there
// is such a capacity.
func (k *Kind) Most(name resourceapi.QualifiedName) (most resource.Quantity, ok bool) {
	capacity, ok := k.Device.Capacity[name]
	policy := capacity.RequestPolicy
	switch {
	case policy != nil && len(policy.ValidValues) > 0:
		return policy.ValidValues[len(policy.ValidValues)-1], ok // they rise
	case policy != nil && policy.ValidRange != nil && policy.ValidRange.Max != nil:
		return *policy.ValidRange.Max, ok
	}
	return capacity.Value, ok
}

func (k *Kind) text(name resourceapi.QualifiedName) string {
	return ptr.Deref(k.Device.Attributes[name].StringValue, "")
}

// String names the kind for people.
func (k *Kind) String() string {
	switch k.Type() {
	case gpu.TypeMIG:
		return fmt.Sprintf("MIG %s of %s", k.Profile(), k.Product())
	case gpu.TypeMonitor:
		return "the monitor device"
	}
	return k.Product()
}
