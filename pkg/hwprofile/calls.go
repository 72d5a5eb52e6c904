// SPDX-License-Identifier: Apache-2.0

package hwprofile

import (
	_ "embed"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Calls has a GPU's answers to NVML's device calls, by go-nvml's names. A missing call returns ERROR_NOT_SUPPORTED.
// Exceptions are GetPciInfo(Ext), from the PCI bus; GetIndex, from the order of the GPUs; and GetUUID and
// GetMinorNumber, which are derived. The simulator also has a default for GetSupportedEventTypes.
type Calls struct {
	GetName                                  Answer[string]                  `yaml:"GetName"`
	GetUUID                                  Answer[string]                  `yaml:"GetUUID"`
	GetSerial                                Answer[string]                  `yaml:"GetSerial"`
	GetVbiosVersion                          Answer[string]                  `yaml:"GetVbiosVersion"`
	GetBoardPartNumber                       Answer[string]                  `yaml:"GetBoardPartNumber"`
	GetMinorNumber                           Answer[int]                     `yaml:"GetMinorNumber"`
	GetBrand                                 Answer[Brand]                   `yaml:"GetBrand"`
	GetArchitecture                          Answer[Architecture]            `yaml:"GetArchitecture"`
	GetCudaComputeCapability                 Answer[Capability]              `yaml:"GetCudaComputeCapability"`
	GetNumGpuCores                           Answer[int]                     `yaml:"GetNumGpuCores"`
	GetMemoryInfo                            Answer[Memory]                  `yaml:"GetMemoryInfo"`
	GetMemoryBusWidth                        Answer[uint32]                  `yaml:"GetMemoryBusWidth"`
	GetMaxClockInfo                          Answer[map[Clock]uint32]        `yaml:"GetMaxClockInfo"`
	GetClockInfo                             Answer[map[Clock]uint32]        `yaml:"GetClockInfo"`
	GetComputeMode                           Answer[ComputeMode]             `yaml:"GetComputeMode"`
	GetPersistenceMode                       Answer[Switch]                  `yaml:"GetPersistenceMode"`
	GetDisplayActive                         Answer[Switch]                  `yaml:"GetDisplayActive"`
	GetEccMode                               Answer[ModeChange]              `yaml:"GetEccMode"`
	GetMigMode                               Answer[MigMode]                 `yaml:"GetMigMode"`
	GetMaxMigDeviceCount                     Answer[int]                     `yaml:"GetMaxMigDeviceCount"`
	GetGpuInstanceProfileInfo                Answer[GPUInstanceProfiles]     `yaml:"GetGpuInstanceProfileInfo"`
	GetGpuInstancePossiblePlacements         Answer[GPUInstancePlacements]   `yaml:"GetGpuInstancePossiblePlacements"`
	GpuInstanceGetComputeInstanceProfileInfo Answer[ComputeInstanceProfiles] `yaml:"GpuInstanceGetComputeInstanceProfileInfo"`
	GetAddressingMode                        Answer[AddressingMode]          `yaml:"GetAddressingMode"`
	GetNumaNodeId                            Answer[int]                     `yaml:"GetNumaNodeId"`
	GetTemperature                           Answer[map[Sensor]uint32]       `yaml:"GetTemperature"`
	GetFanSpeed                              Answer[uint32]                  `yaml:"GetFanSpeed"`
	GetPerformanceState                      Answer[Performance]             `yaml:"GetPerformanceState"`
	GetPowerUsage                            Answer[uint32]                  `yaml:"GetPowerUsage"`
	GetPowerManagementLimit                  Answer[uint32]                  `yaml:"GetPowerManagementLimit"`
	GetUtilizationRates                      Answer[Utilization]             `yaml:"GetUtilizationRates"`
	GetMaxPcieLinkGeneration                 Answer[int]                     `yaml:"GetMaxPcieLinkGeneration"`
	GetMaxPcieLinkWidth                      Answer[int]                     `yaml:"GetMaxPcieLinkWidth"`
	GetCurrPcieLinkGeneration                Answer[int]                     `yaml:"GetCurrPcieLinkGeneration"`
	GetCurrPcieLinkWidth                     Answer[int]                     `yaml:"GetCurrPcieLinkWidth"`
	GetGpuFabricInfo                         Answer[Fabric]                  `yaml:"GetGpuFabricInfo"`
	GetNvLinkState                           Answer[Links[Switch]]           `yaml:"GetNvLinkState"`
	GetNvLinkVersion                         Answer[Links[LinkVersion]]      `yaml:"GetNvLinkVersion"`
	GetNvLinkRemoteDeviceType                Answer[Links[LinkEnd]]          `yaml:"GetNvLinkRemoteDeviceType"`
	GetNvLinkRemotePciInfo                   Answer[Links[Address]]          `yaml:"GetNvLinkRemotePciInfo"`
	GetTopologyCommonAncestor                Answer[map[Address]Proximity]   `yaml:"GetTopologyCommonAncestor"`
	GetVirtualizationMode                    Answer[Virtualization]          `yaml:"GetVirtualizationMode"`
	GetGridLicensableFeatures                Answer[License]                 `yaml:"GetGridLicensableFeatures"`
	GetSupportedEventTypes                   Answer[uint64]                  `yaml:"GetSupportedEventTypes"`
	errors                                   map[string]Error                // of other calls, which have no values
}

// Capability is the answer of GetCudaComputeCapability.
type Capability struct {
	Major int `yaml:"major"`
	Minor int `yaml:"minor"`
}

// Memory is the answer of GetMemoryInfo and GetMemoryInfo_v2, in bytes. Free is derived.
type Memory struct {
	Total    uint64 `yaml:"total"`
	Reserved uint64 `yaml:"reserved"` // by the driver; only the newer call separates it from Used
	Used     uint64 `yaml:"used"`     // initially; then the state of the node has it
}

// ModeChange is a mode that takes effect with the next reset.
type ModeChange struct {
	Current Switch `yaml:"current"`
	Pending Switch `yaml:"pending"`
}

// MigMode is the answer of GetMigMode: 0 or 1 each.
type MigMode struct {
	Current int `yaml:"current"`
	Pending int `yaml:"pending"`
}

// Utilization is the answer of GetUtilizationRates, in percent.
type Utilization struct {
	GPU    uint32 `yaml:"gpu"`
	Memory uint32 `yaml:"memory"`
}

// Fabric is the answer of GetGpuFabricInfo.
type Fabric struct {
	State       FabricState `yaml:"state"`
	Status      int         `yaml:"status"` // an nvmlReturn_t: 0 is success
	CliqueID    uint32      `yaml:"cliqueId"`
	ClusterUUID string      `yaml:"clusterUuid"`
}

// License is the answer of GetGridLicensableFeatures: the feature that is enabled.
type License struct {
	Product  string `yaml:"product"`  // empty: no feature is enabled
	Licensed Switch `yaml:"licensed"` // initially; then the state of the node has it
	Expiry   string `yaml:"expiry"`   // "2027-01-31T00:00:00Z"; empty: NVML does not say
}

// Answer is the answer to a call: a value or an error. The zero Answer is ERROR_NOT_SUPPORTED.
type Answer[T any] struct {
	value T
	err   Error
	given bool
}

// Get returns the value, or the error with the zero value.
func (a Answer[T]) Get() (T, Error) {
	var zero T
	if !a.given {
		return zero, NotSupported
	}
	if a.err != "" {
		return zero, a.err
	}
	return a.value, ""
}

// Value returns the answer v.
func Value[T any](v T) Answer[T] { return Answer[T]{value: v, given: true} }

// Failure returns the answer e.
func Failure[T any](e Error) Answer[T] { return Answer[T]{err: e, given: true} }

// Or returns the answer if the profile has one, otherwise the value.
func (a Answer[T]) Or(value T) Answer[T] {
	if a.given {
		return a
	}
	return Value(value)
}

// With returns the answer with another value. An error stays.
func (a Answer[T]) With(value T) Answer[T] {
	a.value = value
	return a
}

// ValueOr returns the value of the answer, or the given one if it has none.
func (a Answer[T]) ValueOr(value T) T {
	if v, e := a.Get(); e == "" {
		return v
	}
	return value
}

func (a *Answer[T]) decode(d *decoder, path string, n *yaml.Node) {
	*a = Answer[T]{given: true}
	if isError(n) {
		a.err = decodeError(d, path, n)
		return
	}
	d.value(path, n, reflect.ValueOf(&a.value).Elem())
}

func isError(n *yaml.Node) bool {
	return n.Kind == yaml.MappingNode && len(n.Content) == 2 && n.Content[0].Value == "error"
}

func decodeError(d *decoder, path string, n *yaml.Node) Error {
	name := n.Content[1]
	if _, ok := errorNumbers[name.Value]; !ok {
		d.problem(join(path, "error"), name, "%s is not one of %s", show(name), strings.Join(byNumber(errorNumbers),
			", "))
	}
	return Error(name.Value)
}

// decode decodes the answers. Calls whose values are not simulated may still have an error.
func (c *Calls) decode(d *decoder, path string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		d.problem(path, n, "%s: want a map from NVML calls to their answers", show(n))
		return
	}
	c.errors = maps.Clone(c.errors)
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, item := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		if seen[key.Value] {
			d.problem(at, key, "given twice")
		}
		seen[key.Value] = true
		if field, ok := fieldNamed(reflect.ValueOf(c).Elem(), key.Value); ok {
			d.value(at, item, field)
			continue
		}
		if !KnownCall(key.Value) {
			d.problem(at, key, "%v", UnknownCall(key.Value))
			continue
		}
		if !isError(item) {
			d.problem(at, item, "this call can only answer {error: NAME} here; calls with values: %s",
				strings.Join(fieldNames(reflect.TypeFor[Calls]()), ", "))
			continue
		}
		if c.errors == nil {
			c.errors = map[string]Error{}
		}
		c.errors[key.Value] = decodeError(d, at, item)
	}
}

// Errors returns the calls whose answer in the profile is an error.
func (c Calls) Errors() map[string]Error {
	out := maps.Clone(c.errors)
	if out == nil {
		out = map[string]Error{}
	}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("yaml")
		if tag == "" {
			continue
		}
		if a, ok := v.Field(i).Interface().(interface{ failure() Error }); ok && a.failure() != "" {
			out[tag] = a.failure()
		}
	}
	return out
}

func (a Answer[T]) failure() Error { return a.err }

// ErrorOnly returns the profile's error for a call without values, "" if it has none.
func (c Calls) ErrorOnly(call string) Error { return c.errors[call] }

// ErrorOf returns the profile's error for a call whose values are not simulated, ERROR_NOT_SUPPORTED if it has none.
func (g GPU) ErrorOf(call string) Error {
	if e := g.Calls.ErrorOnly(call); e != "" {
		return e
	}
	return NotSupported
}

// SetError sets the error of a call whose values are not simulated.
func (c *Calls) SetError(call string, e Error) {
	c.errors = maps.Clone(c.errors)
	if c.errors == nil {
		c.errors = map[string]Error{}
	}
	c.errors[call] = e
}

// HandleCall is the call that returns the handle of a GPU. In a profile it means all such calls.
const HandleCall = "DeviceGetHandleByIndex"

// WaitCall is the call that waits for events of GPUs. An error in a profile means the waits for that GPU.
const WaitCall = "EventSetWait"

//go:embed calls.txt
var callList string

// knownCalls are the names of all methods of go-nvml's Device, sorted; a test in simulator compares them.
var knownCalls = strings.Fields(callList)

// instanceCalls are the simulated calls about GPU instances and compute instances, by the names of go-nvml's Interface.
var instanceCalls = []string{
	"ComputeInstanceDestroy", "ComputeInstanceGetInfo", "GpuInstanceCreateComputeInstance", "GpuInstanceDestroy",
	"GpuInstanceGetComputeInstanceById", "GpuInstanceGetComputeInstanceProfileInfo",
	"GpuInstanceGetComputeInstances", "GpuInstanceGetInfo",
}

// InstanceCalls returns the simulated calls about GPU instances and compute instances, sorted.
func InstanceCalls() []string { return slices.Clone(instanceCalls) }

// KnownCall reports whether name is go-nvml's name of a device call, a call about instances, HandleCall or WaitCall.
func KnownCall(name string) bool {
	_, found := slices.BinarySearch(knownCalls, name)
	return found || name == HandleCall || name == WaitCall || slices.Contains(instanceCalls, name)
}

// UnknownCall returns the error for an unknown call.
func UnknownCall(name string) error {
	return fmt.Errorf("NVML has no device call %q; the calls are the methods of go-nvml's Device, such as %s", name,
		strings.Join(similar(name), ", "))
}

// similar returns up to three calls that share the most pairs of letters with the name.
func similar(name string) []string {
	score := func(call string) int {
		n := 0
		for i := range max(0, len(name)-1) {
			if strings.Contains(strings.ToLower(call), strings.ToLower(name[i:i+2])) {
				n += 2
			}
		}
		return n * 100 / (len(call) + len(name) + 1)
	}
	calls := slices.Concat(knownCalls, instanceCalls)
	slices.SortStableFunc(calls, func(a, b string) int { return score(b) - score(a) })
	return calls[:3]
}

// Links has answers by NVLink number. A file may write a range of links as "0-17".
type Links[T any] map[int]T

func (l *Links[T]) decode(d *decoder, path string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		d.problem(path, n, "%s: want a map from links (0, or 0-17) to answers", show(n))
		return
	}
	*l = Links[T]{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		at := join(path, key.Value)
		first, last, err := linkRange(key.Value)
		if err != nil {
			d.problem(at, key, "%v", err)
			continue
		}
		var item T
		d.value(at, n.Content[i+1], reflect.ValueOf(&item).Elem())
		for link := first; link <= last; link++ {
			if _, twice := (*l)[link]; twice {
				d.problem(at, key, "link %d is given twice", link)
			}
			(*l)[link] = item
		}
	}
}

// MaxLinks is the number of NVLinks per GPU in NVML (NVML_NVLINK_MAX_LINKS).
const MaxLinks = 36

func linkRange(s string) (first, last int, err error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 0 || last < first || last >= MaxLinks {
		return 0, 0, fmt.Errorf("want a link from 0 to %d or a range of links such as 0-17", MaxLinks-1)
	}
	return first, last, nil
}
