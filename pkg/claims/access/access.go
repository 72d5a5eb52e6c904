// SPDX-License-Identifier: Apache-2.0

// Package access gives containers the devices that a claim has: it finds out what they need, and writes that to CDI
// specs.
package access

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Toolkit knows what a container needs in order to use GPUs.
type Toolkit interface {
	// DriverAccess returns what every container with a GPU needs.
	DriverAccess(ctx context.Context) (gpu.Access, error)
	// Access returns what a container needs for this device, besides DriverAccess.
	Access(ctx context.Context, d gpu.Device) (gpu.Access, error)
	// MemoryLimit returns what a container needs, besides Access, so that NVIDIA's driver limits its memory on this
	// GPU. The error says why the machine cannot.
	MemoryLimit(d gpu.Device) (gpu.Access, error)
}

// Passthrough knows what a container needs in order to give a GPU to a virtual machine.
type Passthrough interface {
	// VFIONodes returns the device nodes of the GPU, which is bound to vfio-pci. iommufd asks for those of iommufd,
	// if the machine has them.
	VFIONodes(at gpu.PCIAddress, iommufd bool) ([]gpu.DeviceNode, error)
	// VGPUNodes is VFIONodes for a mediated device.
	VGPUNodes(uuid string, iommufd bool) ([]gpu.DeviceNode, error)
}

// Specs writes CDI specs.
type Specs struct {
	*cdi.Specs
	Toolkit Toolkit
	Passthrough
	Host sharing.Host // without MemoryLimit
}

// Find finds what the containers of the claim need now, for WriteClaim, and writes the driver's CDI spec and the files
// to mount. It returns the plan with the names of the CDI devices. Error: sharing.ErrGone.
func (s Specs) Find(ctx context.Context, inv inventory.Inventory, claim types.UID, plan sharing.Plan) (sharing.Plan,
	[]cdi.Device, error) {
	plan.Assignments = slices.Clone(plan.Assignments)
	var devices []cdi.Device
	forVMs := true
	for _, a := range plan.Assignments {
		access, err := s.of(ctx, inv, a)
		forVMs = forVMs && a.VFIO != nil
		if err != nil {
			return plan, nil, err
		}
		devices = append(devices, cdi.Device{Name: cdiName(claim, a), Access: access})
	}
	var driver string
	if !forVMs {
		var err error
		if driver, err = s.writeDriver(ctx); err != nil {
			return plan, nil, err
		}
	}
	for i, d := range devices {
		name := s.ClaimDevice(d.Name)
		plan.Assignments[i].CDI = []string{driver, name}
		if plan.Assignments[i].VFIO != nil {
			plan.Assignments[i].CDI = []string{name}
		}
	}
	return plan, devices, nil
}

// writeDriver writes the spec of the driver, and returns the name of its device.
func (s Specs) writeDriver(ctx context.Context) (driver string, err error) {
	var common gpu.Access
	if err := steps.Do(ctx, steps.FindDriverFiles, func(ctx context.Context) (err error) {
		common, err = s.Toolkit.DriverAccess(ctx)
		return err
	}); err != nil {
		return "", err
	}
	err = steps.Do(ctx, steps.WriteDriverSpec, func(context.Context) (err error) {
		driver, err = s.WriteDriver(common)
		return err
	})
	return driver, err
}

// of returns what a container needs to use the assigned device within its limits, or every GPU if it is the monitor
// device. It writes the files for that.
func (s Specs) of(ctx context.Context, inv inventory.Inventory, a sharing.Assignment) (all gpu.Access, err error) {
	devices, err := assigned(inv, a)
	if err != nil {
		return all, err
	}
	if a.VFIO != nil {
		return s.ofVM(ctx, a)
	}
	for _, d := range devices {
		if err := steps.Do(ctx, steps.FindDeviceFiles, func(ctx context.Context) error {
			access, err := s.Toolkit.Access(ctx, d)
			all.Append(access)
			return err
		}); err != nil {
			return all, err
		}
	}
	all.Env = append(all.Env, environment(a)...)
	host := s.Host
	host.MemoryLimit = func() (gpu.Access, error) {
		device, _ := inv.Find(a.Device)
		return s.Toolkit.MemoryLimit(device)
	}
	limits, err := a.Isolation.Access(host)
	if err != nil {
		return all, fmt.Errorf("device %s: %w", a.Device, err)
	}
	all.Append(limits)
	return all, writeFiles(all.Files)
}

func environment(a sharing.Assignment) (env []string) {
	for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
		env = append(env, name+"="+a.Environment[name])
	}
	return env
}

// apiDevices are the device nodes that belong to no GPU.
var apiDevices = []string{"/dev/vfio/vfio", "/dev/iommu"}

// ofVM returns what a container needs to give the assigned GPU or vGPU to a virtual machine: no libraries, no node of
// NVIDIA's driver. The variable keeps NVIDIA's container runtime, if installed, from adding GPUs.
func (s Specs) ofVM(ctx context.Context, a sharing.Assignment) (gpu.Access, error) {
	all := gpu.Access{Env: append(environment(a), "NVIDIA_VISIBLE_DEVICES=void")}
	err := steps.Do(ctx, steps.FindDeviceFiles, func(context.Context) (err error) {
		if v := a.VFIO.VGPU; v != nil && v.UUID != "" {
			all.Nodes, err = s.VGPUNodes(v.UUID, a.VFIO.PreferIOMMUFD)
			return err
		}
		all.Nodes, err = s.VFIONodes(a.VFIO.PCI, a.VFIO.PreferIOMMUFD)
		return err
	})
	if a.VFIO.NoAPIDevice {
		all.Nodes = slices.DeleteFunc(all.Nodes, func(n gpu.DeviceNode) bool {
			return slices.Contains(apiDevices, n.Path)
		})
	}
	return all, err
}

// assigned returns the current devices of an assignment. Error: sharing.ErrGone.
func assigned(inv inventory.Inventory, a sharing.Assignment) ([]gpu.Device, error) {
	if a.IsMonitor() {
		present := inv.Present()
		if len(present) == 0 {
			return nil, fmt.Errorf("device %s: %w", a.Device, sharing.ErrGone)
		}
		if slices.ContainsFunc(present, func(d gpu.Device) bool { return d.MIG.Capable }) {
			// for the capabilities to see partitions
			present = append(present, gpu.Device{Name: inventory.Monitor, Type: gpu.TypeMonitor})
		}
		return present, nil
	}
	device, ok := inv.Find(a.Device)
	p := a.Partition
	switch {
	case p != nil && ok && device.Partition != nil && device.Partition.Parent == a.GPU:
		device.UUID = p.UUID                    // until it is created, UUID is its name
		ok = !device.Lost || a.MakesPartition() // it may have been created again since
	case p == nil && device.Physical() == a.GPU:
		ok = !device.Lost
	default:
		ok = false
	}
	if !ok {
		return nil, fmt.Errorf("device %s (%s): %w", a.Device, a.GPU, sharing.ErrGone)
	}
	return []gpu.Device{device}, nil
}

// writeFiles writes the files that mounts need. A file with the same content is left alone, because containers have it
// mounted.
func writeFiles(files []gpu.File) error {
	for _, f := range files {
		if present, err := os.ReadFile(f.Path); err == nil && bytes.Equal(present, []byte(f.Content)) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := renameio.WriteFile(f.Path, []byte(f.Content), 0o644, renameio.IgnoreUmask()); err != nil {
			return err
		}
	}
	return nil
}

// cdiName returns the name of the CDI device. It is never used again, because runtimes cache names.
func cdiName(claim types.UID, a sharing.Assignment) string {
	name := string(claim) + "-" + a.Device
	if a.ShareID != "" {
		name += "-" + string(a.ShareID)
	}
	return name
}
