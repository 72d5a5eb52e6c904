// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// This file says what the node would refuse by its own plan, that of package sharing, of devices that the scheduler
// gives out all the same: a pod that gets them never starts.

// deviceOf returns a device of that kind for a plan of the node. Its name is its model, for messages. Devices with
// different numbers are different ones.
func deviceOf(kind *cluster.DeviceKind, number int) gpu.Device {
	d := gpu.Device{Name: kind.Product(), Type: kind.Type(), Memory: uint64(kind.Capacity("memory")),
		UUID: gpu.UUID(fmt.Sprintf("GPU-%d", number))}
	if number > 0 {
		d.Name = fmt.Sprintf("%s (%d)", d.Name, number+1)
	}
	switch kind.Type() {
	case gpu.TypeMonitor:
		d.Name = inventory.Monitor
	case gpu.TypeMIG:
		d.Partition = &gpu.Partition{Placement: gpu.Placement{Parent: gpu.UUID(fmt.Sprintf("GPU-of-%d", number)),
			Profile: kind.Profile()}}
		d.Name = gpu.PartitionName(d.Name, d.Partition.Placement)
	case gpu.TypeVGPU:
		d.VGPU = &gpu.VGPU{Parent: gpu.UUID(fmt.Sprintf("GPU-of-%d", number)), Type: gpu.VGPUType{Name: kind.Profile()}}
		d.Name = gpu.PossibleVGPUName(d.Name, d.VGPU.Type, 0)
	case gpu.TypeVFIO:
		d.Name, d.VFIO = gpu.VFIOName(d.Name), &gpu.VFIO{}
	}
	d.Use = gpu.SharingMode{Replicas: int(kind.Capacity("shares"))}
	// The monitor device has neither attribute.
	if d.Use.Sharing.UnmarshalText([]byte(kind.Sharing())) != nil {
		d.Use.Sharing = gpu.Exclusive
	}
	if d.Use.Isolation.UnmarshalText([]byte(kind.Isolation())) != nil {
		d.Use.Isolation = gpu.IsolationNone
	}
	return d
}

// Refusal returns why a node would refuse the pod, or a claim without one, with the devices of its allocated claims;
// nil: as far as is known, it does not. Whether devices are in use, or still there, does not count. published finds a
// device; nil: there is none.
func Refusal(pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	published func(resourceapi.DeviceRequestAllocationResult) *resourceapi.Device) *sharing.Refusal {
	for _, claim := range claims {
		driver, gpus := devicesOf(claim, published)
		results, err := allocation.Results(claim, driver)
		if err != nil {
			return &sharing.Refusal{Reason: fmt.Sprintf("claim %s: %v", claim.Name, err), Kind: sharing.ErrRefused}
		}
		plan, err := sharing.DryRun(results, gpus)
		if r := asRefusal(err); r != nil {
			return r
		}
		if err != nil || pod == nil {
			continue
		}
		for _, user := range sharing.Users(pod, claim.Name) {
			for _, other := range user.Others {
				for _, of := range claims {
					if of.Name == other.Claim && of.Namespace == claim.Namespace {
						user.Container.Others = append(user.Container.Others, other.Devices(of, driver)...)
					}
				}
			}
			if r := asRefusal(plan.CheckContainer(user.Container)); r != nil {
				return r
			}
		}
	}
	return nil
}

// devicesOf returns the devices of the claim that are published as this driver does, and the driver's name.
func devicesOf(claim *resourceapi.ResourceClaim,
	published func(resourceapi.DeviceRequestAllocationResult) *resourceapi.Device) (driver string,
	all inventory.Inventory) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		if _, known := all.Find(r.Device); known {
			continue
		}
		if of := published(r); of != nil {
			if _, ours := of.Attributes["sharing"]; ours {
				d := deviceOf(cluster.KindOf(of), len(all))
				d.Name = r.Device
				driver, all = r.Driver, append(all, d)
			}
		}
	}
	return driver, all
}

// asRefusal returns the refusal, unless it depends on what is there, or on UUIDs; nil: none.
func asRefusal(err error) *sharing.Refusal {
	var r *sharing.Refusal
	if errors.As(err, &r) && !strings.Contains(r.Path, "PerDevice") && !errors.Is(r, sharing.ErrGone) {
		return r
	}
	return nil
}

// DryRun is a claim with devices that it could get, on a node that has only these.
type DryRun struct {
	driver string
	claim  resourceapi.ResourceClaim
	gpus   inventory.Inventory
	paths  []*field.Path // of each configuration
}

// NewDryRun begins without devices. driver is the name of the driver.
func NewDryRun(driver string) *DryRun {
	d := &DryRun{driver: driver}
	d.claim.Status.Allocation = &resourceapi.AllocationResult{}
	return d
}

// Give gives devices of that kind to the subrequest, with the configuration of its class.
func (d *DryRun) Give(s cluster.Subrequest, class *resourceapi.DeviceClass, kind *cluster.DeviceKind, count int64) {
	devices := &d.claim.Status.Allocation.Devices
	for range count {
		of := deviceOf(kind, len(d.gpus))
		d.gpus = append(d.gpus, of)
		result := resourceapi.DeviceRequestAllocationResult{Request: s.Name, Driver: d.driver, Pool: "node",
			Device: of.Name}
		if s.Admin {
			result.AdminAccess = ptr.To(true)
		}
		if ptr.Deref(kind.Device.AllowMultipleAllocations, false) {
			result.ShareID = ptr.To(types.UID(fmt.Sprint(len(d.gpus))))
			result.ConsumedCapacity = kind.Consumes(s.Asked())
		}
		devices.Results = append(devices.Results, result)
	}
	for i, config := range class.Spec.Config {
		d.paths = append(d.paths, field.NewPath("class "+class.Name+": spec", "config").Index(i))
		devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{s.Name},
			DeviceConfiguration: config.DeviceConfiguration})
	}
}

// Plan returns the node's plan with the configurations of the claim, which are at that path. The error is what the node
// refuses.
func (d *DryRun) Plan(of []resourceapi.DeviceClaimConfiguration, configs *field.Path) (sharing.Plan, error) {
	devices := &d.claim.Status.Allocation.Devices
	for i, config := range of {
		d.paths = append(d.paths, configs.Index(i))
		devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: config.Requests,
			DeviceConfiguration: config.DeviceConfiguration})
	}
	results, err := allocation.ResultsAt(&d.claim, d.driver, func(config int) *field.Path { return d.paths[config] })
	if err != nil {
		return sharing.Plan{}, err
	}
	return sharing.DryRun(results, d.gpus)
}

// refuses reports whether a node refuses devices of the kind for the subrequest of the claim, whatever else that gets.
// pod is the one that uses it; nil: not known.
func refuses(v *cluster.View, pod *corev1.Pod, claim *resourceapi.ResourceClaim, s cluster.Subrequest,
	kind *cluster.DeviceKind) bool {
	class, ok := v.Class(*s.Class)
	if !ok {
		return false
	}
	d := NewDryRun(v.Driver())
	d.Give(s, class, kind, min(max(1, *s.Count), 2)) // two behave like many
	plan, err := d.Plan(claim.Spec.Devices.Config, nil)
	var invalid *allocation.ConfigError
	if err != nil || pod == nil {
		return asRefusal(err) != nil || errors.As(err, &invalid)
	}
	return slices.ContainsFunc(sharing.Users(pod, claim.Name), func(user sharing.User) bool {
		return plan.CheckContainer(user.Container) != nil
	})
}
