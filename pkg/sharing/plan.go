// SPDX-License-Identifier: Apache-2.0

// Package sharing decides what a claim gets of the GPUs that were allocated to it. It only decides: nothing is touched here.
package sharing

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

var (
	// ErrInUse means that other claims hold the device, or too much of it. The message names them.
	ErrInUse = errors.New("device in use")
	// ErrGone means that the allocated device is not on this node, or not any more. The message names it.
	ErrGone = errors.New("no such device on this node")
	// ErrAdminOnly means that the device is for requests with admin access and this one has none. The message says how to get it.
	ErrAdminOnly = errors.New("device is for admin access only")
	// ErrConflict means that another claim has a share of the device with other settings. The message names it and both settings.
	ErrConflict = errors.New("settings of another claim are in force")
	// ErrRefused means that the device cannot be given as the claim's configuration wants it. The message says what can.
	ErrRefused = errors.New("configuration refused")
	// ErrTooLarge is ErrRefused, and in the same words, for a limit above what the device has: a larger one may accept it.
	ErrTooLarge error = tooLarge{ErrRefused}
)

type tooLarge struct{ error }

func (e tooLarge) Unwrap() error { return e.error }

// Claim names a claim. Its UID alone identifies it; the rest is for people.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// Plan is what a claim gets. It is part of the record on disk: its JSON is a format that has to be readable for ever.
type Plan struct {
	Assignments []Assignment `json:"assignments"`
}

// Assignment is one device for one request of the claim.
type Assignment struct {
	Request     string            `json:"request"`
	Pool        string            `json:"pool"`
	Device      string            `json:"device"`
	ShareID     types.UID         `json:"shareID,omitempty"`
	GPU         gpu.UUID          `json:"gpu"`                   // the physical GPU that is touched; empty for the monitor device
	Environment map[string]string `json:"environment,omitempty"` // from the claim's configuration
	// AdminAccess means that the device is looked after and not held: others have it, or may get it.
	AdminAccess bool `json:"adminAccess,omitempty"`

	// Partition is the part of the GPU that is touched; nil: not one of its partitions.
	Partition *Partition `json:"partition,omitempty"`
	// Share is the part of the device that the claim holds; nil: all of it, alone.
	Share *Share `json:"share,omitempty"`
	// Settings are what the physical GPU has to be set to for as long as this is held.
	Settings gpu.Settings `json:"settings,omitzero"`
	// At most one of these keeps containers within limits; none: nothing does.
	MPS    *Client `json:"mps,omitempty"`
	Hook   *Hook   `json:"hook,omitempty"`
	Cgroup *Cgroup `json:"cgroup,omitempty"`
	// Unenforced means that the claim itself chose to have its share counted and not enforced.
	Unenforced bool `json:"unenforced,omitempty"`
	// Unsliced means that the claim asked for time slices, which a partition does not have.
	Unsliced bool `json:"unsliced,omitempty"`
}

// Partition is a partition of a GPU.
type Partition struct {
	gpu.Placement
	UUID   gpu.UUID `json:"uuid,omitempty"`   // empty: not made yet
	Static bool     `json:"static,omitempty"` // somebody else has made it
	// Begun means that it may be there, made for the claim, also when its UUID is not known. Before, whatever is there is somebody else's.
	Begun bool `json:"begun,omitempty"`
}

// MayExist says whether there may be such a partition, made for the claim.
func (p Partition) MayExist() bool { return p.Begun || p.UUID != "" }

// Monitors says whether the assignment is for all GPUs of the node, whichever there are when a container starts.
func (a Assignment) Monitors() bool { return a.Device == inventory.Monitor }

// ChangesHardware says whether something of the GPU has to be changed before containers use it, and changed back afterwards.
func (a Assignment) ChangesHardware() bool {
	return a.Settings != gpu.Settings{} || a.MPS != nil || a.MakesPartition()
}

// MakesPartition says whether the partition is made for the claim, and removed after it.
func (a Assignment) MakesPartition() bool { return a.Partition != nil && !a.Partition.Static }

// Holder is another claim and what it holds.
type Holder struct {
	Claim Claim
	Plan  Plan
}

// NewPlan gives every result its GPU, or its share of one; a result with admin access gets it beside whoever has it, and the monitor
// device only so. It refuses what other claims hold, what does not go together with what they have set, and what is not there; the
// error reports every such device.
func NewPlan(results []allocation.Result, inv inventory.Inventory, others []Holder) (Plan, error) {
	var plan Plan
	var errs []error
	groups := mpsGroups(results, inv)
	for _, r := range results {
		assignment, err := assign(r, inv, groups)
		if err == nil {
			err = plan.allowsReplica(assignment, inv)
		}
		if err == nil && !r.AdminAccess {
			err = fits(assignment, inv, occupants(assignment, others, plan))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("request %s: %w", r.Request, err))
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

// assign finds what was allocated, whoever has it, and what it takes to use it as the claim wants.
// Errors: ErrGone, ErrAdminOnly, ErrRefused.
func assign(r allocation.Result, inv inventory.Inventory, groups []mpsGroup) (Assignment, error) {
	a := Assignment{Request: r.Request, Pool: r.Pool, Device: r.Device, ShareID: r.ShareID,
		Environment: r.Config.Environment, AdminAccess: r.AdminAccess}
	if a.Monitors() && !a.AdminAccess {
		return Assignment{}, fmt.Errorf("device %s gives every GPU of the node: set adminAccess: true in the request, in a namespace with the label %s=true: %w",
			r.Device, resourceapi.DRAAdminNamespaceLabelKey, ErrAdminOnly)
	}
	if a.Monitors() && len(inv.Present()) > 0 {
		return a, nil
	}
	device, ok := inv.Find(r.Device)
	if !ok || device.Lost {
		return Assignment{}, fmt.Errorf("device %s: %w", r.Device, ErrGone)
	}
	a.GPU = device.UUID
	if p := device.Partition; p != nil {
		a.GPU, a.Partition = p.Parent, &Partition{Placement: p.Placement, UUID: p.UUID, Static: p.Static}
	}
	if r.AdminAccess && a.MakesPartition() {
		return Assignment{}, fmt.Errorf("device %s: a partition that claims make and remove cannot be looked after by itself; ask for the device %s: %w",
			r.Device, inventory.Monitor, ErrRefused)
	}
	if r.AdminAccess {
		return a, nil
	}
	var err error
	switch kindOf(r, device) {
	case partition:
		err = a.usePartition(r.Config.Sharing, groups)
	case whole:
		err = a.useWhole(r.Config.Sharing, groups)
	case fraction:
		err = a.useFraction(r, device)
	case replica:
		err = a.useReplica(r, device)
	}
	if err != nil {
		return Assignment{}, fmt.Errorf("device %s: %w", r.Device, err)
	}
	return a, nil
}

// Devices are the names of the devices that the plan touches, sorted, each once. It need not hold them: see Assignment.AdminAccess.
func (p Plan) Devices() []string {
	names := map[string]struct{}{}
	for _, a := range p.Assignments {
		names[a.Device] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// Monitors says whether any of the assignments does.
func (p Plan) Monitors() bool { return slices.ContainsFunc(p.Assignments, Assignment.Monitors) }

// ChangesHardware says whether any of the assignments does.
func (p Plan) ChangesHardware() bool {
	return slices.ContainsFunc(p.Assignments, Assignment.ChangesHardware)
}

// Partitions are the partitions that the plan makes, by the physical GPU, in the order of the claim.
func (p Plan) Partitions() map[gpu.UUID][]Partition {
	out := map[gpu.UUID][]Partition{}
	for _, a := range p.Assignments {
		if a.MakesPartition() {
			out[a.GPU] = append(out[a.GPU], *a.Partition)
		}
	}
	return out
}

// Unbegun is the plan as it was before any of its partitions was made.
func (p Plan) Unbegun() Plan {
	return p.withPartitions(func(part Partition) Partition { return Partition{Placement: part.Placement} })
}

// Begun is the plan when its partitions may be there.
func (p Plan) Begun() Plan {
	return p.withPartitions(func(part Partition) Partition {
		part.Begun = true
		return part
	})
}

// Made is the plan with the UUIDs of its partitions.
func (p Plan) Made(made map[gpu.Placement]gpu.UUID) Plan {
	return p.withPartitions(func(part Partition) Partition {
		part.UUID = made[part.Placement]
		return part
	})
}

// withPartitions is the plan with other partitions in place of those that it makes.
func (p Plan) withPartitions(other func(Partition) Partition) Plan {
	p.Assignments = slices.Clone(p.Assignments)
	for i, a := range p.Assignments {
		if !a.MakesPartition() {
			continue
		}
		part := other(*a.Partition)
		p.Assignments[i].Partition = &part
		if a.MPS != nil {
			client := *a.MPS
			client.GPUs = []gpu.UUID{part.UUID}
			p.Assignments[i].MPS = &client
		}
	}
	return p
}

// Whole are the physical GPUs that the plan uses otherwise than by their partitions, sorted.
func (p Plan) Whole() []gpu.UUID {
	var ids []gpu.UUID
	for _, a := range p.Assignments {
		if a.Partition == nil && !a.AdminAccess {
			ids = append(ids, a.GPU)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Fulfils says whether the plan is for just these results, so that a claim which was allocated anew is not answered with what it
// had before.
func (p Plan) Fulfils(results []allocation.Result) bool {
	return slices.EqualFunc(p.Assignments, results, func(a Assignment, r allocation.Result) bool {
		return a.Request == r.Request && a.Pool == r.Pool && a.Device == r.Device && a.ShareID == r.ShareID && a.AdminAccess == r.AdminAccess
	})
}
