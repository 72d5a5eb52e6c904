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
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// dryRun runs the node's own validation of a claim, with the devices that its requests could get.
type dryRun struct {
	driver   string
	spec     *resourceapi.ResourceClaimSpec
	configs  *field.Path
	requests []request // in the order of the claim, in which per-index limits count devices
	perIndex bool      // a configuration has limits by device index
}

// request is a request of the claim.
type request struct {
	alternatives []alternative // one, for a request without a list
	// the alternative that is allocated while other requests are tried; nil: no device matches any alternative
	placeholder *alternative
}

// outcome is the node's verdict on a request.
type outcome struct {
	refused error    // the first reason
	on      []string // the kinds of devices on which the request is refused
	limited bool     // the devices have limits
	loose   bool     // a share has none, as the claim chose
}

// dryRun validates what only a node can. It only warns: a node that is added later may accept the claim, and no
// autoscaler adds a node for a claim that does not exist.
func (c Checker) dryRun(ctx context.Context, spec *resourceapi.ResourceClaimSpec, all []alternative,
	devices *field.Path, v *Verdict) {
	d := dryRun{driver: c.View.Driver(), spec: spec, configs: devices.Child("config")}
	if !d.group(all) {
		return
	}
	limited, tried := false, 0
	for i, r := range d.requests {
		if r.placeholder == nil {
			continue
		}
		tried++
		o := d.evaluate(ctx, i)
		limited = limited || o.limited
		if o.refused != nil {
			slices.Sort(o.on)
			v.warn("%s: on %s: %v", r.alternatives[0].of, strings.Join(slices.Compact(o.on), ", "), o.refused)
		}
		if o.loose {
			v.warn("%s: nothing enforces what it asks for in capacity.requests, because of the strategy TimeSlicing: "+
				"leave the strategy out", r.alternatives[0].of)
		}
		if first := r.alternatives[0]; *first.Count > 1 && allPartitions(r) {
			v.warn("%s: a CUDA program uses one partition: start a program for each, or let each container name a "+
				"request with one, in resources.claims[].request", first.of)
		}
	}
	if limited && tried > 1 {
		v.warn("%s: their devices have limits of their own, and a process has one set of limits: "+
			"let each container name one request, in resources.claims[].request", devices.Child("requests"))
	}
}

// allPartitions reports whether the request gets MIG partitions only, as far as is published.
func allPartitions(r request) bool {
	return !slices.ContainsFunc(r.alternatives, func(a alternative) bool {
		return slices.ContainsFunc(a.kinds, func(k *cluster.DeviceKind) bool { return k.Type() != gpu.TypeMIG })
	})
}

// group groups the alternatives by request. It returns false when a dry run is not possible: a configuration names GPUs
// by UUID, which only their node knows, or the claim asks for more devices than a claim can get.
func (d *dryRun) group(all []alternative) bool {
	for _, config := range d.spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != d.driver {
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
			d.perIndex = true
		}
	}
	devices := int64(0)
	for _, a := range all {
		asks := max(1, *a.Count)
		if a.All() && d.perIndex {
			asks = maxNodeDevices
		}
		if len(d.requests) == 0 || d.requests[len(d.requests)-1].alternatives[0].request != a.request {
			d.requests = append(d.requests, request{})
			devices += min(asks, resourceapi.AllocationResultsMaxSize+1) // no sum of these overflows
		}
		if a.MatchesNothing() || asks > resourceapi.AllocationResultsMaxSize { // it is never allocated
			a.kinds = nil
		}
		r := &d.requests[len(d.requests)-1]
		if r.alternatives = append(r.alternatives, a); r.placeholder == nil && len(a.kinds) > 0 {
			r.placeholder = &a
		}
	}
	return devices <= resourceapi.AllocationResultsMaxSize
}

// evaluate tries each alternative of a request on each kind of device that matches it. The other requests get their
// placeholders.
func (d *dryRun) evaluate(ctx context.Context, request int) outcome {
	var o outcome
	for _, a := range d.requests[request].alternatives {
		for _, kind := range distinct(a.kinds) {
			if ctx.Err() != nil {
				return o
			}
			plan, err := d.try(request, a, kind)
			if err == nil {
				o.limited = o.limited || plan.Limited()
				o.loose = o.loose || len(a.Asked()) > 0 && slices.ContainsFunc(plan.Assignments,
					func(of sharing.Assignment) bool {
						return of.Request == a.Name && of.Unenforced && kind.Sharing() == gpu.Fractional.String()
					})
				continue
			}
			if o.refused == nil {
				o.refused = err
			}
			o.on = append(o.on, kind.String())
		}
	}
	return o
}

// distinct returns one of each group of kinds that the node treats alike.
func distinct(kinds []*cluster.DeviceKind) []*cluster.DeviceKind {
	seen := map[string]bool{}
	var all []*cluster.DeviceKind
	for _, k := range kinds {
		key := fmt.Sprint(k.Type(), k.Sharing(), k.Isolation(), k.Capacity("memory"), k.Capacity("shares"))
		if !seen[key] {
			all = append(all, k)
		}
		seen[key] = true
	}
	return all
}

// try returns the node's plan when the request gets devices of that kind. The error is the node's refusal of the
// alternative.
func (d *dryRun) try(request int, a alternative, kind *cluster.DeviceKind) (sharing.Plan, error) {
	n := fit.NewDryRun(d.driver)
	for i, r := range d.requests {
		switch {
		case i == request:
			d.give(n, a, kind)
		case r.placeholder != nil:
			d.give(n, *r.placeholder, r.placeholder.kinds[0])
		}
	}
	plan, err := n.Plan(d.spec.Devices.Config, d.configs)
	return plan, errorsFor(a, err)
}

const (
	// maxDevices is how many devices a request gets at most, unless limits depend on the index: two behave like many.
	maxDevices = 2
	// maxNodeDevices is how many devices a request for all devices of a node gets.
	maxNodeDevices = 16
)

// give gives devices of that kind to the alternative.
func (d *dryRun) give(to *fit.DryRun, a alternative, kind *cluster.DeviceKind) {
	count := max(1, *a.Count)
	if a.All() {
		count = maxNodeDevices
	}
	if !d.perIndex {
		count = min(count, maxDevices)
	}
	to.Give(a.Subrequest, a.class, kind, count)
}

// errorsFor returns the part of the error that is about the alternative.
func errorsFor(a alternative, err error) error {
	var all []error
	for _, e := range flatten(err) {
		var config *allocation.ConfigError
		var refusal *sharing.Refusal
		switch {
		case errors.As(e, &config) && config.Request == a.Name:
			all = append(all, config.Err)
		case errors.As(e, &refusal) && refusal.Request == a.Name:
			all = append(all, errors.New(refusal.Text())) // the API server adds the object and the path
		}
	}
	return errors.Join(all...)
}
