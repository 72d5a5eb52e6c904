// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Claim names a claim. The UID identifies it; namespace and name are for people.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// Plan is what a claim gets. It is part of the record on disk, so its JSON must stay readable by later versions.
type Plan struct {
	Assignments []Assignment `json:"assignments"`
	// LocalIPC is the size of the claim's directory for local IPC, in bytes; 0: it has none.
	LocalIPC uint64 `json:"localIPC,omitempty"`
}

// Assignment is one device for one request of the claim.
type Assignment struct {
	Request     string            `json:"request"`
	Pool        string            `json:"pool"`
	Device      string            `json:"device"`
	ShareID     types.UID         `json:"shareID,omitempty"`
	GPU         gpu.UUID          `json:"gpu"`                   // the physical GPU; empty for the monitor device
	Environment map[string]string `json:"environment,omitempty"` // from the claim's configuration
	// AdminAccess means that the device is monitored and not held: other claims may hold it.
	AdminAccess bool `json:"adminAccess,omitempty"`

	// Partition is the assigned partition of the GPU; nil: none.
	Partition *AssignedPartition `json:"partition,omitempty"`
	// VFIO says that a virtual machine gets the GPU, or a vGPU; nil: none.
	VFIO *AssignedVFIO `json:"vfio,omitempty"`
	// Share is the part of the device that the claim holds; nil: all of it, alone.
	Share *Share `json:"share,omitempty"`
	// Settings are those of the physical GPU while the claim holds it.
	Settings gpu.Settings `json:"settings,omitzero"`
	// FoundMode is the compute mode of the physical GPU before Settings. The end of the last holder restores it.
	FoundMode gpu.ComputeMode `json:"foundMode,omitempty"`
	// Isolation keeps the containers within their limits.
	Isolation
	// Unenforced means that nothing enforces the share or the limits: the claim chose that, the GPU is unlimited, or it
	// is older than the limits of MPS.
	Unenforced bool `json:"unenforced,omitempty"`
	// Unsliced means that the claim asked for time slices on a partition, which has none.
	Unsliced bool `json:"unsliced,omitempty"`
	// Unmounted are the containers whose own volume at /dev/shm is not mounted, because the MPS daemon's memory is.
	Unmounted []string `json:"unmounted,omitempty"`

	// CDI are the qualified names of the CDI devices that give a container the device; set when the claim is prepared.
	CDI []string `json:"-"` // package checkpoint writes them
}

// IsMonitor reports whether the assignment is the monitor device: all GPUs that exist when a container starts.
func (a Assignment) IsMonitor() bool { return a.Device == inventory.Monitor }

// ChangesHardware reports whether the GPU must be changed before containers use it, and changed back afterwards.
func (a Assignment) ChangesHardware() bool {
	return a.Settings != gpu.Settings{} || a.MPS != nil || a.MakesPartition() || a.Binds() || a.MakesVGPU()
}

// Holder is another claim and what it holds.
type Holder struct {
	Claim Claim
	Plan  Plan
}

// NewPlan assigns a GPU, a partition or a share to every result. Admin access ignores other holders of the device; the
// monitor device requires admin access. A result is refused if other claims hold the device, if their settings
// conflict, or if the device is missing. The error joins one Refusal for each refused result.
func NewPlan(results []allocation.Result, inv inventory.Inventory, others []Holder) (Plan, error) {
	return newPlan(results, inv, func(a Assignment, own Plan) []occupant { return occupants(a, inv, others, own) })
}

// DryRun plans as NewPlan does, with devices that nobody holds: what else there is on their GPUs does not count.
func DryRun(results []allocation.Result, inv inventory.Inventory) (Plan, error) {
	return newPlan(results, inv, func(Assignment, Plan) []occupant { return nil })
}

func newPlan(results []allocation.Result, inv inventory.Inventory,
	occupants func(a Assignment, own Plan) []occupant) (Plan, error) {
	var plan Plan
	var errs []error
	groups := mpsGroups(results, inv)
	for _, r := range results {
		assignment, err := assign(r, inv, groups)
		if err == nil {
			err = plan.allowsReplica(assignment, inv)
		}
		if err == nil && !r.AdminAccess {
			err = fits(assignment, inv, occupants(assignment, plan))
		}
		if err == nil {
			err = assignment.isBack(inv)
		}
		if err != nil {
			errs = append(errs, about(err, r.Request, r.Device))
			continue
		}
		plan.Assignments = append(plan.Assignments, assignment)
	}
	errs = append(errs, plan.checkRequests())
	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}
	return plan, nil
}

// assign finds the allocated device and what its use by the claim takes. It does not look at other holders.
func assign(r allocation.Result, inv inventory.Inventory, groups []mpsGroup) (Assignment, error) {
	a := Assignment{Request: r.Request, Pool: r.Pool, Device: r.Device, ShareID: r.ShareID,
		Environment: r.Config.Environment, AdminAccess: r.AdminAccess}
	if a.IsMonitor() && !a.AdminAccess {
		return Assignment{}, refuse(ErrAdminOnly, "gives every GPU of the node: set adminAccess: true in the request, "+
			"in a namespace with the label %s=true", resourceapi.DRAAdminNamespaceLabelKey)
	}
	if a.IsMonitor() && len(inv.Present()) > 0 {
		return a, nil
	}
	device, ok := inv.Find(r.Device)
	if !ok || device.Lost {
		return Assignment{}, &Refusal{Kind: ErrGone}
	}
	a.GPU = device.Physical()
	if p := device.Partition; p != nil {
		a.Partition = &AssignedPartition{Placement: p.Placement, UUID: p.UUID, Static: p.Static}
	}
	if r.AdminAccess && (device.Type == gpu.TypeVFIO || device.VGPU != nil) {
		return Assignment{}, refuse(ErrRefused, "is for virtual machines, so it cannot be monitored; ask for the "+
			"device %s", inventory.Monitor)
	}
	if r.AdminAccess && a.MakesPartition() {
		return Assignment{}, refuse(ErrRefused,
			"is a partition that claims make and remove, so it cannot be monitored "+
				"by itself; ask for the device %s", inventory.Monitor)
	}
	if r.AdminAccess {
		return a, nil
	}
	switch kindOf(r, device) {
	case passthrough:
		a.VFIO = assignVFIO(device, r.Config.IOMMU)
		return a, nil
	case partition:
		return a, a.usePartition(r.Config.Sharing, groups)
	case fraction:
		return a, a.useFraction(r, device)
	case replica:
		return a, a.useReplica(r, device)
	case unlimited:
		return a, a.useUnlimited(r, device)
	}
	return a, a.useWhole(r.Config.Sharing, groups)
}

// Devices returns the names of the plan's devices, sorted and unique, including those with admin access.
func (p Plan) Devices() []string {
	return p.devices(func(Assignment) bool { return true })
}

// Held returns the names of the devices that the plan holds, sorted and unique, without those with admin access.
func (p Plan) Held() []string {
	return p.devices(func(a Assignment) bool { return !a.AdminAccess })
}

func (p Plan) devices(include func(Assignment) bool) []string {
	names := map[string]struct{}{}
	for _, a := range p.Assignments {
		if include(a) {
			names[a.Device] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// GPUs returns the physical GPUs that the plan holds, sorted and unique, without those with admin access.
func (p Plan) GPUs() []gpu.UUID {
	ids := map[gpu.UUID]struct{}{}
	for _, a := range p.Assignments {
		if !a.AdminAccess {
			ids[a.GPU] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// Of returns the part of the plan on these physical GPUs.
func (p Plan) Of(ids ...gpu.UUID) Plan {
	var of Plan
	for _, a := range p.Assignments {
		if slices.Contains(ids, a.GPU) {
			of.Assignments = append(of.Assignments, a)
		}
	}
	return of
}

// ChangesHardware reports whether any of the assignments does.
func (p Plan) ChangesHardware() bool {
	return slices.ContainsFunc(p.Assignments, Assignment.ChangesHardware)
}

// Fulfils reports whether the plan is for exactly these results. A claim that was allocated again must not get its old
// devices.
func (p Plan) Fulfils(results []allocation.Result) bool {
	return slices.EqualFunc(p.Assignments, results, func(a Assignment, r allocation.Result) bool {
		return a.Request == r.Request && a.Pool == r.Pool && a.Device == r.Device && a.ShareID == r.ShareID &&
			a.AdminAccess == r.AdminAccess
	})
}
