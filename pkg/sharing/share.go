// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Share is the part of a shared GPU that a claim holds, as the scheduler has counted it.
type Share struct {
	Memory   uint64 `json:"memory,omitempty"`   // bytes
	Cores    int    `json:"cores,omitempty"`    // percent of the multiprocessors
	Replicas int    `json:"replicas,omitempty"` // of those that the GPU is divided into
}

// Part returns how much of the device the assignment holds: bytes of memory, and percent of the multiprocessors. 0
// percent means that it uses what others leave. ok is false when the device's number of replicas is unknown.
func (a Assignment) Part(d gpu.Device) (memory uint64, cores int, ok bool) {
	switch {
	case a.AdminAccess:
		return 0, 0, true
	case a.Share == nil:
		return inventory.Memory(d), 100, true
	case a.Share.Replicas > 0 && d.Use.Replicas < 1:
		return 0, 0, false
	case a.Share.Replicas > 0:
		q := replicas(a.Share.Replicas, d)
		return q.memory, q.cores, true
	}
	return a.Share.Memory, a.Share.Cores, true
}

// occupant is an assignment that holds a GPU or a part of it, with the name of its owner for messages.
type occupant struct {
	Assignment
	name string
}

// occupants returns the assignments on the same GPU that exclude this one or are counted with it: those of other
// claims, then those of earlier requests of the same claim. Partitions and vGPUs that can exist side by side are left
// out.
func occupants(of Assignment, inv inventory.Inventory, others []Holder, own Plan) []occupant {
	var found []occupant
	add := func(plan Plan, name func(Assignment) string) {
		for _, a := range plan.Assignments {
			if gpu.ParentName(a.Device) != gpu.ParentName(of.Device) || a.AdminAccess {
				continue
			}
			if a.excludes(of) || !inv.Beside(a.Device, of.Device) {
				found = append(found, occupant{a, name(a)})
			}
		}
	}
	for _, other := range others {
		add(other.Plan, func(Assignment) string {
			return fmt.Sprintf("claim %s (UID %s)", other.Claim, other.Claim.UID)
		})
	}
	add(own, func(a Assignment) string { return fmt.Sprintf("request %s of the same claim", a.Request) })
	return found
}

// excludes reports whether both assignments on the same GPU exclude each other, or are counted together.
func (a Assignment) excludes(other Assignment) bool {
	v, w := a.vgpu(), other.vgpu()
	switch {
	case a.Device == other.Device:
		return true
	case a.Partition != nil && other.Partition != nil:
		return a.Partition.excludes(*other.Partition)
	case v != nil && w != nil:
		return v.excludes(*w)
	}
	return true
}

// holds names the other device of the GPU that the occupant holds.
func (o occupant) holds(a Assignment) string {
	if o.Device == a.Device {
		return ""
	}
	return ", which has " + o.Device
}

// fits checks that the assignment can be held beside the others. Errors: ErrInUse, ErrConflict, ErrRefused.
func fits(a Assignment, inv inventory.Inventory, others []occupant) error {
	var all Share
	if a.Share != nil {
		all = *a.Share
	}
	var names []string
	clients := 1
	for _, o := range others {
		if a.Share == nil || o.Share == nil || (a.Share.Replicas > 0) != (o.Share.Replicas > 0) {
			return refuse(ErrInUse, "is held by %s%s", o.name, o.holds(a))
		}
		if a.mode() != o.mode() {
			return refuse(ErrConflict, "is shared with %s, which has it with %s; this claim wants %s", o.name, o.mode(),
				a.mode())
		}
		all.Memory += o.Share.Memory
		all.Cores += o.Share.Cores
		all.Replicas += o.Share.Replicas
		names = append(names, o.name)
		if o.MPS != nil {
			clients++
		}
	}
	if a.MPS != nil && clients > gpu.MaxMPSClients {
		return refuse(ErrInUse, "has %d shares with isolation mps, and an MPS server has no more clients",
			len(names))
	}
	device, _ := inv.Find(a.Device)
	var errs []error
	over := func(what, them, wanted, available string) {
		if len(names) == 0 {
			errs = append(errs, refuse(ErrRefused, "has %s of %s; this claim alone wants %s of %s", available, what,
				wanted, them))
			return
		}
		errs = append(errs, refuse(ErrInUse, "has %s of %s, of which %s and this claim want %s", available, what,
			strings.Join(names, ", "), wanted))
	}
	if memory := inventory.Memory(device); a.Share != nil && all.Memory > memory {
		over("its memory", "it", quantity(all.Memory), quantity(memory))
	}
	if all.Cores > 100 {
		over("its multiprocessors", "them", fmt.Sprint(all.Cores, " %"), "100 %")
	}
	if all.Replicas > device.Use.Replicas {
		over("its replicas", "them", fmt.Sprint(all.Replicas), fmt.Sprint(device.Use.Replicas))
	}
	return errors.Join(errs...)
}

// mode describes what all holders of a shared device must agree on, for people.
func (a Assignment) mode() string { return a.Settings.String() + a.isolation().name() }

func quantity(bytes uint64) string {
	return resource.NewQuantity(int64(bytes), resource.BinarySI).String()
}
