// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Why GPUs that are bound to vfio-pci have no events.
const (
	inVM   = "it is in a virtual machine"
	byHand = "it is bound to vfio-pci, and not by this driver"
)

// withPassthrough adds the GPUs that NVML does not list: those of claims for virtual machines, and those that somebody
// else has bound to vfio-pci. The former keep what is known of them, because only their records tell which drivers they
// had. Those that do not come back are lost: stuck says why. A GPU that a claim holds in another shape is left out: for
// that claim it is lost.
func withPassthrough(f *found, known inventory.Inventory, stuck map[gpu.UUID]string) []gpu.Device {
	all := slices.Clone(f.Devices)
	for i, d := range all {
		if a, ok := f.records.bound(d.Name); ok && d.VFIO != nil {
			all[i].VFIO = claimed(*d.VFIO, *a.VFIO, false) // it is about to be bound, or has just been returned
		}
	}
	for _, d := range f.Unlisted {
		a, held := f.records.bound(d.Name)
		before, isKnown := known.Find(d.Name)
		switch {
		case held && isKnown && before.UUID == a.GPU:
			before.VFIO, before.Lost = claimed(*d.VFIO, *a.VFIO, true), stuck[a.GPU] != ""
			d = before
		case held:
			d.UUID, d.VFIO, d.Lost = a.GPU, claimed(*d.VFIO, *a.VFIO, true), stuck[a.GPU] != ""
		case f.records.incomplete != nil && isKnown && before.InVM() && d.VFIO.Bound:
			d = before
		case d.VFIO.Bound && !f.records.holdsOtherwise(d.Name):
			d.UUID = gpu.UUID(gpu.VFIOName(d.Name))
		default:
			continue
		}
		if f.Unwatched == nil {
			f.Unwatched = map[gpu.UUID]string{}
		}
		switch f.Unwatched[d.UUID] = inVM; {
		case d.VFIO.External():
			f.Unwatched[d.UUID] = byHand
		case d.Lost:
			f.Unwatched[d.UUID] = "it has not come back from a virtual machine: " + stuck[d.UUID]
		}
		all = append(all, d)
	}
	return all
}

// claimed returns v with what the claim has recorded. A claim that holds the GPU is not refused any more.
func claimed(v gpu.VFIO, by sharing.AssignedVFIO, bound bool) *gpu.VFIO {
	v.Functions, v.Refusal, v.Bound = by.Functions, "", bound
	return &v
}

// bound returns the assignment for which the driver binds the GPU to vfio-pci.
func (r records) bound(device string) (sharing.Assignment, bool) {
	i := slices.IndexFunc(r.assignments, func(a sharing.Assignment) bool {
		return a.Binds() && gpu.ParentName(a.Device) == device
	})
	if i < 0 {
		return sharing.Assignment{}, false
	}
	return r.assignments[i], true
}

// holdsOtherwise reports whether a claim holds the GPU or a part of it, and not for a virtual machine.
func (r records) holdsOtherwise(device string) bool {
	return slices.ContainsFunc(r.assignments, func(a sharing.Assignment) bool {
		return a.VFIO == nil && !a.AdminAccess && gpu.ParentName(a.Device) == device
	})
}

// reportPassthrough logs that a GPU went into a virtual machine, and why one cannot; see reportRefused.
func reportPassthrough(logger klog.Logger, d, old gpu.Device, a *actions) {
	if d.InVM() != old.InVM() {
		logger.Info("GPU bound to vfio-pci or returned", "bound", d.InVM())
	}
	if d.VFIO != nil && d.VFIO.Blocked != "" && (old.VFIO == nil || old.VFIO.Blocked == "") {
		logger.Info("GPU cannot be bound to vfio-pci now", "why", d.VFIO.Blocked)
		a.notice(report.Events.PassthroughBlocked, fmt.Sprintf("GPU %s (%s) cannot be given to virtual machines "+
			"now: %s", d.Name, d.UUID, d.VFIO.Blocked))
	}
	if why := refusal(d); why != "" && why != refusal(old) {
		logger.Info("GPU cannot be given to virtual machines", "why", why)
	}
}

// refusal says why the GPU cannot be given to virtual machines although the administrator wants that.
func refusal(d gpu.Device) string {
	if d.VFIO == nil || d.Use.NoPassthrough {
		return ""
	}
	return d.VFIO.Refusal
}

// reportRefused reports why GPUs cannot be given to virtual machines: once for each reason, which may be that of all.
func reportRefused(gpus, before inventory.Inventory, a *actions) {
	names := map[string][]string{} // by reason
	for _, d := range gpus {
		old, _ := before.Find(d.Name)
		if why := refusal(d); why != "" && why != refusal(old) {
			names[why] = append(names[why], d.Name)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(names)) {
		a.notice(report.Events.PassthroughRefused, fmt.Sprintf("GPU %s cannot be given to virtual machines: %s",
			strings.Join(names[why], ", "), why))
	}
}

// Passthrough wraps p, so that the Node looks at a GPU whose driver has changed.
func (n *Node) Passthrough(p claims.Passthrough) claims.Passthrough { return observedPassthrough{p, n} }

type observedPassthrough struct {
	claims.Passthrough
	node *Node
}

func (p observedPassthrough) BindVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction) error {
	err := p.Passthrough.BindVFIO(ctx, id, functions)
	p.node.send(gpuBound{id, err})
	return err
}

func (p observedPassthrough) ReturnVFIO(ctx context.Context, id gpu.UUID, functions []gpu.PCIFunction,
	persistent bool) error {
	err := p.Passthrough.ReturnVFIO(ctx, id, functions, persistent)
	p.node.send(gpuReturned{id, err})
	return err
}
