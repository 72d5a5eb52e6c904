// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"cmp"
	"encoding/binary"
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
				if d.Partition != nil {
					d.Partition.Static = len(of.ConsumesCounters) == 0
				}
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
	for range count {
		of := deviceOf(kind, len(d.gpus))
		d.gpus = append(d.gpus, of)
		d.add(s, kind, of.Name)
	}
	d.configure(s, class)
}

// add gives a device of that kind to the subrequest.
func (d *DryRun) add(s cluster.Subrequest, kind *cluster.DeviceKind, device string) {
	results := &d.claim.Status.Allocation.Devices.Results
	r := resourceapi.DeviceRequestAllocationResult{Request: s.Name, Driver: d.driver, Pool: "node", Device: device}
	if s.Admin {
		r.AdminAccess = ptr.To(true)
	}
	if kind.Shared() {
		r.ShareID, r.ConsumedCapacity = ptr.To(types.UID(fmt.Sprint(len(*results)))), kind.Consumes(s.Asked())
	}
	*results = append(*results, r)
}

// configure adds the configuration of the class of a subrequest.
func (d *DryRun) configure(s cluster.Subrequest, class *resourceapi.DeviceClass) {
	for i, config := range class.Spec.Config {
		d.paths = append(d.paths, field.NewPath("class "+class.Name+": spec", "config").Index(i))
		d.claim.Status.Allocation.Devices.Config = append(d.claim.Status.Allocation.Devices.Config,
			resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass,
				Requests: []string{s.Name}, DeviceConfiguration: config.DeviceConfiguration})
	}
}

// allocated returns the claim with its configurations, which are at that path.
func (d *DryRun) allocated(of []resourceapi.DeviceClaimConfiguration, configs *field.Path) *resourceapi.ResourceClaim {
	for i, config := range of {
		d.paths = append(d.paths, configs.Index(i))
		d.claim.Status.Allocation.Devices.Config = append(d.claim.Status.Allocation.Devices.Config,
			resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim,
				Requests: config.Requests, DeviceConfiguration: config.DeviceConfiguration})
	}
	return &d.claim
}

// Plan returns the node's plan with the configurations of the claim, which are at that path. The error is what the node
// refuses.
func (d *DryRun) Plan(of []resourceapi.DeviceClaimConfiguration, configs *field.Path) (sharing.Plan, error) {
	claim := d.allocated(of, configs)
	results, err := allocation.ResultsAt(claim, d.driver, func(config int) *field.Path { return d.paths[config] })
	if err != nil {
		return sharing.Plan{}, err
	}
	return sharing.DryRun(results, d.gpus)
}

// refusals know what a pod asks for, and what nodes refuse of it.
type refusals struct {
	driver  string
	pod     *corev1.Pod
	claims  []*resourceapi.ResourceClaim
	asked   []*asked
	kinds   map[*cluster.DeviceKind]int // their numbers
	refused map[string]*sharing.Refusal // of combinations of devices; nil: none
	// Something may be refused; of some claims it is not known what.
	may, unknown bool
}

// asked is a subrequest of a claim.
type asked struct {
	cluster.Subrequest
	number int
	claim  *resourceapi.ResourceClaim
	class  *resourceapi.DeviceClass
}

// Users choose how many claims their containers use, and how many different sets of devices a pod may get. More are not
// looked at: nodes do not refuse them.
const maxUsed, maxDryRuns = 16, 32

// add adds a subrequest.
func (d *refusals) add(v *cluster.View, pod *corev1.Pod, claim *resourceapi.ResourceClaim,
	s cluster.Subrequest) *asked {
	class, ok := v.Class(*s.Class)
	if !ok || pod == nil || len(pod.Spec.ResourceClaims) > maxUsed {
		d.unknown = true
		return nil
	}
	a := &asked{s, len(d.asked), claim, class}
	d.asked = append(d.asked, a)
	if d.driver, d.pod = v.Driver(), pod; !slices.Contains(d.claims, claim) {
		d.claims = append(d.claims, claim)
	}
	// A pod with one device, without a configuration and volumes, is never refused.
	d.may = d.may || s.All() || *s.Count > 1 || len(d.asked) > 1 || len(pod.Spec.Volumes) > 0 ||
		len(claim.Spec.Devices.Config)+len(class.Spec.Config) > 0
	d.unknown = d.unknown || cluster.ByIdentity(*s.Selectors) || cluster.ByIdentity(class.Spec.Selectors) ||
		slices.ContainsFunc(claim.Spec.Devices.Config, func(c resourceapi.DeviceClaimConfiguration) bool {
			return c.Opaque == nil // SlimClaim has dropped it
		})
	return a
}

// Refusal returns why the node refuses what Estimate has given out for the demand when the pod is to start; nil: as far
// as is known, it does not.
func (n *Node) Refusal(demand *Demand) *sharing.Refusal {
	d := &demand.refusals
	if !d.may || d.unknown || n.Unsure {
		return nil
	}
	if d.refused == nil {
		d.refused, d.kinds = map[string]*sharing.Refusal{}, map[*cluster.DeviceKind]int{}
	}
	var key []byte
	for _, t := range n.Takes {
		kind, known := d.kinds[t.kind]
		if !known {
			kind = len(d.kinds)
			d.kinds[t.kind] = kind
		}
		same := slices.IndexFunc(n.Takes, func(o Take) bool { return o.Index == t.Index && o.Device == t.Device })
		for _, number := range []int{t.asked.number, kind, same} {
			key = binary.AppendUvarint(key, uint64(number))
		}
	}
	refused, known := d.refused[string(key)]
	if !known && len(d.refused) < maxDryRuns {
		refused = d.run(n.Takes)
		d.refused[string(key)] = refused
	}
	return refused
}

// run returns why a node refuses these takes; nil: it does not.
func (d *refusals) run(takes []Take) *sharing.Refusal {
	kinds := map[string]*resourceapi.Device{}
	var claims []*resourceapi.ResourceClaim
	for _, of := range d.claims {
		one := NewDryRun(d.driver)
		one.claim.Namespace, one.claim.Name = of.Namespace, of.Name
		for _, t := range takes {
			if device := cmp.Or(t.Device, t.GPU.Name); t.asked.claim == of {
				one.add(t.asked.Subrequest, t.kind, device)
				kinds[device] = &t.kind.Device
			}
		}
		for _, a := range d.asked {
			if a.claim == of {
				one.configure(a.Subrequest, a.class)
			}
		}
		claims = append(claims, one.allocated(of.Spec.Devices.Config, nil))
	}
	return Refusal(d.pod, claims, func(r resourceapi.DeviceRequestAllocationResult) *resourceapi.Device {
		return kinds[r.Device]
	})
}
