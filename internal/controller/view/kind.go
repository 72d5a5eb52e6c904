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

// identityAttributes identify a device, or its location. All others describe its kind.
var identityAttributes = map[resourceapi.QualifiedName]bool{
	"uuid": true, "parentUUID": true, "index": true, "minor": true, "nvlinkDomain": true, "fabricDomain": true,
	deviceattribute.StandardDeviceAttributePCIBusID: true,
	deviceattribute.StandardDeviceAttributePCIeRoot: true,
	deviceattribute.StandardDeviceAttributeNUMANode: true,
}

// Kind is what devices have in common that differ only in identity. A cluster has one per model, MIG profile and
// sharing mode, however many GPUs it has.
type Kind struct {
	ID string // unique
	// a device of the kind, without name and taints; its identity attributes are those of the first device seen
	Device resourceapi.Device
}

// kindsOf returns the key of each device's kind. This is slow: call it before locking the view.
func kindsOf(devices []resourceapi.Device) []string {
	var keys []string
	for _, d := range devices {
		keys = append(keys, kindOf(d))
	}
	return keys
}

// kindOf returns the key of the device's kind. It includes the names of identity attributes: selectors fail on a device
// that lacks one.
func kindOf(d resourceapi.Device) string {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range d.Attributes {
		if identityAttributes[name] {
			value = resourceapi.DeviceAttribute{}
		}
		attributes[name] = value
	}
	text, err := json.Marshal([]any{attributes, d.Capacity, d.AllowMultipleAllocations})
	if err != nil {
		return fmt.Sprintf("%p", d.Attributes) // API objects always marshal; otherwise a kind of its own
	}
	digest := sha256.Sum256(text)
	return string(digest[:])
}

// Matchable returns the device as CEL selectors see it.
func (k *Kind) Matchable(driver string) cel.Device {
	return cel.Device{Driver: driver, AllowMultipleAllocations: k.Device.AllowMultipleAllocations,
		Attributes: k.Device.Attributes, Capacity: k.Device.Capacity}
}

// Type returns the type of device: GPU, partition or monitor.
func (k *Kind) Type() gpu.Type { return gpu.Type(k.text("type")) }

// Product returns the model, as NVML names it.
func (k *Kind) Product() string { return k.text("productName") }

// Profile returns the MIG profile of a partition.
func (k *Kind) Profile() string { return k.text("profile") }

// Sharing returns the configured sharing mode of the GPU.
func (k *Kind) Sharing() string { return k.text("sharing") }

// Isolation returns what enforces the limits of shares.
func (k *Kind) Isolation() string { return k.text("isolation") }

// PeakCompute returns the peak compute rate in TFLOP/s. GPUs are ranked by it.
func (k *Kind) PeakCompute() int64 { return ptr.Deref(k.Device.Attributes["peakCompute"].IntValue, 0) }

// Capacity returns a capacity of the device in its published unit; 0: it has none.
func (k *Kind) Capacity(name resourceapi.QualifiedName) int64 {
	q := k.Device.Capacity[name].Value
	return q.Value()
}

// Has reports whether an unused device of the kind can serve a request for these capacities.
func (k *Kind) Has(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, wanted := range asked {
		if most, ok := k.Most(name); !ok || most.Cmp(wanted) < 0 {
			return false
		}
	}
	return true
}

// Most returns the most that a request can get of the capacity. A replicated GPU has memory, but a request can get none
// of it. ok is false if there is no such capacity.
func (k *Kind) Most(name resourceapi.QualifiedName) (most resource.Quantity, ok bool) {
	capacity, ok := k.Device.Capacity[name]
	policy := capacity.RequestPolicy
	switch {
	case policy != nil && len(policy.ValidValues) > 0:
		return policy.ValidValues[len(policy.ValidValues)-1], ok // in ascending order
	case policy != nil && policy.ValidRange != nil && policy.ValidRange.Max != nil:
		return *policy.ValidRange.Max, ok
	}
	return capacity.Value, ok
}

func (k *Kind) text(name resourceapi.QualifiedName) string {
	return ptr.Deref(k.Device.Attributes[name].StringValue, "")
}

// String returns a name for messages.
func (k *Kind) String() string {
	switch k.Type() {
	case gpu.TypeMIG:
		return fmt.Sprintf("MIG %s of %s", k.Profile(), k.Product())
	case gpu.TypeMonitor:
		return "the monitor device"
	}
	return k.Product()
}
