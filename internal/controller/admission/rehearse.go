// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// rehearsal lets the node's own code decide about a claim, as if its requests had got devices of the kinds that they could get.
type rehearsal struct {
	driver  string
	spec    *resourceapi.ResourceClaimSpec
	configs *field.Path
	cast    []part // in the order of the claim: some configurations count devices by it
	indices bool   // a configuration counts devices
}

// part is a request of the claim.
type part struct {
	asks   []ask // itself, or its alternatives
	stands *ask  // which of them stands for it while others are tried; nil: nothing is published for any
}

// outcome is what the node would say about a request.
type outcome struct {
	refused  error    // the first reason
	on       []string // the kinds of devices on which it would be refused
	accepted bool     // on some kind
	unknown  bool     // there may be other kinds of devices, tomorrow or here already, of which nothing can be said
	limited  bool     // the devices have limits of their own
}

// rehearse judges what only a node can. What is refused for every kind is a problem, what is refused for some is a warning.
func (c Checker) rehearse(ctx context.Context, spec *resourceapi.ResourceClaimSpec, asks []ask, devices *field.Path, v *Verdict) {
	r := rehearsal{driver: c.View.Driver(), spec: spec, configs: devices.Child("config")}
	if !r.castFrom(asks) {
		return
	}
	limited, requests := false, 0
	for i, p := range r.cast {
		if p.stands == nil {
			continue
		}
		requests++
		o := r.judge(ctx, i)
		limited = limited || o.limited
		switch path := p.asks[0].of; {
		case o.refused != nil && !o.accepted && !o.unknown:
			v.refuse(fmt.Errorf("%s: %w", path, o.refused))
		case o.refused != nil:
			slices.Sort(o.on)
			v.warn("%s: on %s: %v", path, strings.Join(slices.Compact(o.on), ", "), o.refused)
		}
	}
	if limited && requests > 1 {
		v.warn("%s: their devices have limits of their own, and a process has one set of limits: let each container name one request, in resources.claims[].request", devices.Child("requests"))
	}
}

// castFrom finds who plays. There is nothing to rehearse where a configuration is about certain GPUs, which only their node knows, or
// where the claim asks for more devices than a claim can get.
func (r *rehearsal) castFrom(asks []ask) bool {
	for _, config := range r.spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != r.driver {
			continue
		}
		decoded, err := api.Decode(config.Opaque.Parameters.Raw, nil)
		if err != nil || decoded.Sharing.MPS == nil {
			continue
		}
		for key := range decoded.Sharing.MPS.MemoryPerDevice {
			if _, err := strconv.Atoi(key); err != nil {
				return false
			}
			r.indices = true
		}
	}
	devices := int64(0)
	for _, a := range asks {
		if len(r.cast) == 0 || r.cast[len(r.cast)-1].asks[0].request != a.request {
			r.cast = append(r.cast, part{})
			devices += max(1, a.Count)
		}
		if a.never() {
			a.kinds = nil
		}
		p := &r.cast[len(r.cast)-1]
		if p.asks = append(p.asks, a); p.stands == nil && len(a.kinds) > 0 {
			p.stands = &a
		}
	}
	return devices <= resourceapi.AllocationResultsMaxSize
}

// judge tries each alternative of a request on each kind of device that it could get, while another stands for each of the others.
func (r *rehearsal) judge(ctx context.Context, request int) outcome {
	// Who counts devices over several requests counts such as are not on the stage.
	o := outcome{unknown: r.indices && len(r.cast) > 1}
	for _, a := range r.cast[request].asks {
		if a.never() {
			continue
		}
		o.unknown = o.unknown || len(a.kinds) == 0 || a.AllocationMode == resourceapi.DeviceAllocationModeAll
		for _, kind := range behaviours(a.kinds) {
			if ctx.Err() != nil {
				o.unknown = true
				return o
			}
			plan, err := r.play(request, a, kind)
			switch {
			case err == nil:
				o.accepted, o.limited = true, o.limited || plan.Limited()
				continue
			case errors.Is(err, sharing.ErrTooLarge):
				o.unknown = true // there may be larger ones tomorrow
			}
			if o.refused == nil {
				o.refused = inWords(err)
			}
			o.on = append(o.on, kind.String())
		}
	}
	return o
}

// inWords leaves out what the API server says already: that it is refused.
func inWords(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), ": "+sharing.ErrRefused.Error(), ""))
}

// play is what the node decides when the request has got devices of that kind; the error is what it says against the request.
func (r *rehearsal) play(request int, a ask, kind *view.Kind) (sharing.Plan, error) {
	s := &stage{rehearsal: r}
	s.claim.Spec = *r.spec
	s.claim.Status.Allocation = &resourceapi.AllocationResult{}
	for i, p := range r.cast {
		switch {
		case i == request:
			s.add(a, kind)
		case p.stands != nil:
			s.add(*p.stands, p.stands.kinds[0])
		}
	}
	return s.play(a)
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

// stage is a node that has just what a claim got.
type stage struct {
	*rehearsal
	claim resourceapi.ResourceClaim
	gpus  []gpu.Device
	paths []string // where the configurations of the allocation come from
}

// What a request gets here: of many devices two are as good as all, unless somebody counts them.
const (
	someDevices = 2
	allDevices  = 16 // of a node
)

// add gives the request devices of that kind.
func (s *stage) add(a ask, kind *view.Kind) {
	count := max(1, a.Count)
	if a.AllocationMode == resourceapi.DeviceAllocationModeAll {
		count = allDevices
	}
	if !s.indices {
		count = min(count, someDevices)
	}
	devices := &s.claim.Status.Allocation.Devices
	for range count {
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
	switch kind.Type() {
	case gpu.TypeMonitor:
		d.Name = inventory.Monitor
	case gpu.TypeMIG:
		d.Partition = &gpu.Partition{Placement: gpu.Placement{Parent: gpu.UUID(fmt.Sprintf("GPU-of-%d", n)), Profile: kind.Profile()}}
		d.Name = gpu.PartitionName(d.Name, d.Partition.Placement)
	}
	d.Use = gpu.Use{Replicas: int(kind.Capacity("shares"))}
	// The monitor has neither.
	if d.Use.Sharing.UnmarshalText([]byte(kind.Sharing())) != nil {
		d.Use.Sharing = gpu.Exclusive
	}
	if d.Use.Isolation.UnmarshalText([]byte(kind.Isolation())) != nil {
		d.Use.Isolation = gpu.IsolationNone
	}
	return d
}

// play is what the node would decide; the error is what it would say against the ask.
func (s *stage) play(a ask) (sharing.Plan, error) {
	devices := &s.claim.Status.Allocation.Devices
	for i, config := range s.claim.Spec.Devices.Config {
		s.paths = append(s.paths, s.configs.Index(i).String())
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
		for i, path := range s.paths {
			cause = strings.ReplaceAll(cause, field.NewPath("status", "allocation", "devices", "config").Index(i).String(), path)
		}
		kept := sharing.ErrRefused
		if errors.Is(e, sharing.ErrTooLarge) {
			kept = sharing.ErrTooLarge
		}
		all = append(all, fmt.Errorf("%s: %w", strings.TrimSuffix(cause, ": "+kept.Error()), kept))
	}
	return errors.Join(all...)
}
