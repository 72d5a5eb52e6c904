// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Feature is an optional part of ResourceSlices. An API server without it drops its fields, or refuses the slice.
type Feature struct {
	Gate    string // of Kubernetes
	Without string // what the driver does without it, for people; empty: nothing that most people would notice
	// example is a device that has it.
	example resourceapi.Device
	// stored reports whether the API server has kept it.
	stored func(resourceapi.Device) bool
	// remove removes it from a device. It returns false if the device cannot be published without it.
	remove func(*resourceapi.Device) bool
	// limit returns a use of the GPU that does without it; nil: every use does.
	limit func(gpu.Device, gpu.Use) gpu.Use
	// since are the versions of Kubernetes that brought it, if no example can show that: a patch for each minor
	// version. All versions after the last one have it.
	since []string
	// partOf are features without which nobody misses it. They come before it in allFeatures.
	partOf []*Feature
}

// The features that the driver uses.
var (
	shares = Feature{
		Gate:    "DRAConsumableCapacity",
		Without: "every GPU is offered as a whole, without shares and replicas",
		example: resourceapi.Device{AllowMultipleAllocations: ptr.To(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {
				Value: resource.MustParse("1"),
				RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("1")),
					ValidValues: []resource.Quantity{resource.MustParse("1")}}}}},
		stored: func(d resourceapi.Device) bool {
			return d.AllowMultipleAllocations != nil && d.Capacity["memory"].RequestPolicy != nil
		},
		remove: func(d *resourceapi.Device) bool {
			d.AllowMultipleAllocations = nil
			capacity := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
			for name, c := range d.Capacity {
				c.RequestPolicy = nil
				capacity[name] = c
			}
			d.Capacity = capacity
			return true
		},
		limit: func(_ gpu.Device, use gpu.Use) gpu.Use {
			return gpu.Use{Sharing: gpu.Exclusive, Partitions: use.Partitions}
		},
	}
	// In Kubernetes 1.34 the scheduler compares what is asked for with what is left of the first device of a slice,
	// whichever device it looks at.
	sharesOfSeveral = Feature{
		Gate: "DRAConsumableCapacity of Kubernetes 1.35 or newer",
		Without: "every GPU is offered as a whole, without shares and replicas, because the scheduler would find no " +
			"GPU as long as the first of a node is taken",
		since:  []string{"1.35.0"},
		partOf: []*Feature{&shares},
		remove: shares.remove,
		limit:  shares.limit,
	}
	counters = Feature{
		Gate: "DRAPartitionableDevices",
		Without: "no partitions are made for claims, because nothing would tie them to their GPU; Kubernetes 1.34 " +
			"has the gate, and cannot store them as this driver publishes them",
		example: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu",
			Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("1")}}}}},
		stored: func(d resourceapi.Device) bool { return len(d.ConsumesCounters) > 0 },
		remove: func(d *resourceapi.Device) bool {
			made := gpu.IsPartition(d.Name) && len(d.ConsumesCounters) > 0 // for claims
			d.ConsumesCounters = nil
			return !made
		},
		limit: func(_ gpu.Device, use gpu.Use) gpu.Use {
			if use.Partitions != gpu.PartitionsStatic {
				use.Partitions = gpu.PartitionsNone
			}
			return use
		},
	}
	// Before, the scheduler ends at a claim with allocationMode: All for devices that consume counters, and again
	// whenever it starts, as long as the pod of the claim waits (kubernetes/kubernetes#138882).
	countersOfAll = Feature{
		Gate: "DRAPartitionableDevices of Kubernetes 1.36.2, or 1.35.6, or newer",
		Without: "no partitions are made for claims, because the scheduler would end at a claim for all GPUs of a " +
			"node (allocationMode: All)",
		since:  []string{"1.35.6", "1.36.2"},
		partOf: []*Feature{&counters},
		remove: counters.remove,
		limit:  counters.limit,
	}
	taints = Feature{
		Gate:    "DRADeviceTaints",
		Without: "a lost or sick GPU is published only while claims hold it",
		example: withTaint(resourceapi.DeviceTaintEffectNoSchedule),
		stored:  func(d resourceapi.Device) bool { return len(d.Taints) > 0 },
		remove: func(d *resourceapi.Device) bool {
			usable := !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
				return t.Effect != resourceapi.DeviceTaintEffectNone
			})
			d.Taints = nil
			return usable
		},
	}
	// Kubernetes 1.34 does not know the effect.
	taintsNone = Feature{
		Gate:    "DRADeviceTaints of Kubernetes 1.35 or newer",
		Without: "GPUs that are not watched have no taint that says so",
		example: withTaint(resourceapi.DeviceTaintEffectNone),
		stored:  func(d resourceapi.Device) bool { return len(d.Taints) > 0 },
		remove: func(d *resourceapi.Device) bool {
			d.Taints = slices.DeleteFunc(slices.Clone(d.Taints), func(t resourceapi.DeviceTaint) bool {
				return t.Effect == resourceapi.DeviceTaintEffectNone
			})
			return true
		},
		partOf: []*Feature{&taints},
	}
	// Before 1.36.2 the scheduler does not deduct the counters of devices with shares.
	sharesWithCounters = Feature{
		Gate: "DRAConsumableCapacity of Kubernetes 1.36.2 or newer",
		Without: "GPUs whose partitions are made for claims, and these partitions, have no shares, because the " +
			"scheduler would give shares of a GPU and its partitions at once",
		since:  []string{"1.36.2"},
		partOf: []*Feature{&sharesOfSeveral, &counters, &countersOfAll},
		remove: func(*resourceapi.Device) bool { return true },
		limit: func(d gpu.Device, use gpu.Use) gpu.Use {
			if makesPartitions(d, use) {
				return gpu.Use{Sharing: gpu.Exclusive, Partitions: use.Partitions}
			}
			return use
		},
	}
	// Before 1.37, when a claim that has no amount of a GPU ends, the scheduler takes the GPU's counters for used up as
	// long as another claim has the GPU.
	unlimitedWithCounters = Feature{
		Gate:   "DRAConsumableCapacity of Kubernetes 1.37 or newer",
		since:  []string{"1.37.0"},
		partOf: []*Feature{&sharesWithCounters},
		remove: func(*resourceapi.Device) bool { return true },
		limit: func(d gpu.Device, use gpu.Use) gpu.Use {
			if use.Sharing == gpu.Unlimited && makesPartitions(d, use) {
				use.Partitions = gpu.PartitionsNone
			}
			return use
		},
	}
	allFeatures = []*Feature{&shares, &sharesOfSeveral, &counters, &countersOfAll, &taints, &taintsNone,
		&sharesWithCounters, &unlimitedWithCounters}
)

// makesPartitions reports whether partitions of the GPU are made for claims.
func makesPartitions(d gpu.Device, use gpu.Use) bool {
	return (d.MIG.Enabled || d.MIG.Switchable) &&
		(use.Partitions == gpu.PartitionsAuto || use.Partitions == gpu.PartitionsDynamic)
}

func withTaint(effect resourceapi.DeviceTaintEffect) resourceapi.Device {
	return resourceapi.Device{Taints: []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/example", Effect: effect}}}
}

const (
	// askAgain is the time between attempts while the API server does not answer.
	askAgain = 2 * time.Second
	// askPeriod is how often the API server is asked again, because it may have been upgraded or restarted with other
	// feature gates.
	askPeriod = time.Hour
)

// ServerConfig is the configuration of a Server.
type ServerConfig struct {
	Client   kubernetes.Interface
	Driver   string
	NodeName string
	Records  report.Lister
	Reporter *report.Reporter
	// Changed is called when the answer has changed. It must not block.
	Changed func()
}

// Server knows which features of slices the API server has. It asks with dry runs, before anything is published, so
// that no slice is ever visible without the fields that it needs.
type Server struct {
	ServerConfig
	lacks   atomic.Pointer[[]*Feature]
	dropped atomic.Pointer[[]string] // the last argument of Unstored
	known   chan struct{}            // closed with the first answer
	once    sync.Once
	now     chan struct{}
}

// NewServer returns a Server that knows nothing yet.
func NewServer(c ServerConfig) *Server {
	return &Server{ServerConfig: c, known: make(chan struct{}), now: make(chan struct{}, 1)}
}

// Known is closed when the API server has answered.
func (s *Server) Known() <-chan struct{} { return s.known }

// Unstored makes Run ask again at once: the API server has refused a slice, or dropped what these feature gates are
// for.
func (s *Server) Unstored(gates []string) {
	s.dropped.Store(&gates)
	select {
	case s.now <- struct{}{}:
	default: // it is about to
	}
}

// lacking returns the features that the API server does not have; none before its first answer.
func (s *Server) lacking() []*Feature {
	if s == nil {
		return nil
	}
	if lacks := s.lacks.Load(); lacks != nil {
		return *lacks
	}
	return nil
}

// limit returns the use of the GPU without what the API server lacks.
func (s *Server) limit(d gpu.Device, use gpu.Use) gpu.Use {
	for _, f := range s.lacking() {
		if f.limit != nil {
			use = f.limit(d, use)
		}
	}
	return use
}

// Run asks the API server until ctx ends.
func (s *Server) Run(ctx context.Context) {
	for {
		period := askPeriod
		if lacks, err := s.ask(ctx); err != nil {
			klog.FromContext(ctx).Info("The API server does not say which features it has", "err", err)
			period = askAgain
		} else {
			s.learn(ctx, lacks)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.now:
		case <-time.After(period):
		}
	}
}

func (s *Server) learn(ctx context.Context, lacks []*Feature) {
	before := s.lacking()
	s.lacks.Store(&lacks)
	s.once.Do(func() { close(s.known) })
	if slices.Equal(before, lacks) {
		return
	}
	var gates, texts []string
	for _, f := range lacks {
		gates = append(gates, f.Gate)
		if f.Without != "" {
			texts = append(texts, fmt.Sprintf("without the feature gate %s, %s", f.Gate, f.Without))
		}
	}
	klog.FromContext(ctx).Info("Features that the API server lacks", "gates", gates, "without", texts)
	if len(texts) > 0 {
		s.Reporter.Node(report.Events.FieldsDropped, "the API server lacks features: "+strings.Join(texts, "; "))
	}
	s.Changed()
}

// ask returns the features that the API server does not have, in the order of allFeatures.
func (s *Server) ask(ctx context.Context) ([]*Feature, error) {
	has, errs := make([]bool, len(allFeatures)), make([]error, len(allFeatures))
	var all sync.WaitGroup
	for i, f := range allFeatures {
		all.Go(func() { has[i], errs[i] = s.has(ctx, f) })
	}
	all.Wait()
	lacks, without := []*Feature{}, map[*Feature]bool{}
	for i, f := range allFeatures {
		moot := slices.ContainsFunc(f.partOf, func(whole *Feature) bool { return without[whole] })
		if !has[i] && !moot {
			lacks = append(lacks, f)
		}
		without[f] = !has[i] || moot
	}
	return lacks, errors.Join(errs...)
}

// has creates a slice with an example of the feature, as a dry run, or asks for the version.
func (s *Server) has(ctx context.Context, f *Feature) (bool, error) {
	if f.since != nil {
		return s.isSince(ctx, f.since)
	}
	device := f.example
	device.Name = "example"
	pools := map[string]resourceslice.Pool{s.NodeName: {Slices: []resourceslice.Slice{{
		Devices: []resourceapi.Device{device}}}}}
	slice, err := s.Client.ResourceV1().ResourceSlices().Create(ctx, inventory.Slices(s.Driver, s.NodeName, pools)[0],
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsInvalid(err):
		return false, nil
	case apierrors.IsBadRequest(err) || apierrors.IsForbidden(err): // some webhook allows no dry runs
		klog.FromContext(ctx).Info("Dry run refused: what the API server lacks is known only when it has dropped it",
			"err", err)
		dropped := s.dropped.Load()
		return dropped == nil || !slices.Contains(*dropped, f.Gate), nil
	case err != nil:
		return false, err
	}
	return len(slice.Spec.Devices) == 1 && f.stored(slice.Spec.Devices[0]), nil
}

// isSince reports whether the API server has at least the last of these versions of Kubernetes, or at least another one
// of the same minor version, or does not say its version.
//
// The scheduler, which some features are about, tells nobody its version. It may be older, at most by a minor version,
// and mostly is only during an upgrade: docs/versions.md says what to do then.
func (s *Server) isSince(ctx context.Context, since []string) (bool, error) {
	is, err := s.Client.Discovery().ServerVersion()
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		return false, err
	}
	if err == nil {
		var v *version.Version
		if v, err = version.ParseGeneric(is.GitVersion); err == nil {
			return has(v, since), nil
		}
	}
	klog.FromContext(ctx).Info("The API server does not say its version", "err", err)
	return true, nil
}

// has reports whether a version has what these versions brought.
func has(v *version.Version, since []string) bool {
	return slices.ContainsFunc(since, func(text string) bool {
		first := version.MustParseGeneric(text)
		isLast := text == since[len(since)-1]
		return v.AtLeast(first) && (isLast || v.Major() == first.Major() && v.Minor() == first.Minor())
	})
}

// Fit returns the pool as the API server can store it. Devices that need what it lacks are left out, unless a claim
// holds them: the scheduler would forget the allocation.
func (s *Server) Fit(pool resourceslice.Pool) resourceslice.Pool {
	lacks := s.lacking()
	if len(lacks) == 0 {
		return pool
	}
	all, err := s.Records.List()
	r := newRecords("", nil, all, err)
	noCounters := slices.Contains(lacks, &counters) || slices.Contains(lacks, &countersOfAll)
	fitted := pool
	fitted.Slices = nil
	for _, slice := range pool.Slices {
		if len(slice.SharedCounters) > 0 && noCounters {
			continue
		}
		var devices []resourceapi.Device
		for _, d := range slice.Devices {
			// Without counters, nothing else tells the scheduler that a claim holds a partition of the GPU.
			usable := !noCounters || len(d.ConsumesCounters) == 0 || !r.touches(d.Name)
			for _, f := range lacks {
				usable = f.remove(&d) && usable
			}
			if usable || r.claimed(d.Name) {
				devices = append(devices, d)
			}
		}
		slice.Devices = devices
		if len(devices) > 0 || len(slice.SharedCounters) > 0 {
			fitted.Slices = append(fitted.Slices, slice)
		}
	}
	if len(fitted.Slices) == 0 {
		fitted.Slices = []resourceslice.Slice{{}} // the driver runs
	}
	return fitted
}
