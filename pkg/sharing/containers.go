// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
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
	var refusal *Refusal
	if errors.As(p.checkTogether(c.Requests), &refusal) {
		refusal.Reason = "container " + c.Name + ": " + refusal.Reason
		return refusal
	}
	volume, change := c.SharedMemory.Refusal()
	for _, a := range p.Assignments {
		switch {
		case !a.isolated() || !c.Uses(a.Request):
		case len(c.Others) > 0:
			return &Refusal{Kind: ErrRefused, Reason: fmt.Sprintf("container %s: it also uses %s: %s", c.Name,
				strings.Join(c.Others, ", "), OneSetOfLimits),
				Change: fmt.Sprintf("use the device %s in a container without others", a.Device)}
		case a.MPS != nil && volume != "":
			return &Refusal{Kind: ErrRefused, Reason: "container " + c.Name + ": " + volume, Change: change}
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
	return &Refusal{Kind: ErrRefused, Reason: fmt.Sprintf("devices %s: %s", strings.Join(devices, ", "),
		OneSetOfLimits),
		Change: "give each container one of these shares, by a claim of its own or by naming one request"}
}

// limitsKey identifies the limits in a container's environment.
func (a Assignment) limitsKey() string {
	daemon := ""
	if a.MPS != nil {
		daemon = a.MPS.Daemon
	}
	return fmt.Sprint(daemon, a.Limits())
}

// User is a container that uses a claim, and how it uses other claims.
type User struct {
	Container
	Others []Use
}

// Users returns the containers of the pod that use the claim.
func Users(pod *corev1.Pod, claim string) []User {
	var found []User
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		uses := claimsOf(pod, c)
		if i := slices.IndexFunc(uses, func(u Use) bool { return u.Claim == claim }); i >= 0 {
			container := Container{Name: c.Name, Requests: uses[i].Requests,
				SharedMemory: SharedMemoryOf(&pod.Spec, &c)}
			found = append(found, User{container, slices.Delete(uses, i, i+1)})
		}
	}
	return found
}

// Use is the use of a claim by a container.
type Use struct {
	Claim    string
	Requests []string // none means all
}

// claimsOf returns how the container uses each of its claims. A claim that the pod references twice counts once.
func claimsOf(pod *corev1.Pod, c corev1.Container) []Use {
	var uses []Use
	all := map[string]bool{} // by claim
	add := func(claim, request string) {
		i := slices.IndexFunc(uses, func(u Use) bool { return u.Claim == claim })
		if i < 0 {
			i = len(uses)
			uses = append(uses, Use{Claim: claim})
		}
		if all[claim] = all[claim] || request == ""; all[claim] {
			uses[i].Requests = nil
			return
		}
		uses[i].Requests = append(uses[i].Requests, request)
	}
	for _, r := range c.Resources.Claims {
		for _, ref := range pod.Spec.ResourceClaims {
			if ref.Name != r.Name {
				continue
			}
			if name, _, err := resourceclaim.Name(pod, &ref); err == nil && name != nil {
				add(*name, r.Request)
			}
		}
	}
	// The claim that the scheduler created for extended resources in resources.limits.
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		for _, m := range extended.RequestMappings {
			if m.ContainerName == c.Name {
				add(extended.ResourceClaimName, m.RequestName)
			}
		}
	}
	return uses
}

// Devices returns the devices of the driver in the claim that the container uses, without those with admin access, for
// people.
func (u Use) Devices(claim *resourceapi.ResourceClaim, driver string) []string {
	if claim.Status.Allocation == nil {
		return nil
	}
	var devices []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver && (Container{Requests: u.Requests}).Uses(r.Request) &&
			(r.AdminAccess == nil || !*r.AdminAccess) {
			devices = append(devices, fmt.Sprintf("device %s of claim %s", r.Device, u.Claim))
		}
	}
	return devices
}
