// SPDX-License-Identifier: Apache-2.0

// Package allocation reads the scheduler's allocation of a claim.
package allocation

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// ErrNotAllocated means that the claim is not allocated yet, or not any more.
var ErrNotAllocated = errors.New("claim is not allocated")

// Result is one device of this driver in the allocation, with its effective configuration.
type Result struct {
	Request string // as in the claim; "main/sub" for an alternative of firstAvailable
	Pool    string
	Device  string
	ShareID types.UID // set if the device can be shared
	// Consumed is the capacity that the result consumes of a device that can be shared.
	Consumed Consumed
	// Config shares its pointers with the other results that the same configuration rules.
	Config api.DeviceConfig
	// LocalIPC means that the claim asks for a directory for local IPC: see api.DeviceConfig.
	LocalIPC bool
	// AdminAccess means that the request may use the device beside its holders. Kubernetes allows that only in
	// namespaces with the label resource.kubernetes.io/admin-access=true.
	AdminAccess bool
}

// Consumed is how much of a device a result has, in the published units.
type Consumed struct {
	Memory   uint64 // bytes
	Cores    int    // percent of the multiprocessors
	Replicas int    // of a GPU that is divided into replicas
}

// ConfigError is a configuration that is invalid, or of the wrong kind for the allocated device.
type ConfigError struct {
	Request string // as in the allocation: "main/sub" for an alternative
	Source  resourceapi.AllocationConfigSource
	Err     error // about fields, with their paths
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("request %s: config from %s: %v", e.Request, origin(e.Source), e.Err)
}

func (e *ConfigError) Unwrap() error { return e.Err }

// Results returns the claim's devices of this driver, in the order of the allocation. Devices and configurations of
// other drivers are ignored. The error joins one ConfigError for each invalid configuration.
func Results(claim *resourceapi.ResourceClaim, driver string) ([]Result, error) {
	return ResultsAt(claim, driver, func(config int) *field.Path {
		return field.NewPath("status", "allocation", "devices", "config").Index(config)
	})
}

// ResultsAt is Results with the field paths of the configurations for its errors.
func ResultsAt(claim *resourceapi.ResourceClaim, driver string, pathOf func(config int) *field.Path) ([]Result, error) {
	if claim.Status.Allocation == nil {
		return nil, ErrNotAllocated
	}
	devices := claim.Status.Allocation.Devices
	configs := newConfigs(devices.Config, driver, pathOf)
	var results []Result
	var errs []error
	for _, r := range devices.Results {
		if r.Driver != driver {
			continue
		}
		config, localIPC, err := configs.effective(r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		result := Result{Request: r.Request, Pool: r.Pool, Device: r.Device, Config: config,
			LocalIPC: localIPC, AdminAccess: ptr.Deref(r.AdminAccess, false)}
		if r.ShareID != nil {
			result.ShareID = *r.ShareID
		}
		consumed := func(name resourceapi.QualifiedName) int64 {
			q := r.ConsumedCapacity[name]
			return q.Value()
		}
		result.Consumed = Consumed{Memory: uint64(consumed("memory")), Cores: int(consumed("cores")),
			Replicas: int(consumed("shares"))}
		results = append(results, result)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return results, nil
}

// configs are the configurations of an allocation.
type configs struct {
	of     []resourceapi.DeviceAllocationConfiguration
	driver string
	pathOf func(config int) *field.Path
	decode []func() (api.DeviceConfig, error) // each is decoded once, for any number of devices
}

func newConfigs(of []resourceapi.DeviceAllocationConfiguration, driver string,
	pathOf func(config int) *field.Path) configs {
	c := configs{of: of, driver: driver, pathOf: pathOf}
	for i, one := range of {
		c.decode = append(c.decode, sync.OnceValues(func() (api.DeviceConfig, error) {
			return api.Decode(one.Opaque.Parameters.Raw, c.parameters(i))
		}))
	}
	return c
}

// parameters returns the path of the opaque parameters of a configuration.
func (c configs) parameters(config int) *field.Path {
	return c.pathOf(config).Child("opaque", "parameters")
}

// effective returns the last configuration of this driver that applies to the result, and what the last LocalIPCConfig
// says. Those of the class come before those of the claim. An invalid one is an error even if a later one overrides it.
// One of a kind for other devices is ignored, unless the claim names exactly this request or alternative.
func (c configs) effective(result resourceapi.DeviceRequestAllocationResult) (ruling api.DeviceConfig, localIPC bool,
	err error) {
	var errs []error
	for i, one := range c.of {
		applies := len(resourceclaim.ConfigForResult(c.of[i:i+1], result)) > 0
		if !applies || one.Opaque.Driver != c.driver {
			continue
		}
		config, err := c.decode[i]()
		if err == nil && one.Source == resourceapi.AllocationConfigSourceClaim {
			err = config.CheckRequests(one.Requests, c.pathOf(i).Child("requests"))
		}
		if err == nil && config.Kind == api.KindLocalIPCConfig {
			localIPC = config.LocalIPC
			continue
		}
		if err == nil && config.Kind != kindFor(result.Device) {
			if !names(one, result.Request) {
				continue
			}
			err = field.Invalid(c.parameters(i).Child("kind"), config.Kind,
				fmt.Sprintf("device %s takes a %s", result.Device, kindFor(result.Device)))
		}
		if err != nil {
			errs = append(errs, &ConfigError{Request: result.Request, Source: one.Source, Err: err})
		}
		ruling = config
	}
	return ruling, localIPC, errors.Join(errs...)
}

// names reports whether the claim has the configuration for exactly this request or alternative. Configurations of
// classes do not count, because the scheduler adds their requests. The name of a main request does not count for its
// alternatives, which may be of several kinds.
func names(c resourceapi.DeviceAllocationConfiguration, request string) bool {
	return c.Source == resourceapi.AllocationConfigSourceClaim && slices.Contains(c.Requests, request)
}

// kindFor returns the kind of configuration that the device takes.
func kindFor(device string) string {
	switch {
	case gpu.IsVFIO(device), gpu.IsVGPU(device):
		return api.KindVfioDeviceConfig
	case gpu.IsPartition(device):
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
