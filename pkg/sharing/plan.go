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

// ErrInUse means that another claim holds the device. The message names both.
var ErrInUse = errors.New("device in use")

// ErrGone means that the allocated device is not on this node, or not any more. The message names it.
var ErrGone = errors.New("no such device on this node")

// ErrAdminOnly means that the device is for requests with admin access and this one has none. The message says how to get it.
var ErrAdminOnly = errors.New("device is for admin access only")

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
}

// Monitors says whether the assignment is for all GPUs of the node, whichever there are when a container starts.
func (a Assignment) Monitors() bool { return a.Device == inventory.Monitor }

// Holder is another claim and what it holds.
type Holder struct {
	Claim Claim
	Plan  Plan
}

// NewPlan gives every result its GPU, whole and alone; a result with admin access gets it beside whoever has it, and the monitor
// device only so. It refuses what another claim holds and what is not there; the error reports every such device.
func NewPlan(results []allocation.Result, inv inventory.Inventory, others []Holder) (Plan, error) {
	taken := holders(others)
	seen := map[string]string{} // device → request
	var plan Plan
	var errs []error
	for _, r := range results {
		assignment, err := assign(r, inv)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("request %s: %w", r.Request, err))
		case r.AdminAccess:
			plan.Assignments = append(plan.Assignments, assignment)
		case taken[r.Device] != Claim{}:
			errs = append(errs, fmt.Errorf("request %s: device %s is held by claim %s (UID %s): %w",
				r.Request, r.Device, taken[r.Device], taken[r.Device].UID, ErrInUse))
		case seen[r.Device] != "":
			errs = append(errs, fmt.Errorf("request %s: device %s is held by request %s of the same claim: %w",
				r.Request, r.Device, seen[r.Device], ErrInUse))
		default:
			seen[r.Device] = r.Request
			plan.Assignments = append(plan.Assignments, assignment)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}
	return plan, nil
}

// holders says who holds which device.
func holders(others []Holder) map[string]Claim {
	taken := map[string]Claim{}
	for _, other := range others {
		for _, a := range other.Plan.Assignments {
			if !a.AdminAccess {
				taken[a.Device] = other.Claim
			}
		}
	}
	return taken
}

// assign finds what was allocated, whoever has it. Errors: ErrGone, ErrAdminOnly.
func assign(r allocation.Result, inv inventory.Inventory) (Assignment, error) {
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

// Fulfils says whether the plan is for just these results, so that a claim which was allocated anew is not answered with what it
// had before.
func (p Plan) Fulfils(results []allocation.Result) bool {
	return slices.EqualFunc(p.Assignments, results, func(a Assignment, r allocation.Result) bool {
		return a.Request == r.Request && a.Pool == r.Pool && a.Device == r.Device && a.ShareID == r.ShareID && a.AdminAccess == r.AdminAccess
	})
}
