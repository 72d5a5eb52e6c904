// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/controller/view"
	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

var (
	zero    = resource.MustParse("0")
	hundred = resource.MustParse("100")
)

// rehearse lets the node's own code decide about the claim, as if each of its requests had got a device of each kind that it could
// get. What is refused for every kind is a problem, what is refused for some is a warning. Of an alternative for which nothing is
// published nothing is known.
func (c Checker) rehearse(spec *resourceapi.ResourceClaimSpec, asks []ask, devices *field.Path, v *Verdict) {
	c.limits(spec, asks, devices.Child("config"), v)
	byRequest := map[string][]ask{}
	first := map[string]ask{} // which alternative stands for a request while another is tried
	for _, a := range asks {
		if a.never() {
			continue
		}
		byRequest[a.request] = append(byRequest[a.request], a)
		if _, known := first[a.request]; !known && len(a.kinds) > 0 {
			first[a.request] = a
		}
	}
	requests := slices.Sorted(maps.Keys(first))
	limited := false
	for _, request := range requests {
		var refused error
		certain := true
		var on []string
		for _, a := range byRequest[request] {
			certain = certain && len(a.kinds) > 0 && a.AllocationMode != resourceapi.DeviceAllocationModeAll
			for _, kind := range behaviours(a.kinds) {
				stage := newStage(c.View.Driver(), spec, devices.Child("config"))
				for _, other := range requests {
					if other != request {
						stage.add(first[other], first[other].kinds[0])
					}
				}
				stage.add(a, kind)
				plan, err := stage.play(a)
				if err == nil {
					certain, limited = false, limited || plan.Limited()
					continue
				}
				if refused == nil {
					refused = err
				}
				on = append(on, kind.String())
			}
		}
		switch path := first[request].of; {
		case refused != nil && certain:
			v.refuse(fmt.Errorf("%s: %w", path, refused))
		case refused != nil:
			slices.Sort(on)
			v.warn("%s: on %s: %v", path, strings.Join(slices.Compact(on), ", "), refused)
		}
	}
	if limited && len(requests) > 1 {
		v.warn("%s: their devices have limits of their own, and a process has one set of limits: let each container name one request, in resources.claims[].request", devices.Child("requests"))
	}
}

// behaviours leaves one of the kinds that the node treats alike.
func behaviours(kinds []*view.Kind) []*view.Kind {
	seen := map[string]bool{}
	var all []*view.Kind
	for _, k := range kinds {
		key := fmt.Sprint(k.Type(), k.Sharing(), k.Isolation(), k.Capacity("memory"), k.Capacity("shares"))
		if !seen[key] {
			all = append(all, k)
		}
		seen[key] = true
	}
	return all
}

// limits refuses limits of memory that no share can have: above what is asked for.
func (c Checker) limits(spec *resourceapi.ResourceClaimSpec, asks []ask, configs *field.Path, v *Verdict) {
	for i, config := range spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != c.View.Driver() {
			continue
		}
		path := configs.Index(i).Child("opaque", "parameters")
		decoded, err := api.Decode(config.Opaque.Parameters.Raw, path)
		if err != nil || decoded.Sharing.MPS == nil {
			continue
		}
		for _, a := range asks {
			applies := len(config.Requests) == 0 || slices.Contains(config.Requests, a.request) || slices.Contains(config.Requests, a.name())
			if !applies || !a.ours {
				continue
			}
			mps := path.Child("sharing", "mpsConfig")
			if a.admin {
				v.refuse(field.Forbidden(mps, fmt.Sprintf("request %s has adminAccess: it looks after devices and is no client of MPS", a.request)))
				continue
			}
			if a.Capacity == nil {
				continue
			}
			asked, ok := a.Capacity.Requests["memory"]
			if limit := decoded.Sharing.MPS.Memory; ok && limit > uint64(asked.Value()) {
				v.refuse(field.Invalid(mps.Child("defaultPinnedDeviceMemoryLimit"), quantity(limit),
					fmt.Sprintf("is above the %s of memory that request %s asks for", asked.String(), a.request)))
			}
			for _, key := range slices.Sorted(maps.Keys(decoded.Sharing.MPS.MemoryPerDevice)) {
				if limit := decoded.Sharing.MPS.MemoryPerDevice[key]; ok && limit > uint64(asked.Value()) {
					v.refuse(field.Invalid(mps.Child("defaultPerDevicePinnedMemoryLimit").Key(key), quantity(limit),
						fmt.Sprintf("is above the %s of memory that request %s asks for", asked.String(), a.request)))
				}
			}
		}
	}
}

func quantity(bytes uint64) string {
	return resource.NewQuantity(int64(bytes), resource.BinarySI).String()
}

// stage is a node that has just what a claim got.
type stage struct {
	driver string
	claim  resourceapi.ResourceClaim
	gpus   []gpu.Device
	uuids  []gpu.UUID  // that the configurations name: the devices have them
	paths  []string    // where the configurations of the allocation come from
	own    *field.Path // of the claim's
}

func newStage(driver string, spec *resourceapi.ResourceClaimSpec, configs *field.Path) *stage {
	s := &stage{driver: driver, claim: resourceapi.ResourceClaim{Spec: *spec}, own: configs}
	s.claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, config := range spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != driver {
			continue
		}
		if decoded, err := api.Decode(config.Opaque.Parameters.Raw, nil); err == nil && decoded.Sharing.MPS != nil {
			for _, key := range slices.Sorted(maps.Keys(decoded.Sharing.MPS.MemoryPerDevice)) {
				if strings.HasPrefix(key, "GPU-") || strings.HasPrefix(key, "MIG-") {
					s.uuids = append(s.uuids, gpu.UUID(key))
				}
			}
		}
	}
	return s
}

// allDevices is how many a request for all of a node gets here.
const allDevices = 16

// add gives the request devices of that kind.
func (s *stage) add(a ask, kind *view.Kind) {
	count := max(1, a.Count)
	if a.AllocationMode == resourceapi.DeviceAllocationModeAll {
		count = allDevices
	}
	devices := &s.claim.Status.Allocation.Devices
	for range min(count, resourceapi.AllocationResultsMaxSize) {
		d := s.device(kind)
		s.gpus = append(s.gpus, d)
		result := resourceapi.DeviceRequestAllocationResult{Request: a.name(), Driver: s.driver, Pool: "node", Device: d.Name}
		if a.admin {
			result.AdminAccess = ptr.To(true)
		}
		if ptr.Deref(kind.Device.AllowMultipleAllocations, false) {
			result.ShareID = ptr.To(types.UID(fmt.Sprint(len(s.gpus))))
			result.ConsumedCapacity = consumed(a, kind)
		}
		devices.Results = append(devices.Results, result)
	}
	for i, config := range a.class.Spec.Config {
		s.paths = append(s.paths, fmt.Sprintf("class %s: %s", a.class.Name, field.NewPath("spec", "config").Index(i)))
		devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass,
			Requests: []string{a.name()}, DeviceConfiguration: config.DeviceConfiguration})
	}
}

// consumed is what the scheduler counts for it.
func consumed(a ask, kind *view.Kind) map[resourceapi.QualifiedName]resource.Quantity {
	all := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, capacity := range kind.Device.Capacity {
		if p := capacity.RequestPolicy; p != nil && p.Default != nil {
			all[name] = *p.Default
		}
		if a.Capacity != nil {
			if q, ok := a.Capacity.Requests[name]; ok {
				all[name] = q
			}
		}
	}
	return all
}

// device is one of the kind, called by its model, for messages.
func (s *stage) device(kind *view.Kind) gpu.Device {
	n := len(s.gpus)
	d := gpu.Device{Name: kind.Product(), Type: kind.Type(), Memory: uint64(kind.Capacity("memory")), UUID: gpu.UUID(fmt.Sprintf("GPU-%d", n))}
	if n > 0 {
		d.Name = fmt.Sprintf("%s (%d)", d.Name, n+1)
	}
	if n < len(s.uuids) {
		d.UUID = s.uuids[n]
	}
	switch kind.Type() {
	case gpu.TypeMonitor:
		d.Name = inventory.Monitor
	case gpu.TypeMIG:
		d.Name += "-mig-" + kind.Profile()
		d.Partition = &gpu.Partition{Placement: gpu.Placement{Parent: gpu.UUID(fmt.Sprintf("GPU-of-%d", n)), Profile: kind.Profile()}}
	}
	d.Use = gpu.Use{Replicas: int(kind.Capacity("shares"))}
	d.Use.Sharing, d.Use.Isolation = sharingOf(kind.Sharing()), isolationOf(kind.Isolation())
	return d
}

// sharingOf is the way of sharing that is published by that name.
func sharingOf(name string) gpu.Sharing {
	for _, s := range []gpu.Sharing{gpu.Fractional, gpu.Replicated, gpu.Exclusive} {
		if s.String() == name {
			return s
		}
	}
	return gpu.Exclusive
}

func isolationOf(name string) gpu.Isolation {
	for _, i := range []gpu.Isolation{gpu.IsolationMPS, gpu.IsolationHook, gpu.IsolationCgroup} {
		if i.String() == name {
			return i
		}
	}
	return gpu.IsolationNone
}

// play is what the node would decide; the error is what it would say against the ask.
func (s *stage) play(a ask) (sharing.Plan, error) {
	devices := &s.claim.Status.Allocation.Devices
	for i, config := range s.claim.Spec.Devices.Config {
		s.paths = append(s.paths, s.own.Index(i).String())
		devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim,
			Requests: config.Requests, DeviceConfiguration: config.DeviceConfiguration})
	}
	results, err := allocation.Results(&s.claim, s.driver)
	if err != nil {
		return sharing.Plan{}, s.against(a, err)
	}
	plan, err := sharing.NewPlan(results, s.gpus, nil)
	return plan, s.against(a, err)
}

// against is the part of the error that is about the ask, in the words of the claim. Whether devices are there and free is not known
// before.
func (s *stage) against(a ask, err error) error {
	var all []error
	for _, e := range list(err) {
		if errors.Is(e, sharing.ErrInUse) || errors.Is(e, sharing.ErrGone) {
			continue
		}
		cause, ok := strings.CutPrefix(e.Error(), "request "+a.name()+": ")
		if !ok {
			continue
		}
		cause = strings.TrimSuffix(cause, ": "+sharing.ErrRefused.Error())
		for i, path := range slices.Backward(s.paths) { // 1 is the beginning of 10
			cause = strings.ReplaceAll(cause, field.NewPath("status", "allocation", "devices", "config").Index(i).String(), path)
		}
		all = append(all, errors.New(cause))
	}
	return errors.Join(all...)
}
