// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// value is the value of an attribute.
type value = resourceapi.DeviceAttribute

// Attribute is a published device attribute. Its Meaning is part of docs/reference/devices.md.
type Attribute struct {
	Name    resourceapi.QualifiedName
	Meaning string
	of      func(gpu.Device) value // the zero value: not published for this device
}

// AllAttributes are published for every device, because a selector on a missing attribute fails for the whole pod.
// Only unknown standard attributes are left out, and those that only GPUs for virtual machines, only vGPUs, or only
// GPUs with partitions on demand have. Partitions lack some: a selector of a request is only asked about devices that
// the class has selected.
var AllAttributes = []Attribute{
	{"type", "what the device is: see above",
		func(d gpu.Device) value { return text(string(d.Type)) }},
	{"uuid", "one certain GPU or MIG partition, as `nvidia-smi -L` prints it; of a partition that the driver makes " +
		"for a claim, and of a vGPU, its device name",
		func(d gpu.Device) value { return text(string(d.UUID)) }},
	{"parentUUID", "the physical GPU; a whole GPU is its own parent",
		func(d gpu.Device) value { return text(string(parentUUID(d))) }},
	{"productName", "the model, as `nvidia-smi` prints it",
		func(d gpu.Device) value { return text(d.Product.Name) }},
	{"brand", "the family of the model, as NVML names it",
		func(d gpu.Device) value { return text(d.Product.Brand) }},
	{"architecture", "the generation of the chip, as NVML names it",
		func(d gpu.Device) value { return text(d.Product.Architecture) }},
	{"cudaComputeCapability", "what the GPU can execute; the third part is 0",
		func(d gpu.Device) value {
			return version(d.Product.ComputeCapability.Major, d.Product.ComputeCapability.Minor, 0)
		}},
	{"driverVersion", "NVIDIA's driver on the node, without leading zeros: 580.95.05 is 580.95.5",
		func(d gpu.Device) value { return versionOf(d.DriverVersion) }},
	{"cudaDriverVersion", "the newest CUDA that this driver serves; the third part is 0",
		func(d gpu.Device) value { return version(d.CUDAVersion.Major, d.CUDAVersion.Minor, 0) }},
	{"index", "the number of the GPU in `nvidia-smi` when the driver found it; the GPU keeps it while it is in the " +
		"node, also when `nvidia-smi` numbers it anew; -1: none, of the monitor device and of a GPU that somebody " +
		"else has bound to vfio-pci",
		func(d gpu.Device) value { return number(d.Index) }},
	{"minor", "N of `/dev/nvidiaN`",
		func(d gpu.Device) value { return number(d.Minor) }},
	{"profile", "the MIG profile of a partition (`1g.10gb`), the type of a vGPU (`A16-4Q`); empty for a whole GPU",
		func(d gpu.Device) value { return text(profile(d)) }},
	{"migCapable", "whether the model can be partitioned by MIG",
		func(d gpu.Device) value { return value{BoolValue: ptr.To(d.MIG.Capable)} }},
	{"partitionsOnDemand", "`true`: the node publishes possible MIG partitions of the GPU as they are needed " +
		"(docs/operate/node-configuration.md); only of whole GPUs of such nodes",
		func(d gpu.Device) value {
			if d.Type != gpu.TypeGPU || !d.Use.OnDemand {
				return value{}
			}
			return value{BoolValue: ptr.To(true)}
		}},
	{"addressingMode", "how the GPU reaches the memory of the host: `HMM`, `ATS`, `None`; empty: unknown",
		func(d gpu.Device) value { return text(string(d.Addresses)) }},
	{"multiprocessors", "streaming multiprocessors, of a partition its own; 0: unknown",
		func(d gpu.Device) value { return number(d.Product.Multiprocessors) }},
	{"memoryBandwidth", "GB/s, at the maximum memory clock; a partition has that of its memory slices; 0: unknown",
		func(d gpu.Device) value { return number(d.Product.MemoryBandwidth) }},
	{"peakCompute", "TFLOP/s, dense FP16 on tensor cores: as NVIDIA publishes it for a known model, else computed " +
		"from cores and clock; it orders GPUs and promises nothing; a partition has that of its multiprocessors",
		func(d gpu.Device) value { return number(d.Product.PeakCompute) }},
	{"nvlinkDomain", "equal for GPUs that are all directly connected by NVLink: for `matchAttribute`; a GPU that is " +
		"alone, and every partition, has its own `uuid`",
		func(d gpu.Device) value { return text(d.Topology.NVLinkDomain) }},
	{"fabricDomain", "equal for GPUs of one multi-node NVLink fabric (cluster UUID and clique); a GPU that is in " +
		"none, and every partition, has its own `uuid`",
		func(d gpu.Device) value { return text(d.Topology.FabricDomain) }},
	{"sharing", "how the administrator lets the GPU be used: `fractional` (shares of any size), `replicated` (a " +
		"fixed number of claims), `exclusive` (one claim), `unlimited` (any number of claims, without limits)",
		func(d gpu.Device) value { return ofGPUs(d, sharing(d).String()) }},
	{"isolation", "what keeps a share within its limits: `mps`, `hook`, `cgroup`, or `none`",
		func(d gpu.Device) value { return ofGPUs(d, isolation(d).String()) }},
	{"sharedOnly", "whether only claims for shared GPUs (class `shared.gpu.nvidia.com`) get it",
		func(d gpu.Device) value { return value{BoolValue: ptr.To(d.Use.SharedOnly)} }},
	{"vgpu", "whether the node is a virtual machine, and this a part of a GPU of its host; `false` of type " +
		"`vgpu`, which are for virtual machines; not of type `mig`",
		ofWhole(func(d gpu.Device) value { return value{BoolValue: ptr.To(d.Guest != nil)} })},
	{"vgpuLicense", "`licensed` or `unlicensed`; empty: unknown, or no vGPU; not of type `mig`",
		ofWhole(func(d gpu.Device) value {
			if d.Guest == nil {
				return text("")
			}
			return text(string(d.Guest.License.State))
		})},
	{"vgpuHostDriverVersion", "NVIDIA's driver on the host, written as `driverVersion`; only of a vGPU, if known; " +
		"not of type `mig`",
		ofWhole(func(d gpu.Device) value {
			if d.Guest == nil || d.Guest.HostDriver == "" {
				return value{}
			}
			return versionOf(d.Guest.HostDriver)
		})},
	{"iommuGroup", "the IOMMU group; only of type `vfio` and `vgpu`; -1: the vGPU does not exist yet",
		func(d gpu.Device) value {
			if d.VGPU != nil {
				return number(d.VGPU.Group)
			}
			return ofVM(func(v gpu.VFIO) value { return number(v.Group) })(d)
		}},
	{"mdevUUID", "the mediated device; empty of a virtual function, and of a vGPU that does not exist yet, which has " +
		"one in the container's metadata; only of type `vgpu`",
		func(d gpu.Device) value {
			if d.VGPU == nil {
				return value{}
			}
			return text(d.VGPU.MDev)
		}},
	{"pciVendorID", "the PCI vendor ID, `10de`; only of type `vfio`",
		ofVM(func(v gpu.VFIO) value { return text(v.Vendor) })},
	{"pciDeviceID", "the PCI device ID, for example `26b5`; only of type `vfio`",
		ofVM(func(v gpu.VFIO) value { return text(v.Device) })},
	{deviceattribute.StandardDeviceAttributePCIBusID, "the place on the PCI bus",
		func(d gpu.Device) value {
			if d.Type == gpu.TypeMonitor {
				return value{} // it has no PCI address
			}
			return text(d.PCI.String())
		}},
	{deviceattribute.StandardDeviceAttributePCIeRoot, "the PCIe root complex above the GPU: `matchAttribute` on it " +
		"joins a GPU and a NIC",
		func(d gpu.Device) value {
			if d.PCIeRoot == "" {
				return value{}
			}
			return text(d.PCIeRoot)
		}},
	{deviceattribute.StandardDeviceAttributeNUMANode, "the NUMA node that the GPU is attached to",
		func(d gpu.Device) value {
			if d.NUMANode == gpu.NoNUMANode {
				return value{}
			}
			return number(d.NUMANode)
		}},
}

func parentUUID(d gpu.Device) gpu.UUID {
	if d.Type == gpu.TypeMonitor {
		return d.UUID
	}
	return d.Physical()
}

// ofVM returns an attribute of GPUs for virtual machines. Other devices do not have it: a device has 32 attributes and
// capacities at most, which partitions have.
func ofVM(of func(gpu.VFIO) value) func(gpu.Device) value {
	return func(d gpu.Device) value {
		if d.Type != gpu.TypeVFIO {
			return value{}
		}
		return of(*d.VFIO)
	}
}

// ofWhole returns an attribute of all devices but partitions, which have no room for it.
func ofWhole(of func(gpu.Device) value) func(gpu.Device) value {
	return func(d gpu.Device) value {
		if d.Partition != nil {
			return value{}
		}
		return of(d)
	}
}

func profile(d gpu.Device) string {
	switch {
	case d.Partition != nil:
		return d.Partition.Profile
	case d.VGPU != nil:
		return d.VGPU.Type.Name
	}
	return ""
}

// attributes returns the attributes of one device.
func attributes(d gpu.Device) map[resourceapi.QualifiedName]value {
	all := map[resourceapi.QualifiedName]value{}
	for _, a := range AllAttributes {
		if v := a.of(d); !reflect.ValueOf(v).IsZero() {
			all[a.Name] = v
		}
	}
	return all
}

// Attributes returns the published attributes of the named device, for the container that uses it. The driver's own
// attributes have no domain. It is nil if there is no such device.
func (inv Inventory) Attributes(node, device string) map[string]resourceapi.DeviceAttribute {
	d, ok := inv.Find(device)
	if !ok && device == Monitor {
		d, ok = inv.monitor(node), true
	}
	if !ok {
		return nil
	}
	out := map[string]resourceapi.DeviceAttribute{}
	for name, v := range attributes(d) {
		out[string(name)] = v
	}
	return out
}

// ofGPUs returns the text for GPUs, and an empty one for the monitor device.
func ofGPUs(d gpu.Device, s string) value {
	if d.Type == gpu.TypeMonitor {
		return text("")
	}
	return text(s)
}

func text(s string) value {
	s = Truncate(s)
	return value{StringValue: &s}
}

// Truncate returns what an attribute can have of a text: its first 64 bytes, without a part of a character.
func Truncate(s string) string {
	if len(s) > maxString {
		s = strings.ToValidUTF8(s[:maxString], "")
	}
	return s
}

func number(n int) value {
	return value{IntValue: ptr.To(int64(n))}
}

func version(major, minor, patch int) value {
	return value{VersionValue: ptr.To(fmt.Sprintf("%d.%d.%d", major, minor, patch))}
}

// versionOf turns a driver version into a semver: up to three numbers without leading zeros. "580.95.05" becomes
// "580.95.5". An invalid number becomes 0, because the API server refuses slices with an invalid version.
func versionOf(s string) value {
	var n [3]int
	for i, part := range strings.SplitN(s, ".", 3) {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end >= 0 {
			part = part[:end]
		}
		n[i], _ = strconv.Atoi(part)
	}
	return version(n[0], n[1], n[2])
}
