// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// identityAttributes identify a device, or its location. All others describe its kind.
var identityAttributes = map[resourceapi.QualifiedName]bool{
	"uuid": true, "parentUUID": true, "index": true, "minor": true, "nvlinkDomain": true, "fabricDomain": true,
	"iommuGroup": true,
	deviceattribute.StandardDeviceAttributePCIBusID: true,
	deviceattribute.StandardDeviceAttributePCIeRoot: true,
	deviceattribute.StandardDeviceAttributeNUMANode: true,
}

// IsIdentity reports whether the attribute identifies a device, or its location.
func IsIdentity(name resourceapi.QualifiedName) bool { return identityAttributes[name] }

// DeviceKind is what devices have in common that differ only in identity. A cluster has one per model, MIG profile and
// sharing mode, however many GPUs it has.
type DeviceKind struct {
	ID string // unique
	// a device of the kind, without name and taints; its identity attributes are those of the first device seen
	Device resourceapi.Device

	domain     resourceapi.QualifiedName // of the attributes, if it is remote
	deviceType gpu.Type
	product    string

	policies  []policy     // requests take of these, sorted by name
	count     int          // published devices
	available availability // of the whole GPUs
}

func newKind(id string, d *resourceapi.Device, domain resourceapi.QualifiedName) *DeviceKind {
	k := &DeviceKind{ID: id, domain: domain, Device: resourceapi.Device{Attributes: d.Attributes, Capacity: d.Capacity,
		AllowMultipleAllocations: d.AllowMultipleAllocations},
		available: availability{map[string]int64{}, map[int64]int64{}, map[*GPU]struct{}{}}}
	k.deviceType, k.product = gpu.Type(k.text("type")), k.text("productName")
	if domain != "" {
		k.deviceType = gpu.TypeGPU // a remote partition is shared as a GPU is
	}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		c := d.Capacity[name]
		if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
			k.policies = append(k.policies, policy{name, c.Value.Value(), c.RequestPolicy})
		}
	}
	return k
}

// KindOf returns the kind of a local device by itself.
func KindOf(d *resourceapi.Device) *DeviceKind { return newKind("", d, "") }

// policy says how much of a capacity requests take.
type policy struct {
	name resourceapi.QualifiedName
	size int64
	*resourceapi.CapacityRequestPolicy
}

// takes returns how much of the capacity a request takes: what it asks for, or else the default, rounded up as the
// scheduler does.
func (p policy) takes(asked map[resourceapi.QualifiedName]resource.Quantity) int64 {
	q, ok := asked[p.name]
	if !ok {
		return p.Default.Value()
	}
	want := q.Value()
	for _, valid := range p.ValidValues { // in ascending order
		if valid.Value() >= want {
			return valid.Value()
		}
	}
	if r := p.ValidRange; r != nil && r.Min != nil {
		want = max(want, r.Min.Value())
		if r.Step != nil && r.Step.Value() > 0 {
			step := r.Step.Value()
			want = r.Min.Value() + (want-r.Min.Value()+step-1)/step*step
		}
	}
	return want
}

// Consumes returns how much of each capacity a request takes of a device that can be shared.
func (k *DeviceKind) Consumes(
	asked map[resourceapi.QualifiedName]resource.Quantity) map[resourceapi.QualifiedName]resource.Quantity {
	all := map[resourceapi.QualifiedName]resource.Quantity{}
	for _, p := range k.policies {
		all[p.name] = *resource.NewQuantity(p.takes(asked), resource.BinarySI)
	}
	return all
}

// Shared reports whether several claims can hold a device of the kind.
func (k *DeviceKind) Shared() bool { return ptr.Deref(k.Device.AllowMultipleAllocations, false) }

// kindsOf returns the key of each device's kind. This is slow for devices as they are published: call it before locking
// the view.
func (v *View) kindsOf(devices []resourceapi.Device) []string {
	keys := make([]string, len(devices))
	v.mu.RLock()
	for i, d := range devices { // those of SlimSlice are known
		if k := v.byMap[address(d.Attributes)]; k != nil && address(d.Capacity) == address(k.Device.Capacity) &&
			d.AllowMultipleAllocations == k.Device.AllowMultipleAllocations {
			keys[i] = k.ID
		}
	}
	v.mu.RUnlock()
	e := Encoder{NameOnly: IsIdentity} // selectors fail on a device that lacks such an attribute
	for i := range devices {
		if keys[i] == "" {
			digest := sha256.Sum256(e.Encode(&devices[i]))
			keys[i] = string(digest[:])
		}
	}
	return keys
}

// address returns the address of a map. Two maps at one address, at one time, are the same.
func address[M ~map[K]V, K comparable, V any](m M) uintptr { return reflect.ValueOf(m).Pointer() }

// Encoder encodes what devices are: attributes, capacity, and whether several claims can hold them. It is fast for
// devices with the names of the device before: a large cluster has hundreds of thousands of devices.
type Encoder struct {
	// Skip leaves out an attribute, and NameOnly the value of one. nil: none.
	Skip, NameOnly func(resourceapi.QualifiedName) bool

	text                   []byte
	attributes, capacities []resourceapi.QualifiedName // of the device before, sorted
}

// Encode returns the same bytes for devices that are equal, and other bytes for others. They are valid until the next
// call.
func (e *Encoder) Encode(d *resourceapi.Device) []byte {
	e.attributes = sortedNames(d.Attributes, e.attributes)
	e.capacities = sortedNames(d.Capacity, e.capacities)
	e.text = e.text[:0]
	for _, name := range e.attributes {
		if e.Skip != nil && e.Skip(name) {
			continue
		}
		e.string(string(name))
		switch a := d.Attributes[name]; {
		case e.NameOnly != nil && e.NameOnly(name):
		case a.StringValue != nil:
			e.text = append(e.text, 's')
			e.string(*a.StringValue)
		default:
			e.text = append(e.text, 'm')
			e.message(a.Size(), a.MarshalToSizedBuffer)
		}
	}
	e.string("") // no name: the capacities follow
	for _, name := range e.capacities {
		capacity := d.Capacity[name]
		e.string(string(name))
		if n, ok := capacity.Value.AsInt64(); ok && capacity.RequestPolicy == nil {
			e.text = binary.AppendVarint(append(e.text, 'q'), n)
		} else {
			e.text = append(e.text, 'm')
			e.message(capacity.Size(), capacity.MarshalToSizedBuffer)
		}
	}
	if allow := d.AllowMultipleAllocations; allow != nil {
		e.text = strconv.AppendBool(e.text, *allow)
	}
	return e.text
}

// sortedNames returns the names, sorted. known are sorted names, perhaps the same.
func sortedNames[V any](of map[resourceapi.QualifiedName]V,
	known []resourceapi.QualifiedName) []resourceapi.QualifiedName {
	missing := func(name resourceapi.QualifiedName) bool {
		_, ok := of[name]
		return !ok
	}
	if len(of) == len(known) && !slices.ContainsFunc(known, missing) {
		return known
	}
	return slices.Sorted(maps.Keys(of))
}

func (e *Encoder) string(s string) {
	e.text = append(binary.AppendUvarint(e.text, uint64(len(s))), s...)
}

// message appends a protobuf message of that size.
func (e *Encoder) message(size int, marshal func([]byte) (int, error)) {
	e.text = binary.AppendUvarint(e.text, uint64(size))
	start := len(e.text)
	e.text = append(e.text, make([]byte, size)...)
	_, _ = marshal(e.text[start:]) // these messages have no maps and always marshal
}

// Type returns the type of device: GPU, partition, GPU for virtual machines, or monitor.
func (k *DeviceKind) Type() gpu.Type { return k.deviceType }

// Product returns the model, as NVML names it.
func (k *DeviceKind) Product() string { return k.product }

// Profile returns the MIG profile of a partition.
func (k *DeviceKind) Profile() string { return k.text("profile") }

// Sharing returns the configured sharing mode of the GPU.
func (k *DeviceKind) Sharing() string { return k.text("sharing") }

// SharedOnly reports whether only claims for shared GPUs get devices of the kind.
func (k *DeviceKind) SharedOnly() bool {
	return ptr.Deref(k.attribute("sharedOnly").BoolValue, false)
}

// OnDemand reports whether possible partitions of the GPU are published as they are needed.
func (k *DeviceKind) OnDemand() bool {
	return ptr.Deref(k.attribute("partitionsOnDemand").BoolValue, false)
}

// Isolation returns what enforces the limits of shares.
func (k *DeviceKind) Isolation() string { return k.text("isolation") }

// PeakCompute returns the peak compute rate in TFLOP/s. GPUs are ranked by it.
func (k *DeviceKind) PeakCompute() int64 {
	return ptr.Deref(k.attribute("peakCompute").IntValue, 0)
}

// Capacity returns a capacity of the device in its published unit; 0: it has none.
func (k *DeviceKind) Capacity(name resourceapi.QualifiedName) int64 {
	q := k.Device.Capacity[name].Value
	return q.Value()
}

// Has reports whether an unused device of the kind can serve a request for these capacities.
func (k *DeviceKind) Has(asked map[resourceapi.QualifiedName]resource.Quantity) bool {
	for name, wanted := range asked {
		if most, ok := k.Most(name); !ok || most.Cmp(wanted) < 0 {
			return false
		}
	}
	return true
}

// Most returns the most that a request can get of the capacity. A replicated GPU has memory, but a request can get none
// of it. ok is false if there is no such capacity.
func (k *DeviceKind) Most(name resourceapi.QualifiedName) (most resource.Quantity, ok bool) {
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

// isPart reports whether the devices are partitions or vGPUs.
func (k *DeviceKind) isPart() bool { return k.Type() == gpu.TypeMIG || k.Type() == gpu.TypeVGPU }

func (k *DeviceKind) multiprocessors() int64 {
	return ptr.Deref(k.attribute("multiprocessors").IntValue, 0)
}

func (k *DeviceKind) text(name resourceapi.QualifiedName) string {
	return ptr.Deref(k.attribute(name).StringValue, "")
}

// attribute returns an attribute of the driver.
func (k *DeviceKind) attribute(name resourceapi.QualifiedName) resourceapi.DeviceAttribute {
	if k.domain != "" {
		name = k.domain + "/" + name
	}
	return k.Device.Attributes[name]
}

// String returns a name for messages.
func (k *DeviceKind) String() string {
	switch k.Type() {
	case gpu.TypeMIG:
		return fmt.Sprintf("MIG %s of %s", k.Profile(), k.Product())
	case gpu.TypeVGPU:
		return fmt.Sprintf("vGPU %s of %s", k.Profile(), k.Product())
	case gpu.TypeVFIO:
		return k.Product() + " for virtual machines"
	case gpu.TypeMonitor:
		return "the monitor device"
	}
	return k.Product()
}
