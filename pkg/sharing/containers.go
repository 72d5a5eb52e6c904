// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// checkRequests refuses a request with devices of different limits or different daemons, because a container could not
// be kept within them. CheckContainer does the same for containers that use several requests.
func (p Plan) checkRequests() error {
	var names []string
	for _, a := range p.Assignments {
		names = append(names, a.Request)
	}
	slices.Sort(names)
	var errs []error
	for _, name := range slices.Compact(names) {
		errs = append(errs, about(p.checkTogether([]string{name}), name, ""))
	}
	return errors.Join(errs...)
}

// Limited reports whether the devices of the plan have different limits, so that no container may use all of them.
func (p Plan) Limited() bool { return p.checkTogether(nil) != nil }

// Isolated reports whether a container of the plan must not use devices of another claim.
func (p Plan) Isolated() bool { return slices.ContainsFunc(p.Assignments, Assignment.isolated) }

// isolated reports whether a process that uses the device has limits or connects to an MPS daemon.
func (a Assignment) isolated() bool { return !a.AdminAccess && a.Isolation != (Isolation{}) }

// OneSetOfLimits is why a container with a share gets no other GPU.
const OneSetOfLimits = "a process has one set of limits and talks to one MPS daemon"

// Container is a container of a pod that uses a claim.
type Container struct {
	Name         string
	Requests     []string // of the claim; none means all
	Others       []string // devices of this driver that it uses through other claims, for people
	SharedMemory SharedMemory
}

// Uses reports whether the container uses the devices of the request.
func (c Container) Uses(request string) bool {
	return len(c.Requests) == 0 || slices.Contains(c.Requests, request) ||
		slices.Contains(c.Requests, resourceclaim.BaseRequestRef(request))
}

// CheckContainer refuses the plan if the container could not be kept within its limits. Error: ErrRefused.
func (p Plan) CheckContainer(c Container) error {
	if err := p.checkTogether(c.Requests); err != nil {
		return fmt.Errorf("container %s: %w", c.Name, err)
	}
	for _, a := range p.Assignments {
		switch {
		case !a.isolated() || !c.Uses(a.Request):
		case len(c.Others) > 0:
			return refuse(ErrRefused, "container %s: it also uses %s: %s: use the device %s in a container without "+
				"others", c.Name, strings.Join(c.Others, ", "), OneSetOfLimits, a.Device)
		case a.MPS != nil && c.SharedMemory.Refusal() != "":
			return refuse(ErrRefused, "container %s: %s", c.Name, c.SharedMemory.Refusal())
		}
	}
	return nil
}

// WithUnmounted returns the plan with the names of those of the containers whose volume at /dev/shm is not mounted.
func (p Plan) WithUnmounted(containers []Container) Plan {
	p.Assignments = slices.Clone(p.Assignments)
	for i := range p.Assignments {
		a := &p.Assignments[i]
		for _, c := range containers {
			if a.MPS != nil && c.Uses(a.Request) && c.SharedMemory.Volume != "" &&
				!slices.Contains(a.Unmounted, c.Name) {
				a.Unmounted = append(a.Unmounted, c.Name)
			}
		}
	}
	return p
}

// checkTogether refuses devices that one process cannot use together: a process has one set of limits and connects to
// one MPS daemon, which shows it no other GPUs.
func (p Plan) checkTogether(requests []string) error {
	limits := map[string]struct{}{}
	shares := map[string]int{} // with limits, of each device
	twice := false
	var devices []string
	for _, a := range p.Assignments {
		if a.AdminAccess || !(Container{Requests: requests}).Uses(a.Request) {
			continue
		}
		limits[a.limitsKey()] = struct{}{}
		devices = append(devices, a.Device)
		if len(a.Limits()) > 0 && a.Share != nil {
			shares[a.Device]++
			twice = twice || shares[a.Device] > 1
		}
	}
	if len(limits) < 2 && !twice {
		return nil
	}
	return refuse(ErrRefused, "devices %s: %s: give each container one of these shares, by a claim of its own or by "+
		"naming one request", strings.Join(devices, ", "), OneSetOfLimits)
}

// limitsKey identifies the limits in a container's environment.
func (a Assignment) limitsKey() string {
	daemon := ""
	if a.MPS != nil {
		daemon = a.MPS.Daemon
	}
	return fmt.Sprint(daemon, a.Limits())
}
