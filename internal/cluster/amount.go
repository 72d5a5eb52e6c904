// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// Amount is how much of GPUs claims take. A key that is missing is unknown.
type Amount map[corev1.ResourceName]int64

// The keys of an amount.
const (
	AmountMemory corev1.ResourceName = "memory" // bytes
	AmountCores  corev1.ResourceName = "cores"  // percent of the multiprocessors of one GPU
	AmountTFLOPS corev1.ResourceName = "tflops" // of the attribute peakCompute, as much as of the cores
	AmountGPUs   corev1.ResourceName = "gpus"   // devices: whole GPUs, partitions and shares
)

// IsZero reports whether the amount is known, and nothing.
func (a Amount) IsZero() bool {
	return maps.Equal(a, Zero())
}

// Zero returns nothing.
func Zero() Amount { return Amount{AmountMemory: 0, AmountCores: 0, AmountTFLOPS: 0, AmountGPUs: 0} }

// Largest returns the most that one device is; without memory and speed, if no GPU is published.
func (v *View) Largest() Amount {
	most := Amount{AmountCores: 100, AmountGPUs: 1}
	for _, k := range v.Kinds() {
		if k.Type() != gpu.TypeMonitor {
			most.raise(amount(k.Capacity("memory"), 100, k.PeakCompute()))
		}
	}
	return most
}

// Bound returns what the claim takes at most, if each device whose amount is unknown is as large as that. A share has
// the memory that was allocated.
func (v *View) Bound(claim *resourceapi.ResourceClaim, largest Amount) Amount {
	if claim.Status.Allocation != nil {
		return v.held(claim, func(r *resourceapi.DeviceRequestAllocationResult) Amount {
			one := maps.Clone(largest)
			if memory := r.ConsumedCapacity["memory"]; memory.Sign() > 0 {
				one[AmountMemory] = memory.Value()
			}
			return one
		})
	}
	all := Zero()
	for _, alternatives := range Requests(&claim.Spec) {
		most := int64(0)
		for _, s := range alternatives {
			if !s.Admin {
				most = max(most, s.Devices())
			}
		}
		all.Add(largest, most)
	}
	return all
}

// Add adds times b. What is unknown of b becomes unknown.
func (a Amount) Add(b Amount, times int64) {
	for name := range a {
		n, known := b[name]
		if !known {
			delete(a, name)
			continue
		}
		a[name] += times * n
	}
}

// raise makes each part at least that of b.
func (a Amount) raise(b Amount) {
	for name, n := range b {
		a[name] = max(a[name], n)
	}
}

// ErrNoClass means that a claim can get no device, or that its class is not known yet.
var ErrNoClass = errors.New("there is no DeviceClass")

// ErrAll means that a claim asks for all devices of a node.
var ErrAll = errors.New("allocationMode All: how many devices it gets is not known before; write a count")

// AmountOf returns how much the claim takes: what it holds, or else the most that it can get of the devices that are
// published now. Of an allocated claim, what is unknown is that of a device which is not published. Otherwise the error
// says why that is not known.
func (v *View) AmountOf(ctx context.Context, claim *resourceapi.ResourceClaim) (Amount, error) {
	if claim.Status.Allocation != nil {
		return v.held(claim, func(*resourceapi.DeviceRequestAllocationResult) Amount {
			return Amount{AmountGPUs: 1}
		}), nil
	}
	all := Zero()
	for i, alternatives := range Requests(&claim.Spec) {
		published, most := false, Amount{} // where some alternatives are published, the others do not count
		for _, s := range alternatives {
			one, ok, err := v.most(ctx, s)
			switch {
			case err != nil:
				return nil, fmt.Errorf("request %s: %w", claim.Spec.Devices.Requests[i].Name, err)
			case one == nil: // another alternative may take something
			case ok && !published:
				published, most = true, one
			case ok == published:
				most.raise(one)
			}
		}
		if len(most) > 0 {
			all.Add(most, 1)
		}
	}
	return all, nil
}

// Whole says which GPU the claim may get as a whole though it asks for a share, and what prevents that; "": none.
func (v *View) Whole(ctx context.Context, claim *resourceapi.ResourceClaim) string {
	for _, s := range Subrequests(&claim.Spec) {
		for _, k := range v.Accepted(ctx, s) {
			if s.Asked() != nil && !s.Admin && k.Sharing() == "exclusive" {
				return fmt.Sprintf("; it may get a whole %s, which has no shares: "+Shares, k.Product(), v.driver)
			}
		}
	}
	return ""
}

// Shares says how a claim for a device of the driver gets a share, and no whole GPU.
const Shares = "for a share of another one, add the selector device.attributes['%s'].sharing == 'fractional'"

// most returns the most that a subrequest can get; nil: it takes nothing. ok is false if no published device is for it,
// so that its memory and speed are unknown.
func (v *View) most(ctx context.Context, a Subrequest) (all Amount, ok bool, err error) {
	class, exists := v.Class(*a.Class)
	switch {
	case a.Admin:
		return nil, false, nil
	case !exists:
		return nil, false, fmt.Errorf("%w %s", ErrNoClass, *a.Class)
	}
	asked := a.Asked()
	fixed := slices.DeleteFunc(slices.Clone(*a.Selectors), func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && mayDiffer(s.CEL.Expression)
	})
	one, found, held, ours := Zero(), false, false, false
	for of := v; of != nil; of = of.Remote {
		ours = ours || selects(class, of.driver)
		for _, k := range of.Kinds() {
			if !of.AcceptsAll(ctx, k, class.Spec.Selectors) || !of.AcceptsAll(ctx, k, fixed) || !k.Has(asked) {
				continue
			}
			found = true
			if k.Type() != gpu.TypeMonitor {
				held = true
				one.raise(of.amountOfKind(k, asked))
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case found && !held || !found && (a.MatchesNothing() || !ours):
		return nil, false, nil
	case !found:
		one = Amount{AmountCores: 100, AmountGPUs: 1}
	}
	if held && a.All() {
		return nil, false, ErrAll
	}
	all = Zero()
	all.Add(one, a.Devices())
	return all, held, nil
}

// amountOfKind returns the most that a request for these capacities takes of one device of the kind. A GPU of unknown
// size counts as the largest one: nobody could ask one that boot gave to vfio-pci.
func (v *View) amountOfKind(k *DeviceKind, asked map[resourceapi.QualifiedName]resource.Quantity) Amount {
	if k.Type() == gpu.TypeVFIO && k.Capacity("memory") == 0 {
		return v.Largest()
	}
	if k.isPart() {
		return amount(k.Capacity("memory"), v.coresOf(k), k.PeakCompute())
	}
	result := &resourceapi.DeviceRequestAllocationResult{
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{}}
	for i, n := range k.Takes(asked) {
		result.ConsumedCapacity[k.policies[i].name] = *resource.NewQuantity(n, resource.BinarySI)
	}
	h := v.charged(Held{DeviceRequestAllocationResult: result}, &GPU{Whole: &Device{Kind: k}})
	return amount(h.Memory, h.Cores, k.PeakCompute()*h.Cores/100)
}

// charged returns what counts for a device. Whatever a claim asks for of an unlimited GPU, it may use all of it.
func (v *View) charged(held Held, g *GPU) Holding {
	h := v.holding(held, g)
	if g.Whole != nil && !gpu.IsPart(held.Device) &&
		(h.Memory == 0 || g.Whole.Kind.Sharing() == gpu.Unlimited.String()) {
		h.Memory, h.Cores = g.Memory(), 100
	}
	return h
}

func amount(memory, cores, tflops int64) Amount {
	return Amount{AmountMemory: memory, AmountCores: cores, AmountTFLOPS: tflops, AmountGPUs: 1}
}

// coresOf returns the most cores that a partition of the kind has: of the smallest GPU of its model.
func (v *View) coresOf(k *DeviceKind) int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	most := int64(0)
	for _, g := range v.gpus {
		if g.published() == 0 || g.Product() != k.Product() {
			continue
		}
		if _, all := g.size(); all > 0 {
			most = max(most, min(100, 100*k.multiprocessors()/all))
		}
	}
	return most
}

// held returns what the claim holds. unknown returns what counts for a device that is not published.
func (v *View) held(claim *resourceapi.ResourceClaim,
	unknown func(*resourceapi.DeviceRequestAllocationResult) Amount) Amount {
	all := Zero()
	for _, r := range Results(claim) {
		for of := v; of != nil; of = of.Remote {
			if r.Driver != of.driver {
				continue
			}
			if one, published := of.heldOf(&r); published {
				all.Add(one, 1)
			} else {
				all.Add(unknown(&r), 1)
			}
		}
	}
	return all
}

// heldOf returns the amount of a device of the driver that a claim holds. published is false if the device is not.
func (v *View) heldOf(r *resourceapi.DeviceRequestAllocationResult) (one Amount, published bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	g := v.gpus[gpuID{r.Pool, gpu.ParentName(r.Device)}]
	if g == nil || g.published() == 0 {
		return nil, false
	}
	h := v.charged(Held{DeviceRequestAllocationResult: r}, g)
	one = amount(h.Memory, h.Cores, 0)
	switch k := v.partitions[partitionKind{g.Product(), gpu.PartitionProfile(r.Device)}]; {
	case !gpu.IsPart(r.Device) && g.Whole != nil:
		one[AmountTFLOPS] = g.Whole.Kind.PeakCompute() * h.Cores / 100
	case k != nil:
		one[AmountTFLOPS] = k.PeakCompute()
	}
	return one, true
}
