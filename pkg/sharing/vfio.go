// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// AssignedVFIO is a GPU, or a vGPU, that a virtual machine gets.
type AssignedVFIO struct {
	PCI gpu.PCIAddress `json:"pci"`
	// VGPU says which vGPU it is: that of the function PCI, or a mediated device below it; nil: all of the GPU.
	VGPU *AssignedVGPU `json:"vgpu,omitempty"`
	// Functions are bound to vfio-pci for the claim, and returned to their drivers afterwards; none: somebody else has
	// bound the GPU.
	Functions []gpu.PCIFunction `json:"functions,omitempty"`
	// Persistent means that the GPU was in persistence mode, and is to be so again afterwards.
	Persistent bool `json:"persistent,omitempty"`
	// PreferIOMMUFD and NoAPIDevice are the claim's choice of device nodes: see api.IOMMU.
	PreferIOMMUFD bool `json:"preferIOMMUFD,omitempty"`
	NoAPIDevice   bool `json:"noAPIDevice,omitempty"`
}

func assignVFIO(d gpu.Device, config api.IOMMU) *AssignedVFIO {
	a := AssignedVFIO{PCI: d.PCI, PreferIOMMUFD: config.PreferIOMMUFD, NoAPIDevice: config.NoAPIDevice}
	if v := d.VGPU; v != nil {
		a.VGPU = &AssignedVGPU{Type: v.Type.Name, UUID: v.MDev, Made: v.Made}
	} else {
		a.Functions = d.VFIO.Functions
	}
	return &a
}

// Binds reports whether the driver binds the GPU to vfio-pci for the claim, and returns it afterwards.
func (a Assignment) Binds() bool { return a.VFIO != nil && len(a.VFIO.Functions) > 0 }

// isBack refuses a GPU for containers while it is known as bound to vfio-pci: when it has just been returned, its
// device node may have another number now. Error: ErrInUse.
func (a Assignment) isBack(inv inventory.Inventory) error {
	if d, ok := inv.Find(a.Device); ok && a.VFIO == nil && d.InVM() {
		return refuse(ErrInUse, "comes back from a virtual machine, and is looked at again")
	}
	return nil
}

// Bound returns what the plan binds to vfio-pci, by physical GPU.
func (p Plan) Bound() map[gpu.UUID]AssignedVFIO {
	bound := map[gpu.UUID]AssignedVFIO{}
	for _, a := range p.Assignments {
		if a.Binds() {
			bound[a.GPU] = *a.VFIO
		}
	}
	return bound
}

// WithPersistence returns the plan with the GPUs that are in persistence mode before it is carried out.
func (p Plan) WithPersistence(is map[gpu.UUID]bool) Plan {
	p.Assignments = slices.Clone(p.Assignments)
	for i, a := range p.Assignments {
		if a.Binds() {
			v := *a.VFIO
			v.Persistent = is[a.GPU]
			p.Assignments[i].VFIO = &v
		}
	}
	return p
}
