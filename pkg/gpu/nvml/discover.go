// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVIDIA's management library and asks NVIDIA's container toolkit what a container needs of them.
// It does not know whether the library is real or simulated.
package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Config is what a Node needs to know.
type Config struct {
	Library nvmllib.Interface
	Sysfs   string // where sysfs is mounted: "/sys" on a real machine
	Proc    string // where proc is: "/proc" on a real machine
	Driver  DriverRoot
	// HookPath is where the host has nvidia-cdi-hook.
	HookPath string
}

// Node is the GPUs of this machine.
type Node struct {
	Config
	devices device.Interface
	answers answers

	// switching is locked for reading by those who switch the MIG mode of a GPU, many at once, and for writing by Discover.
	switching sync.RWMutex

	offered sync.Map // UUID of a GPU → []profile

	partitioned map[gpu.UUID]gpu.MIG // how GPUs were when they last told

	said map[string]string // what GPUs do not tell, so that it is logged once

	last   []gpu.Device // what the last full look has found; nil when some of it was broken
	lastAt time.Time
}

// fullLookPeriod is how often everything is asked of GPUs that are the same as before: what a GPU is does not change, and to ask for
// all of it takes the processor milliseconds.
const fullLookPeriod = time.Minute

// Open initialises the library. Close must follow.
func Open(c Config) (*Node, error) {
	if ret := c.Library.Init(); ret != nvmllib.SUCCESS {
		return nil, fmt.Errorf("initialise NVML: %w", ret)
	}
	return &Node{Config: c, devices: device.New(c.Library)}, nil
}

// Close shuts the library down.
func (n *Node) Close() error {
	if ret := n.Library.Shutdown(); ret != nvmllib.SUCCESS {
		return fmt.Errorf("shut NVML down: %w", ret)
	}
	return nil
}

// Discover reads all GPUs, in NVML's order. GPUs that cannot be read are reported, each in one error, and are among the devices as
// lost, as far as their place is known; they do not keep the others from being used. err is set when nothing could be read at all.
// When it is called again soon, GPUs that answer as the same as before are not asked for what they are.
func (n *Node) Discover() (devices []gpu.Device, broken []error, err error) {
	n.switching.Lock()
	defer n.switching.Unlock()
	count, ret := n.Library.DeviceGetCount()
	if ret != nvmllib.SUCCESS {
		return nil, nil, fmt.Errorf("count GPUs: %w", ret)
	}
	if time.Since(n.lastAt) < fullLookPeriod && n.same(count) {
		return slices.Clone(n.last), nil, nil
	}
	devices, broken, err = n.discover(count)
	n.last, n.lastAt = devices, time.Now()
	if err != nil || len(broken) > 0 {
		n.last = nil
	}
	return devices, broken, err
}

// same says whether all GPUs answer and are those of the last full look.
func (n *Node) same(count int) bool {
	if count != len(n.last) {
		return false
	}
	for i, d := range n.last {
		handle, ret := n.Library.DeviceGetHandleByIndex(i)
		if ret != nvmllib.SUCCESS {
			return false
		}
		uuid, ret := handle.GetUUID()
		if ret != nvmllib.SUCCESS || gpu.UUID(uuid) != d.UUID || i != d.Index {
			return false
		}
		if minor, ret := handle.GetMinorNumber(); ret != nvmllib.SUCCESS || minor != d.Minor {
			return false
		}
		if !n.sameMIG(handle, d) {
			return false
		}
	}
	return true
}

// discover asks for everything.
func (n *Node) discover(count int) (devices []gpu.Device, broken []error, err error) {
	driver, cuda, err := n.versions()
	if err != nil {
		return nil, nil, err
	}
	var connections []links
	var silent []gpu.Device
	for i := range count {
		d, handle, err := n.readAt(i)
		if err != nil {
			broken = append(broken, fmt.Errorf("GPU %d: %w", i, err))
			silent = append(silent, d)
			continue
		}
		d.DriverVersion, d.CUDAVersion = driver, cuda
		devices = append(devices, d)
		connections = append(connections, readLinks(handle))
	}
	assignNVLinkDomains(devices, connections)
	return n.withLost(devices, silent), broken, nil
}

// readAt reads the GPU of that number. After an error, what is known of it is in the device.
func (n *Node) readAt(index int) (gpu.Device, nvmllib.Device, error) {
	handle, ret := n.Library.DeviceGetHandleByIndex(index)
	if ret != nvmllib.SUCCESS {
		return gpu.Device{Index: index}, nil, fmt.Errorf("get handle: %w", ret)
	}
	d, err := n.read(index, handle)
	return d, handle, err
}

func (n *Node) versions() (driver string, cuda gpu.Version, err error) {
	driver, ret := n.Library.SystemGetDriverVersion()
	if ret != nvmllib.SUCCESS {
		return "", cuda, fmt.Errorf("get driver version: %w", ret)
	}
	v, ret := n.Library.SystemGetCudaDriverVersion()
	if ret != nvmllib.SUCCESS {
		return "", cuda, fmt.Errorf("get CUDA version: %w", ret)
	}
	return driver, gpu.Version{Major: v / 1000, Minor: v % 1000 / 10}, nil
}

// read asks one GPU for everything. What identifies it and places it must be answered, by any call that it is not lost; the rest may
// be unknown.
func (n *Node) read(index int, handle nvmllib.Device) (gpu.Device, error) {
	d := gpu.Device{Type: gpu.TypeGPU, Index: index}
	if err := n.locate(&d, handle); err != nil {
		return d, err
	}
	uuid, ret := handle.GetUUID()
	if ret != nvmllib.SUCCESS {
		return d, fmt.Errorf("%s: get UUID: %w", d.Name, ret)
	}
	d.UUID = gpu.UUID(uuid)
	var err error
	if d.Minor, err = n.minor(handle, d); err != nil {
		return d, fmt.Errorf("%s: %w", d.Name, err)
	}
	memory, ret := handle.GetMemoryInfo()
	switch ret {
	case nvmllib.SUCCESS:
		d.Memory = memory.Total
	case nvmllib.ERROR_NOT_SUPPORTED: // it uses the memory of the host: nobody can say how much is its own
	default:
		return d, fmt.Errorf("%s: get memory: %w", d.Name, ret)
	}
	if d.Product, err = n.product(d, handle); err != nil {
		return d, fmt.Errorf("%s: %w", d.Name, err)
	}
	if d.MIG, err = n.readMIG(handle, d); err != nil {
		return d, fmt.Errorf("%s: %w", d.Name, err)
	}
	d.Product = inMIGMode(d)
	if lib, err := n.devices.NewDevice(handle); err == nil {
		if mode, err := lib.GetAddressingModeAsString(); err == nil {
			d.Addresses = gpu.AddressingMode(mode)
		}
	}
	d.Topology.FabricDomain = fabricDomain(handle, d.UUID)
	return d, nil
}

// minor is N of /dev/nvidiaN. Where NVML does not tell, the driver's directory in /proc does.
func (n *Node) minor(handle nvmllib.Device, d gpu.Device) (int, error) {
	minor, ret := handle.GetMinorNumber()
	if ret == nvmllib.SUCCESS {
		return minor, nil
	}
	text, err := os.ReadFile(filepath.Join(n.Proc, "driver/nvidia/gpus", d.PCI.String(), "information"))
	if err != nil {
		return 0, fmt.Errorf("get minor number: %w", ret)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Device Minor: %d", &minor); err == nil {
			return minor, nil
		}
	}
	return 0, fmt.Errorf("get minor number: %w", ret)
}

// locate finds the GPU on the PCI bus, and from there its name, root complex and NUMA node.
func (n *Node) locate(d *gpu.Device, handle nvmllib.Device) error {
	info, ret := handle.GetPciInfo()
	if ret != nvmllib.SUCCESS {
		return fmt.Errorf("get PCI address: %w", ret)
	}
	var err error
	if d.PCI, err = pciAddress(info); err != nil {
		return err
	}
	d.Name = d.PCI.DeviceName()
	sysfs := deviceattribute.WithFSFromRoot(n.Sysfs)
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(d.PCI.String(), sysfs); err == nil {
		d.PCIeRoot = *root.Value.StringValue
	}
	d.NUMANode = gpu.NoNUMANode
	if node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(d.PCI.String(), deviceattribute.ScalarAttribute, sysfs); err == nil {
		d.NUMANode = int(*node.Value.IntValue)
	}
	return nil
}

// product is the model, as far as the GPU tells. Error: the GPU is lost.
func (n *Node) product(d gpu.Device, handle nvmllib.Device) (gpu.Product, error) {
	var p gpu.Product
	var ret nvmllib.Return
	if p.Name, ret = handle.GetName(); ret == nvmllib.ERROR_GPU_IS_LOST {
		return p, fmt.Errorf("get product name: %w", ret)
	}
	n.note(d, "Product name unknown", ret, nvmllib.SUCCESS)
	cc := &p.ComputeCapability
	if cc.Major, cc.Minor, ret = handle.GetCudaComputeCapability(); ret == nvmllib.ERROR_GPU_IS_LOST {
		return p, fmt.Errorf("get compute capability: %w", ret)
	}
	n.note(d, "Compute capability unknown", ret, nvmllib.SUCCESS)
	if lib, err := n.devices.NewDevice(handle); err == nil {
		if brand, err := lib.GetBrandAsString(); err == nil {
			p.Brand = brand
		}
		if architecture, err := lib.GetArchitectureAsString(); err == nil {
			p.Architecture = architecture
		}
	}
	cores, _ := handle.GetNumGpuCores() // a call that is not supported answers 0, and the figure is 0
	memoryClock, _ := handle.GetMaxClockInfo(nvmllib.CLOCK_MEM)
	smClock, _ := handle.GetMaxClockInfo(nvmllib.CLOCK_SM)
	busWidth, _ := handle.GetMemoryBusWidth()
	p.Multiprocessors = multiprocessors(cores, p.ComputeCapability)
	p.MemoryBandwidth = memoryBandwidth(busWidth, memoryClock)
	p.PeakCompute = peakCompute(p, smClock)
	return p, nil
}

// note logs what a GPU does not tell, once, unless it is one of the answers that are fine.
func (n *Node) note(d gpu.Device, what string, err error, fine ...error) {
	if slices.Contains(fine, err) {
		return
	}
	about := d.Name + " " + what
	if n.said == nil {
		n.said = map[string]string{}
	}
	if text := err.Error(); n.said[about] != text {
		n.said[about] = text
		klog.Background().Info(what, "device", d.Name, "uuid", d.UUID, "err", err)
	}
}

// pciAddress reads the address that NVML writes as a C string.
func pciAddress(info nvmllib.PciInfo) (gpu.PCIAddress, error) {
	return gpu.ParsePCIAddress(text(info.BusId[:]))
}

// text is a C string.
func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
