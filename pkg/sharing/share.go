// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Share is a part of a GPU that other claims have parts of, too, as the scheduler has counted it.
type Share struct {
	Memory   uint64 `json:"memory,omitempty"`   // bytes
	Cores    int    `json:"cores,omitempty"`    // percent of the multiprocessors
	Replicas int    `json:"replicas,omitempty"` // of those that the GPU is divided into
}

// Part is how much of its device the assignment holds: bytes of memory, and percent of the multiprocessors, where 0 means that it
// uses them as far as others leave them. ok is false when it is not known how many replicas the device had.
func (a Assignment) Part(d gpu.Device) (memory uint64, cores int, ok bool) {
	switch {
	case a.AdminAccess:
		return 0, 0, true
	case a.Share == nil:
		return inventory.Memory(d), 100, true
	case a.Share.Replicas > 0 && d.Use.Replicas < 1:
		return 0, 0, false
	case a.Share.Replicas > 0:
		l := replicas(a.Share.Replicas, d)
		return l.memory, l.cores, true
	}
	return a.Share.Memory, a.Share.Cores, true
}

// shareKind is what a result has of its device.
type shareKind int

const (
	whole     shareKind = iota // all of it, alone
	fraction                   // as much as it has asked for
	replica                    // one of a fixed number of parts
	partition                  // a partition, alone
)

// kindOf goes by what the scheduler has counted, which may be older than how the GPU may be used now.
func kindOf(r allocation.Result, d gpu.Device) shareKind {
	switch c := r.Consumed; {
	case d.Partition != nil:
		return partition
	case c.Replicas > 0:
		return replica
	case r.ShareID == "" || c.Memory >= inventory.Memory(d) && (c.Cores == 0 || c.Cores == 100):
		return whole
	}
	return fraction
}

// occupant is somebody's assignment on a device, and how to speak of it.
type occupant struct {
	Assignment
	name string
}

// occupants are those who hold something of the same GPU already that leaves the assignment no room beside it, or that it has to be
// added up with: other claims, then earlier requests of the same one. Partitions side by side do not concern each other.
func occupants(of Assignment, others []Holder, own Plan) []occupant {
	var found []occupant
	add := func(plan Plan, name func(Assignment) string) {
		for _, a := range plan.Assignments {
			if gpu.ParentName(a.Device) != gpu.ParentName(of.Device) || a.AdminAccess {
				continue
			}
			if a.Partition == nil || of.Partition == nil || a.Device == of.Device || a.Partition.inTheWay(*of.Partition) {
				found = append(found, occupant{a, name(a)})
			}
		}
	}
	for _, other := range others {
		add(other.Plan, func(Assignment) string { return fmt.Sprintf("claim %s (UID %s)", other.Claim, other.Claim.UID) })
	}
	add(own, func(a Assignment) string { return fmt.Sprintf("request %s of the same claim", a.Request) })
	return found
}

// inTheWay says whether both cannot be there. Those that exist already can: compute instances of one GPU instance sit at one place.
func (p Partition) inTheWay(other Partition) bool {
	return p.Overlaps(other.Placement) && !(p.Static && other.Static)
}

// by says which other device of the same GPU it is that the occupant holds.
func (o occupant) by(a Assignment) string {
	if o.Device == a.Device {
		return ""
	}
	return ", which has " + o.Device
}

// fits says whether the assignment can be held beside those of the others. Errors: ErrInUse, ErrConflict.
func fits(a Assignment, inv inventory.Inventory, others []occupant) error {
	var all Share
	if a.Share != nil {
		all = *a.Share
	}
	var names []string
	for _, o := range others {
		if a.Share == nil || o.Share == nil || (a.Share.Replicas > 0) != (o.Share.Replicas > 0) {
			return fmt.Errorf("device %s is held by %s%s: %w", a.Device, o.name, o.by(a), ErrInUse)
		}
		if a.wants() != o.wants() {
			return fmt.Errorf("device %s is shared with %s, which has it with %s; this claim wants %s: %w", a.Device, o.name, o.wants(), a.wants(), ErrConflict)
		}
		all.Memory += o.Share.Memory
		all.Cores += o.Share.Cores
		all.Replicas += o.Share.Replicas
		names = append(names, o.name)
	}
	device, _ := inv.Find(a.Device)
	var errs []error
	over := func(what string, wanted, available string) {
		holders, cause := "this claim alone", ErrRefused
		if len(names) > 0 {
			holders, cause = strings.Join(names, ", ")+" and this claim", ErrInUse
		}
		errs = append(errs, fmt.Errorf("device %s has %s of %s, of which %s want %s: %w", a.Device, available, what, holders, wanted, cause))
	}
	if memory := inventory.Memory(device); a.Share != nil && all.Memory > memory {
		over("its memory", quantity(all.Memory), quantity(memory))
	}
	if all.Cores > 100 {
		over("its multiprocessors", fmt.Sprint(all.Cores, " %"), "100 %")
	}
	if all.Replicas > device.Use.Replicas {
		over("its replicas", fmt.Sprint(all.Replicas), fmt.Sprint(device.Use.Replicas))
	}
	return errors.Join(errs...)
}

// wants is what all who share a device have to agree on, for people.
func (a Assignment) wants() string {
	var enforced string
	switch {
	case a.MPS != nil:
		enforced = ", MPS"
	case a.Hook != nil:
		enforced = ", hook " + a.Hook.Library
	case a.Cgroup != nil:
		enforced = ", cgroup limits"
	}
	return a.Settings.String() + enforced
}

func quantity(bytes uint64) string {
	return resource.NewQuantity(int64(bytes), resource.BinarySI).String()
}

// checkRequests refuses requests whose containers could not be kept within their limits: those of several GPUs with different
// limits, or with different daemons, in one container. Which requests a container uses is known later: see CheckContainers.
func (p Plan) checkRequests() error {
	var names []string
	for _, a := range p.Assignments {
		names = append(names, a.Request)
	}
	slices.Sort(names)
	var errs []error
	for _, name := range slices.Compact(names) {
		if err := p.together([]string{name}); err != nil {
			errs = append(errs, fmt.Errorf("request %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Limited says whether the devices of the plan are limited in more than one way, so that no container may use them all.
func (p Plan) Limited() bool { return p.together(nil) != nil }

// CheckContainer refuses a plan for a container that uses those requests of the claim at once; none given means all.
// Error: ErrRefused.
func (p Plan) CheckContainer(name string, requests []string) error {
	if err := p.together(requests); err != nil {
		return fmt.Errorf("container %s: %w", name, err)
	}
	return nil
}

// together says whether one process can use the devices of these requests: a process has one set of limits, and talks to one MPS
// daemon only, which shows it no other GPUs.
func (p Plan) together(requests []string) error {
	limits := map[string]string{} // how it is limited → device
	shares := map[string]int{}    // of each device, those with limits
	twice := false
	var devices []string
	for _, a := range p.Assignments {
		main, _, _ := strings.Cut(a.Request, "/")
		if a.AdminAccess || len(requests) > 0 && !slices.Contains(requests, a.Request) && !slices.Contains(requests, main) {
			continue
		}
		limits[a.limits()] = a.Device
		devices = append(devices, a.Device)
		if len(a.Limits()) > 0 && a.Share != nil {
			shares[a.Device]++
			twice = twice || shares[a.Device] > 1
		}
	}
	if len(limits) < 2 && !twice {
		return nil
	}
	return fmt.Errorf("devices %s: a process has one set of limits and talks to one MPS daemon: "+
		"give each container one of these shares, by a claim of its own or by naming one request: %w", strings.Join(devices, ", "), ErrRefused)
}

// limits identifies what a container's environment says about limits.
func (a Assignment) limits() string {
	daemon := ""
	if a.MPS != nil {
		daemon = a.MPS.Daemon
	}
	return fmt.Sprint(daemon, a.Limits())
}

// Limits are the variables, "NAME=value", that keep containers within the share; none: nothing does.
func (a Assignment) Limits() []string {
	switch {
	case a.MPS != nil:
		return a.MPS.Env()
	case a.Hook != nil:
		return a.Hook.Env()
	case a.Cgroup != nil:
		return a.Cgroup.Env()
	}
	return nil
}
