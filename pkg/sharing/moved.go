// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// A device is named after its place on the PCI bus, which may change with the cards of the machine. A claim from before
// knows its GPU by the former name. It cannot use the GPU any more, and what was changed on the GPU for it has ended,
// because GPUs lose their power on the way. Who uses the GPU now has it under its present name.

// moved reports whether the assigned GPU has another name now, or its name belongs to another GPU.
func (a Assignment) moved(present inventory.Inventory) bool {
	return slices.ContainsFunc(present, func(d gpu.Device) bool {
		return !a.IsMonitor() && (d.UUID == a.GPU) != (d.Name == gpu.ParentName(a.Device))
	})
}

// InPlace returns the plan without the assignments whose GPUs have moved on the PCI bus, and without the MPS daemons of
// such GPUs.
func (p Plan) InPlace(inv inventory.Inventory) Plan { return p.inPlace(inv.Present()) }

func (p Plan) inPlace(present inventory.Inventory) Plan {
	gone := map[gpu.UUID]bool{}
	for _, a := range p.Assignments {
		gone[a.GPU] = gone[a.GPU] || a.moved(present)
	}
	var left Plan
	for _, a := range p.Assignments {
		if gone[a.GPU] {
			continue
		}
		if a.MPS != nil && slices.ContainsFunc(a.MPS.GPUs, func(id gpu.UUID) bool { return gone[id] }) {
			a.MPS = nil
		}
		left.Assignments = append(left.Assignments, a)
	}
	return left
}

// CheckInPlace returns ErrGone if a GPU of the plan has moved on the PCI bus, or another one is in its place. That one
// may not be what the claim asks for, such as a certain UUID.
func (p Plan) CheckInPlace(inv inventory.Inventory) error {
	present := inv.Present()
	for _, a := range p.Assignments {
		if !a.moved(present) {
			continue
		}
		why := "the GPUs have other places on the PCI bus now, and so other names"
		if _, ok := present.FindUUID(a.GPU); !ok {
			why = "there is another GPU in its place now"
		}
		return fmt.Errorf("device %s (%s): %s; delete the pod, so that it is scheduled anew: %w", a.Device, a.GPU, why,
			ErrGone)
	}
	return nil
}

// InPlace returns the holders with what their plans still have: see Plan.InPlace.
func InPlace(holders []Holder, inv inventory.Inventory) []Holder {
	if len(holders) == 0 {
		return nil
	}
	present := inv.Present()
	var all []Holder
	for _, h := range holders {
		all = append(all, Holder{Claim: h.Claim, Plan: h.Plan.inPlace(present)})
	}
	return all
}
