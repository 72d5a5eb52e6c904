// SPDX-License-Identifier: Apache-2.0

// Package allocation reads what the scheduler has given to a claim.
package allocation

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/api"
)

// ErrNotAllocated means that the scheduler has not decided about the claim yet, or has taken its decision back.
var ErrNotAllocated = errors.New("claim is not allocated")

// Result is one device of ours that the claim got, with the configuration that rules it.
type Result struct {
	Request string // as in the claim; "main/sub" for an alternative of firstAvailable
	Pool    string
	Device  string
	ShareID types.UID // set when the device can be shared
	// Consumed is what the scheduler has counted for this result of a device that can be shared.
	Consumed Consumed
	Config   api.Config
	// AdminAccess means that the request is for looking after the device, whoever has it: Kubernetes gives that only in
	// namespaces with the label resource.kubernetes.io/admin-access=true.
	AdminAccess bool
}

// Consumed is how much of a device a result has, in the units that are published.
type Consumed struct {
	Memory   uint64 // bytes
	Cores    int    // percent of the multiprocessors
	Replicas int    // of a GPU that is divided into replicas
}

// Results are the devices of this driver that the claim got, in the order of the allocation. Those of other drivers, and the
// configuration for them, are left alone. The error reports every configuration that cannot be read.
func Results(claim *resourceapi.ResourceClaim, driver string) ([]Result, error) {
	if claim.Status.Allocation == nil {
		return nil, ErrNotAllocated
	}
	devices := claim.Status.Allocation.Devices
	configs := newConfigs(devices.Config, driver)
	var results []Result
	var errs []error
	for _, r := range devices.Results {
		if r.Driver != driver {
			continue
		}
		config, err := configs.ruling(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("request %s: %w", r.Request, err))
			continue
		}
		result := Result{Request: r.Request, Pool: r.Pool, Device: r.Device, Config: config, AdminAccess: ptr.Deref(r.AdminAccess, false)}
		if r.ShareID != nil {
			result.ShareID = *r.ShareID
		}
		consumed := func(name resourceapi.QualifiedName) int64 {
			q := r.ConsumedCapacity[name]
			return q.Value()
		}
		result.Consumed = Consumed{Memory: uint64(consumed("memory")), Cores: int(consumed("cores")), Replicas: int(consumed("shares"))}
		results = append(results, result)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return results, nil
}

// configs are those of an allocation.
type configs struct {
	of     []resourceapi.DeviceAllocationConfiguration
	driver string
	decode []func() (api.Config, error) // each is read once, however many devices it is for
}

func newConfigs(of []resourceapi.DeviceAllocationConfiguration, driver string) configs {
	c := configs{of: of, driver: driver}
	for i, one := range of {
		c.decode = append(c.decode, sync.OnceValues(func() (api.Config, error) { return api.Decode(one.Opaque.Parameters.Raw, pathOf(i)) }))
	}
	return c
}

// pathOf is where the configuration stands in the claim.
func pathOf(config int) *field.Path {
	return field.NewPath("status", "allocation", "devices", "config").Index(config).Child("opaque", "parameters")
}

// ruling is the last configuration of ours that applies to the result: those of the class come before those of the claim.
// One that cannot be read is an error even where a later one would rule, because its author meant something by it. One of a kind
// for other devices is left out, unless it names the request.
func (c configs) ruling(result resourceapi.DeviceRequestAllocationResult) (api.Config, error) {
	var ruling api.Config
	var errs []error
	for i, one := range c.of {
		applies := len(resourceclaim.ConfigForResult(c.of[i:i+1], result)) > 0
		if !applies || one.Opaque.Driver != c.driver {
			continue
		}
		config, err := c.decode[i]()
		if err == nil && config.Kind != kindFor(result.Device) {
			if len(one.Requests) == 0 {
				continue
			}
			err = field.Invalid(pathOf(i).Child("kind"), config.Kind, fmt.Sprintf("device %s takes a %s", result.Device, kindFor(result.Device)))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("config from %s: %w", origin(one.Source), err))
		}
		ruling = config
	}
	return ruling, errors.Join(errs...)
}

// kindFor is the kind of configuration that the device takes. The name of a partition has its profile in it: gpu-3b-00-0-mig-1g10gb-4.
func kindFor(device string) string {
	if strings.Contains(device, "-mig-") {
		return api.KindMigDeviceConfig
	}
	return api.KindGpuConfig
}

func origin(source resourceapi.AllocationConfigSource) string {
	if source == resourceapi.AllocationConfigSourceClass {
		return "the device class"
	}
	return "the claim"
}
