// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// sliceCheck makes a check of a function that looks at all slices of the driver. A pool may be in transition, so it
// fails only when the timeout has passed.
func sliceCheck(look func([]resourceapi.ResourceSlice) error) run {
	return func(ctx context.Context, s *suite) (string, error) {
		var last error
		err := s.until(ctx, "the slices", func(ctx context.Context) (bool, string, error) {
			list, err := s.slices(ctx)
			if err != nil {
				return false, "", err
			}
			last = look(list)
			return last == nil, fmt.Sprint(last), nil
		})
		if last != nil {
			return "", last
		}
		return "", err
	}
}

// pools returns the slices of each pool by the pool's name, and the names in order.
func pools(list []resourceapi.ResourceSlice) (map[string][]resourceapi.ResourceSlice, []string) {
	byName := map[string][]resourceapi.ResourceSlice{}
	for _, slice := range list {
		byName[slice.Spec.Pool.Name] = append(byName[slice.Spec.Pool.Name], slice)
	}
	return byName, slices.Sorted(maps.Keys(byName))
}

// eachPool joins what look finds in the pools.
func eachPool(look func(pool string, list []resourceapi.ResourceSlice) error) func([]resourceapi.ResourceSlice) error {
	return func(list []resourceapi.ResourceSlice) error {
		byName, names := pools(list)
		var errs []error
		for _, name := range names {
			errs = append(errs, look(name, byName[name]))
		}
		return errors.Join(errs...)
	}
}

func published(ctx context.Context, s *suite) (string, error) {
	list, err := s.slices(ctx)
	if err != nil {
		return "", err
	}
	devices := 0
	for _, slice := range list {
		devices += len(slice.Spec.Devices)
	}
	_, names := pools(list)
	if devices == 0 {
		return "", fmt.Errorf("%d slices have no device", len(list))
	}
	return fmt.Sprintf("%d devices, %d slices, %d pools", devices, len(list), len(names)), nil
}

func poolComplete(pool string, list []resourceapi.ResourceSlice) error {
	newest := slices.MaxFunc(list, func(a, b resourceapi.ResourceSlice) int {
		return cmp.Compare(a.Spec.Pool.Generation, b.Spec.Pool.Generation)
	}).Spec.Pool.Generation
	var have int64
	for _, slice := range list {
		if slice.Spec.Pool.Generation == newest {
			have++
		}
	}
	for _, slice := range list {
		if want := slice.Spec.Pool.ResourceSliceCount; slice.Spec.Pool.Generation == newest && want != have {
			return fmt.Errorf("pool %s, generation %d: there are %d slices, %s has resourceSliceCount %d", pool, newest,
				have, slice.Name, want)
		}
	}
	return nil
}

func poolGeneration(pool string, list []resourceapi.ResourceSlice) error {
	for _, slice := range list {
		if got, first := slice.Spec.Pool.Generation, list[0]; got != first.Spec.Pool.Generation {
			return fmt.Errorf("pool %s: %s has generation %d, %s has %d", pool, first.Name,
				first.Spec.Pool.Generation, slice.Name, got)
		}
	}
	return nil
}

func deviceNames(pool string, list []resourceapi.ResourceSlice) error {
	in := map[string]string{}
	for _, slice := range list {
		for _, device := range slice.Spec.Devices {
			if other, ok := in[device.Name]; ok {
				return fmt.Errorf("pool %s: device %s is in %s and in %s", pool, device.Name, other, slice.Name)
			}
			in[device.Name] = slice.Name
		}
	}
	return nil
}

func counters(pool string, list []resourceapi.ResourceSlice) error {
	sets := map[string]resourceapi.CounterSet{}
	for _, slice := range list {
		for _, set := range slice.Spec.SharedCounters {
			if _, ok := sets[set.Name]; ok {
				return fmt.Errorf("pool %s has two counter sets %s", pool, set.Name)
			}
			sets[set.Name] = set
		}
	}
	for _, slice := range list {
		for _, device := range slice.Spec.Devices {
			for _, consumes := range device.ConsumesCounters {
				for _, name := range slices.Sorted(maps.Keys(consumes.Counters)) {
					has, ok := sets[consumes.CounterSet].Counters[name]
					if !ok {
						return fmt.Errorf("pool %s: device %s consumes counter %s of set %s, which is not there", pool,
							device.Name, name, consumes.CounterSet)
					}
					if wants := consumes.Counters[name].Value; wants.Cmp(has.Value) > 0 {
						return fmt.Errorf("pool %s: device %s can never be allocated: it consumes %s of counter "+
							"%s/%s, which has %s", pool, device.Name, wants.String(), consumes.CounterSet, name,
							has.Value.String())
					}
				}
			}
		}
	}
	return nil
}

func poolOnOneNode(pool string, list []resourceapi.ResourceSlice) error {
	for _, slice := range list {
		a, b := list[0].Spec.NodeName, slice.Spec.NodeName
		if (a == nil) != (b == nil) || a != nil && *a != *b {
			return fmt.Errorf("pool %s: %s and %s are not of the same node", pool, list[0].Name, slice.Name)
		}
	}
	return nil
}

// sliceLimits tests the limits of the API on one slice.
func sliceLimits(_ string, list []resourceapi.ResourceSlice) error {
	for _, slice := range list {
		limit := resourceapi.ResourceSliceMaxDevices
		for _, device := range slice.Spec.Devices {
			if len(device.Taints) > 0 || len(device.ConsumesCounters) > 0 {
				limit = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
			if has := len(device.Attributes) + len(device.Capacity); has >
				resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				return fmt.Errorf("slice %s: device %s has %d attributes and capacities, more than %d", slice.Name,
					device.Name, has, resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
			}
		}
		if len(slice.Spec.Devices) > limit {
			return fmt.Errorf("slice %s has %d devices, more than %d", slice.Name, len(slice.Spec.Devices), limit)
		}
	}
	return nil
}

func sliceOwner(_ string, list []resourceapi.ResourceSlice) error {
	for _, slice := range list {
		if slice.Spec.NodeName != nil && !slices.ContainsFunc(slice.OwnerReferences,
			func(o metav1.OwnerReference) bool { return o.Kind == "Node" && o.Name == *slice.Spec.NodeName }) {
			return fmt.Errorf("slice %s has no owner reference to node %s", slice.Name, *slice.Spec.NodeName)
		}
	}
	return nil
}

func standardAttributes(pool string, list []resourceapi.ResourceSlice) error {
	for _, slice := range list {
		for _, device := range slice.Spec.Devices {
			for name, attribute := range device.Attributes {
				var valid bool
				switch name {
				case deviceattribute.StandardDeviceAttributePCIeRoot:
					valid = attribute.StringValue != nil || attribute.StringValues != nil
				case deviceattribute.StandardDeviceAttributePCIBusID:
					valid = attribute.StringValue != nil
				case deviceattribute.StandardDeviceAttributeNUMANode:
					valid = attribute.IntValue != nil || attribute.IntValues != nil
				default:
					continue
				}
				if !valid {
					return fmt.Errorf("pool %s: device %s has attribute %s of another type: %+v", pool,
						device.Name, name, attribute)
				}
			}
		}
	}
	return nil
}

// classSelects evaluates the selectors of the class on every device of the driver, as the scheduler does.
func classSelects(ctx context.Context, s *suite) (string, error) {
	list, err := s.slices(ctx)
	if err != nil {
		return "", err
	}
	class, err := s.Client.ResourceV1().DeviceClasses().Get(ctx, s.Class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	selected, devices := 0, 0
	for _, slice := range list {
		for _, device := range slice.Spec.Devices {
			devices++
			matches, err := selects(ctx, class, s.Driver, device)
			if err != nil {
				return "", fmt.Errorf("device %s of pool %s: %w", device.Name, slice.Spec.Pool.Name, err)
			}
			if matches {
				selected++
			}
		}
	}
	if selected == 0 {
		return "", fmt.Errorf("class %s selects none of %d devices", s.Class, devices)
	}
	return fmt.Sprintf("class %s selects %d of %d devices", s.Class, selected, devices), nil
}

// selects evaluates the selectors of a class on a device.
func selects(ctx context.Context, class *resourceapi.DeviceClass, driver string, device resourceapi.Device) (bool,
	error) {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	for i, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		compiled := compiler.CompileCELExpression(selector.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			return false, fmt.Errorf("selector %d of class %s: %w", i, class.Name, compiled.Error)
		}
		matches, _, err := compiled.DeviceMatches(ctx, cel.Device{Driver: driver, Attributes: device.Attributes,
			AllowMultipleAllocations: device.AllowMultipleAllocations, Capacity: device.Capacity})
		if err != nil {
			return false, fmt.Errorf("selector %d of class %s: %w", i, class.Name, err)
		}
		if !matches {
			return false, nil
		}
	}
	return true, nil
}

// seen is a pool as it was at one time.
type seen struct{ generation, count int64 }

// observe remembers how complete pools are, for generationRises.
func (s *suite) observe(list []resourceapi.ResourceSlice) {
	byName, names := pools(list)
	for _, name := range names {
		if poolComplete(name, byName[name]) != nil || poolGeneration(name, byName[name]) != nil {
			continue
		}
		now := seen{byName[name][0].Spec.Pool.Generation, int64(len(byName[name]))}
		if history := s.history[name]; len(history) == 0 || history[len(history)-1] != now {
			s.history[name] = append(history, now)
		}
	}
}

// generationRises judges the pools that were seen in this run. The helper of Kubernetes keeps a generation if one
// update is enough, so only a pool whose number of slices grows tells.
func generationRises(_ context.Context, s *suite) (string, error) {
	changes := 0
	for _, pool := range slices.Sorted(maps.Keys(s.history)) {
		history := s.history[pool]
		for i := range max(len(history)-1, 0) {
			before, after := history[i], history[i+1]
			if after.count <= before.count {
				continue
			}
			changes++
			if after.generation == before.generation {
				return "", fmt.Errorf("pool %s: generation %d had %d slices and then %d", pool, before.generation,
					before.count, after.count)
			}
		}
	}
	if changes == 0 {
		return "", skip("no pool has got more slices during this run")
	}
	return fmt.Sprintf("pools have got more slices %d times", changes), nil
}
