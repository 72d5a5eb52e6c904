// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Sharing says how the containers and pods of a claim share its devices. At most one field is set; none: the driver
// configures no sharing.
type Sharing struct {
	TimeSlicing *TimeSlicing
	MPS         *MPS
}

// TimeSlicing lets processes use the GPU in turns.
type TimeSlicing struct {
	Interval string // the time slice: one of Intervals
}

// DefaultInterval is the factory default of the GPU.
const DefaultInterval = "Default"

// Intervals are the time slices that a claim can ask for.
var Intervals = []string{DefaultInterval, "Short", "Medium", "Long"}

// MPS lets processes run at the same time, as clients of CUDA's Multi-Process Service. The zero value sets no limits.
type MPS struct {
	ThreadPercentage int    // of the multiprocessors for each client, 1 to 100; 0: no limit
	Memory           uint64 // bytes of each device for each client; 0: no limit
	// MemoryPerDevice overrides Memory for single devices, by index among those of the configuration, or by UUID.
	MemoryPerDevice map[string]uint64
	MultiUser       bool // clients of different user IDs run at the same time
}

// Limits reports whether any limit is set.
func (m MPS) Limits() bool {
	return m.ThreadPercentage != 0 || m.Memory != 0 || len(m.MemoryPerDevice) > 0
}

const (
	strategyTimeSlicing = "TimeSlicing"
	strategyMPS         = "MPS"
)

// minMemoryLimit is the smallest memory limit: MPS counts in MiB.
const minMemoryLimit = 1 << 20

// sharingJSON is the JSON form of Sharing.
type sharingJSON struct {
	Strategy          *string          `json:"strategy,omitempty" doc:"TimeSlicing or MPS; on a share of a GPU, TimeSlicing means that it is counted and not enforced"`
	TimeSlicingConfig *timeSlicingJSON `json:"timeSlicingConfig,omitempty" doc:"for the strategy TimeSlicing on GPUs"`
	MPSConfig         *mpsJSON         `json:"mpsConfig,omitempty" doc:"for the strategy MPS; the memory limit of a share of a GPU is what its request asks for, not set here"`
}

type timeSlicingJSON struct {
	Interval *string `json:"interval,omitempty" doc:"how long a process may use the GPU while others wait: Default, Short, Medium or Long"`
}

type mpsJSON struct {
	DefaultActiveThreadPercentage     *int                    `json:"defaultActiveThreadPercentage,omitempty" doc:"percent of the multiprocessors for each client, 1 to 100; for a share of a GPU, at least the cores that its request asks for: those are counted, and this is the limit"`
	DefaultPinnedDeviceMemoryLimit    *quantityJSON           `json:"defaultPinnedDeviceMemoryLimit,omitempty" doc:"memory of each GPU for each client, such as 10Gi; at least 1Mi"`
	DefaultPerDevicePinnedMemoryLimit map[string]quantityJSON `json:"defaultPerDevicePinnedMemoryLimit,omitempty" doc:"the same for single devices, by UUID, or by index, from 0, among the devices that this configuration applies to, in the order of the claim; a configuration of a class numbers the devices of each request by themselves, and devices with admin access have no number"`
	MultiUser                         *bool                   `json:"multiUser,omitempty" doc:"clients of different user ids use the GPUs at the same time; otherwise they take turns"`
}

// quantityJSON is an unparsed quantity, so that an invalid one can be reported with its path.
type quantityJSON string

// UnmarshalJSON accepts any value, which is parsed later.
func (q *quantityJSON) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data) // a number
	}
	*q = quantityJSON(text)
	return nil
}

func (q quantityJSON) bytes(path *field.Path) (uint64, field.ErrorList) {
	quantity, err := resource.ParseQuantity(string(q))
	n, whole := quantity.AsInt64()
	switch {
	case err != nil:
		return 0, field.ErrorList{field.Invalid(path, string(q), "want an amount of memory such as 10Gi or 512Mi")}
	case !whole || n < minMemoryLimit:
		return 0, field.ErrorList{field.Invalid(path, string(q), "must be a whole number of bytes, at least 1Mi")}
	}
	return uint64(n), nil
}

func (in sharingJSON) decode(kind string, path *field.Path) (Sharing, field.ErrorList) {
	if in == (sharingJSON{}) {
		return Sharing{}, nil
	}
	strategies := []string{strategyTimeSlicing, strategyMPS}
	if in.Strategy == nil {
		return Sharing{}, field.ErrorList{field.Required(path.Child("strategy"), fmt.Sprintf("one of %q", strategies))}
	}
	var errs field.ErrorList
	var out Sharing
	switch *in.Strategy {
	case strategyTimeSlicing:
		if in.MPSConfig != nil {
			errs = append(errs, field.Forbidden(path.Child("mpsConfig"), "the strategy is TimeSlicing"))
		}
		if kind == KindMigDeviceConfig && in.TimeSlicingConfig != nil {
			errs = append(errs, field.Forbidden(path.Child("timeSlicingConfig"),
				"a MIG partition has no time-slice of its own"))
		}
		timeSlicing, problems := in.TimeSlicingConfig.decode(path.Child("timeSlicingConfig"))
		out.TimeSlicing, errs = &timeSlicing, append(errs, problems...)
	case strategyMPS:
		if in.TimeSlicingConfig != nil {
			errs = append(errs, field.Forbidden(path.Child("timeSlicingConfig"), "the strategy is MPS"))
		}
		mps, problems := in.MPSConfig.decode(path.Child("mpsConfig"))
		out.MPS, errs = &mps, append(errs, problems...)
	default:
		errs = append(errs, field.NotSupported(path.Child("strategy"), *in.Strategy, strategies))
	}
	return out, errs
}

func (in *timeSlicingJSON) decode(path *field.Path) (TimeSlicing, field.ErrorList) {
	if in == nil || in.Interval == nil {
		return TimeSlicing{Interval: DefaultInterval}, nil
	}
	if !slices.Contains(Intervals, *in.Interval) {
		return TimeSlicing{}, field.ErrorList{field.NotSupported(path.Child("interval"), *in.Interval, Intervals)}
	}
	return TimeSlicing{Interval: *in.Interval}, nil
}

// deviceKey matches the index of a device, or its UUID as NVML writes it.
var deviceKey = regexp.MustCompile(`^([0-9]{1,2}|(GPU|MIG)-[0-9a-fA-F-]+)$`)

func (in *mpsJSON) decode(path *field.Path) (MPS, field.ErrorList) {
	var out MPS
	if in == nil {
		return out, nil
	}
	var errs field.ErrorList
	if p := in.DefaultActiveThreadPercentage; p != nil {
		if *p < 1 || *p > 100 {
			errs = append(errs, field.Invalid(path.Child("defaultActiveThreadPercentage"), *p, "must be from 1 to 100"))
		}
		out.ThreadPercentage = *p
	}
	if q := in.DefaultPinnedDeviceMemoryLimit; q != nil {
		n, problems := q.bytes(path.Child("defaultPinnedDeviceMemoryLimit"))
		out.Memory, errs = n, append(errs, problems...)
	}
	perDevice := path.Child("defaultPerDevicePinnedMemoryLimit")
	for _, device := range slices.Sorted(maps.Keys(in.DefaultPerDevicePinnedMemoryLimit)) {
		at := perDevice.Key(device)
		if !deviceKey.MatchString(device) {
			errs = append(errs, field.Invalid(at, device, "want the index of a device, such as \"0\", or its UUID"))
		}
		n, problems := in.DefaultPerDevicePinnedMemoryLimit[device].bytes(at)
		errs = append(errs, problems...)
		if out.MemoryPerDevice == nil {
			out.MemoryPerDevice = map[string]uint64{}
		}
		out.MemoryPerDevice[device] = n
	}
	out.MultiUser = ptr.Deref(in.MultiUser, false)
	return out, errs
}
