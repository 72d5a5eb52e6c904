// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/api"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// errNoModels means that a request depends on the models of GPUs, and none is known.
var errNoModels = errors.New("no GPU is published of which this could be a part")

const (
	mib = 1 << 20
	gib = 1 << 30
)

// claimBuilder makes the spec of a claim.
type claimBuilder struct {
	spec     resourceapi.ResourceClaimSpec
	devices  int64
	warnings []string
}

// add adds a request.
func (b *claimBuilder) add(c converter, name string, r gpuRequest) error {
	b.devices += r.Count
	if r.Count > 1 && !r.whole() && slices.ContainsFunc(c.Models, func(m model) bool { return m.Isolation == "mps" }) {
		return fmt.Errorf("%d shares of different GPUs: MPS limits a process on one GPU only; ask for one share, or "+
			"for whole GPUs", r.Count)
	}
	alternatives, err := c.alternatives(r)
	if err != nil {
		return err
	}
	if n := len(alternatives) - resourceapi.FirstAvailableDeviceRequestMaxSize; n > 0 {
		b.warnings = append(b.warnings, fmt.Sprintf("request %s: a list has at most %d sizes of GPUs, so %d with the "+
			"least memory are left out", name, resourceapi.FirstAvailableDeviceRequestMaxSize, n))
		alternatives = alternatives[:resourceapi.FirstAvailableDeviceRequestMaxSize]
	}
	request := resourceapi.DeviceRequest{Name: name}
	if len(alternatives) == 1 {
		s := alternatives[0]
		request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: s.DeviceClassName, Selectors: s.Selectors,
			AllocationMode: s.AllocationMode, Count: s.Count, Capacity: s.Capacity}
	} else {
		request.FirstAvailable = alternatives
	}
	b.spec.Devices.Requests = append(b.spec.Devices.Requests, request)
	if alternatives[0].Name == linkedName {
		attribute := resourceapi.FullyQualifiedName(c.Driver + "/nvlinkDomain")
		b.spec.Devices.Constraints = append(b.spec.Devices.Constraints, resourceapi.DeviceConstraint{
			Requests: []string{name + "/" + linkedName}, MatchAttribute: &attribute})
	}
	if r.MatchAttribute != "" {
		b.spec.Devices.Constraints = append(b.spec.Devices.Constraints, resourceapi.DeviceConstraint{
			Requests: []string{name}, MatchAttribute: &r.MatchAttribute})
	}
	return b.configure(c, name, r)
}

// linkedName is the name of the alternative whose GPUs are connected by NVLink.
const linkedName = "linked"

// alternatives returns the request in the order in which the scheduler tries it.
func (c converter) alternatives(r gpuRequest) ([]resourceapi.DeviceSubRequest, error) {
	base := resourceapi.DeviceSubRequest{DeviceClassName: c.Driver,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: r.Count}
	for _, s := range r.Selectors {
		base.Selectors = append(base.Selectors, resourceapi.DeviceSelector{
			CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	switch {
	case r.whole() && r.Linked && r.Count > 1:
		linked, any := base, base
		linked.Name, any.Name = linkedName, "any"
		return []resourceapi.DeviceSubRequest{linked, any}, nil
	case r.MemoryShare == 0 && r.TFLOPS == 0:
		base.Capacity = capacity(r.Memory, r.Cores)
		return []resourceapi.DeviceSubRequest{base}, nil
	}
	models := slices.Clone(c.Models)
	slices.SortFunc(models, func(a, b model) int {
		return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(b.PeakCompute, a.PeakCompute))
	})
	var all []resourceapi.DeviceSubRequest
	for _, m := range models {
		memory, cores, ok := r.of(m)
		if !ok {
			continue
		}
		sub := base
		sub.Name = fmt.Sprintf("of-%dmi", m.Memory/mib)
		selector := fmt.Sprintf("device.capacity['%s'].memory.compareTo(quantity('%s')) == 0", c.Driver,
			resource.NewQuantity(m.Memory, resource.BinarySI))
		if r.TFLOPS != 0 {
			sub.Name += fmt.Sprintf("-%d-tflops", m.PeakCompute)
			selector += fmt.Sprintf(" && device.attributes['%s'].peakCompute == %d", c.Driver, m.PeakCompute)
		}
		if slices.ContainsFunc(all, func(s resourceapi.DeviceSubRequest) bool { return s.Name == sub.Name }) {
			continue // two models with the same figures
		}
		sub.Selectors = append(slices.Clone(base.Selectors), resourceapi.DeviceSelector{
			CEL: &resourceapi.CELDeviceSelector{Expression: selector}})
		sub.Capacity = capacity(memory, cores)
		all = append(all, sub)
	}
	partitions := c.partitions(r, base)
	if free := resourceapi.FirstAvailableDeviceRequestMaxSize - len(all); free > 0 {
		all = append(all, partitions[:min(free, len(partitions))]...)
	}
	switch {
	case len(all) == 0 && len(models) > 0 && r.MemoryShare != 0:
		return nil, fmt.Errorf("%w: of each that is published, it is less than 1 MiB", errNoModels)
	case len(all) == 0 && (len(models) > 0 || r.TFLOPS != 0 && len(c.Partitions) > 0):
		return nil, fmt.Errorf("%w: those that are published have less", errNoModels)
	case len(all) == 0:
		return nil, errNoModels
	}
	return all, nil
}

// partitions returns the smallest partition of each model that has the compute and memory of the request, the smallest
// first. A container can use one partition only.
func (c converter) partitions(r gpuRequest, base resourceapi.DeviceSubRequest) (all []resourceapi.DeviceSubRequest) {
	if r.TFLOPS == 0 || r.Count > 1 {
		return nil
	}
	smallest := map[string]partition{} // by model
	for _, p := range c.Partitions {
		best, ok := smallest[p.Product]
		if p.PeakCompute >= r.TFLOPS && p.Memory >= r.Memory && (!ok || p.compare(best) < 0) {
			smallest[p.Product] = p
		}
	}
	for _, p := range slices.SortedFunc(maps.Values(smallest), partition.compare) {
		sub := base
		sub.Name = fmt.Sprintf("mig-%s-%d-tflops", gpu.ProfileName(p.Profile), p.PeakCompute)
		if slices.ContainsFunc(all, func(s resourceapi.DeviceSubRequest) bool { return s.Name == sub.Name }) {
			continue // two models with the same figures
		}
		sub.DeviceClassName, sub.Capacity = partitionClass(c.Driver), capacity(r.Memory, 0)
		sub.Selectors = append(slices.Clone(base.Selectors), resourceapi.DeviceSelector{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes['%[1]s'].profile == %[2]q "+
				"&& device.attributes['%[1]s'].peakCompute == %[3]d", c.Driver, p.Profile, p.PeakCompute)}})
		all = append(all, sub)
	}
	return all
}

// compare orders partitions by size; of two that differ only in media engines, the one without them is smaller.
func (p partition) compare(other partition) int {
	return cmp.Or(cmp.Compare(p.PeakCompute, other.PeakCompute), cmp.Compare(p.Memory, other.Memory),
		cmp.Compare(len(p.Profile), len(other.Profile)), strings.Compare(p.Profile, other.Profile),
		strings.Compare(p.Product, other.Product))
}

// of returns what the request is on a GPU of the model. ok is false if the model has less.
func (r gpuRequest) of(m model) (memory, cores int64, ok bool) {
	memory, cores = r.Memory, r.Cores
	if r.TFLOPS != 0 {
		if m.PeakCompute < r.TFLOPS {
			return 0, 0, false
		}
		cores = (100*r.TFLOPS + m.PeakCompute - 1) / m.PeakCompute
	}
	switch {
	case r.MemoryShare != 0:
		memory = int64(math.Floor(float64(m.Memory/mib)*r.MemoryShare)) * mib
	case r.TFLOPS != 0 && memory == 0: // as much of the memory; otherwise it would be all
		memory = m.Memory / mib * cores / 100 * mib
	}
	return memory, cores, memory >= mib && memory <= m.Memory
}

func capacity(memory, cores int64) *resourceapi.CapacityRequirements {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	if memory != 0 {
		requests["memory"] = *resource.NewQuantity(memory, resource.BinarySI)
	}
	if cores != 0 {
		requests["cores"] = *resource.NewQuantity(cores, resource.DecimalSI)
	}
	if len(requests) == 0 {
		return nil
	}
	return &resourceapi.CapacityRequirements{Requests: requests}
}

// gpuConfig is the configuration of a request, as package api reads it.
type gpuConfig struct {
	APIVersion  string            `json:"apiVersion"`
	Kind        string            `json:"kind"`
	Environment map[string]string `json:"environment,omitempty"`
	Sharing     *gpuSharing       `json:"sharing,omitempty"`
}

type gpuSharing struct {
	Strategy  string    `json:"strategy"`
	MPSConfig mpsConfig `json:"mpsConfig"`
}

type mpsConfig struct {
	DefaultActiveThreadPercentage int64 `json:"defaultActiveThreadPercentage"`
}

func (b *claimBuilder) configure(c converter, name string, r gpuRequest) error {
	config := gpuConfig{APIVersion: api.GroupVersion, Kind: api.KindGpuConfig, Environment: r.Environment}
	if r.CoresLimit != 0 && r.CoresLimit != r.Cores {
		config.Sharing = &gpuSharing{"MPS", mpsConfig{r.CoresLimit}}
	}
	if config.Sharing == nil && len(config.Environment) == 0 {
		return nil
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	b.spec.Devices.Config = append(b.spec.Devices.Config, resourceapi.DeviceClaimConfiguration{Requests: []string{name},
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: ptr.To(resourceapi.OpaqueDeviceConfiguration{
			Driver: c.Driver, Parameters: runtime.RawExtension{Raw: raw}})}})
	return nil
}
