// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// feature is an optional part of ResourceSlices. An API server without it drops its fields, or refuses the slice.
type feature struct {
	gate    string // of Kubernetes
	without string // what the driver does without it, for people; empty: nothing that most people would notice
	// example is a device that has it.
	example resourceapi.Device
	// stored reports whether the API server has kept it.
	stored func(resourceapi.Device) bool
	// remove removes it from a device. It returns false if the device cannot be published without it.
	remove func(*resourceapi.Device) bool
	// limit returns a use of the GPU that does without it; nil: every use does.
	limit func(gpu.Device, gpu.SharingMode) gpu.SharingMode
	// since are the versions of Kubernetes that brought it, if no example can show that: a patch for each minor
	// version. All versions after the last one have it.
	since []string
	// partOf are features that it extends: without one of them it is not missed. They come before it in allFeatures.
	partOf []*feature
}

// The features that the driver uses.
var (
	shares = feature{
		gate:    "DRAConsumableCapacity",
		without: "every GPU is offered as a whole, without shares and replicas",
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
		limit: func(_ gpu.Device, use gpu.SharingMode) gpu.SharingMode {
			return gpu.SharingMode{Sharing: gpu.Exclusive, Partitions: use.Partitions,
				NoPassthrough: use.NoPassthrough}
		},
	}
	// In Kubernetes 1.34 the scheduler compares what is asked for with what is left of the first device of a slice,
	// whichever device it looks at.
	sharesOfSeveral = feature{
		gate: "DRAConsumableCapacity of Kubernetes 1.35 or newer",
		without: "every GPU is offered as a whole, without shares and replicas, because the scheduler would find no " +
			"GPU as long as the first of a node is taken",
		since:  []string{"1.35.0"},
		partOf: []*feature{&shares},
		remove: shares.remove,
		limit:  shares.limit,
	}
	counters = feature{
		gate: "DRAPartitionableDevices",
		without: "no partitions are made for claims, and no GPU is given to a virtual machine, because nothing would " +
			"tie them to their GPU; Kubernetes 1.34 has the gate, and cannot store them as this driver publishes them",
		example: resourceapi.Device{ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu",
			Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("1")}}}}},
		stored: func(d resourceapi.Device) bool { return len(d.ConsumesCounters) > 0 },
		remove: func(d *resourceapi.Device) bool {
			made := (gpu.IsPartition(d.Name) || gpu.IsVFIO(d.Name) || gpu.IsVGPU(d.Name)) &&
				len(d.ConsumesCounters) > 0 // for claims
			d.ConsumesCounters = nil
			return !made
		},
		limit: func(d gpu.Device, use gpu.SharingMode) gpu.SharingMode {
			if use.Partitions != gpu.PartitionsStatic {
				use.Partitions = gpu.PartitionsNone
			}
			return withoutPassthrough(d, use)
		},
	}
	// Before, the scheduler ends at a claim with allocationMode: All for devices that consume counters, and again
	// whenever it starts, as long as the pod of the claim waits (kubernetes/kubernetes#138882).
	countersOfAll = feature{
		gate: "DRAPartitionableDevices of Kubernetes 1.36.2, or 1.35.6, or newer",
		without: "no partitions are made for claims, and no GPU is given to a virtual machine, because the scheduler " +
			"would end at a claim for all GPUs of a node (allocationMode: All)",
		since:  []string{"1.35.6", "1.36.2"},
		partOf: []*feature{&counters},
		remove: counters.remove,
		limit:  counters.limit,
	}
	taints = feature{
		gate:    "DRADeviceTaints",
		without: "a lost or sick GPU is published only while claims hold it",
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
	taintsNone = feature{
		gate:    "DRADeviceTaints of Kubernetes 1.35 or newer",
		without: "GPUs that are not watched have no taint that says so",
		example: withTaint(resourceapi.DeviceTaintEffectNone),
		stored:  func(d resourceapi.Device) bool { return len(d.Taints) > 0 },
		remove: func(d *resourceapi.Device) bool {
			d.Taints = slices.DeleteFunc(slices.Clone(d.Taints), func(t resourceapi.DeviceTaint) bool {
				return t.Effect == resourceapi.DeviceTaintEffectNone
			})
			return true
		},
		partOf: []*feature{&taints},
	}
	// Before 1.36.2 the scheduler does not deduct the counters of devices with shares.
	sharesWithCounters = feature{
		gate: "DRAConsumableCapacity of Kubernetes 1.36.2 or newer",
		without: "GPUs whose partitions are made for claims, and these partitions, have no shares, and other GPUs " +
			"with shares are not given to virtual machines, because the scheduler would give shares of a GPU and " +
			"its other devices at once",
		since:  []string{"1.36.2"},
		partOf: []*feature{&sharesOfSeveral, &counters, &countersOfAll},
		remove: func(*resourceapi.Device) bool { return true },
		limit: func(d gpu.Device, use gpu.SharingMode) gpu.SharingMode {
			switch {
			case makesPartitions(d, use):
				return gpu.SharingMode{Sharing: gpu.Exclusive, Partitions: use.Partitions,
					NoPassthrough: use.NoPassthrough}
			case use.Sharing != gpu.Exclusive:
				return withoutPassthrough(d, use)
			}
			return use
		},
	}
	// Before 1.37, when a claim that has no amount of a GPU ends, the scheduler takes the GPU's counters for used up as
	// long as another claim has the GPU.
	unlimitedWithCounters = feature{
		gate:   "DRAConsumableCapacity of Kubernetes 1.37 or newer",
		since:  []string{"1.37.0"},
		partOf: []*feature{&sharesWithCounters},
		remove: func(*resourceapi.Device) bool { return true },
		limit: func(d gpu.Device, use gpu.SharingMode) gpu.SharingMode {
			if use.Sharing != gpu.Unlimited {
				return use
			}
			if makesPartitions(d, use) {
				use.Partitions = gpu.PartitionsNone
			}
			return withoutPassthrough(d, use)
		},
	}
	allFeatures = []*feature{&shares, &sharesOfSeveral, &counters, &countersOfAll, &taints, &taintsNone,
		&sharesWithCounters, &unlimitedWithCounters}
)

// makesPartitions reports whether partitions of the GPU are made for claims.
func makesPartitions(d gpu.Device, use gpu.SharingMode) bool {
	return (d.MIG.Enabled || d.MIG.Switchable) &&
		use.Partitions != gpu.PartitionsNone && use.Partitions != gpu.PartitionsStatic
}

// withoutPassthrough returns the use of a GPU without virtual machines, unless they are its only use: such a GPU, and
// vGPUs that somebody else has made, need no counters.
func withoutPassthrough(d gpu.Device, use gpu.SharingMode) gpu.SharingMode {
	switch {
	case len(d.VGPUs.Foreign()) > 0:
	case d.VFIO != nil && !d.VFIO.External(), d.VGPUs != nil:
		use.NoPassthrough = true
	}
	return use
}

func withTaint(effect resourceapi.DeviceTaintEffect) resourceapi.Device {
	return resourceapi.Device{Taints: []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/example", Effect: effect}}}
}

const (
	// retryPeriod is the time between attempts while the API server does not answer.
	retryPeriod = 2 * time.Second
	// askPeriod is how often the API server is asked again, because it may have been upgraded or restarted with other
	// feature gates.
	askPeriod = time.Hour
)

// Gates knows which feature gates of ResourceSlices the API server has on. It asks with dry runs, before anything is
// published, so that no slice is ever visible without the fields that it needs.
type Gates struct {
	PublisherConfig
	lacks   atomic.Pointer[Lacking]
	dropped atomic.Pointer[[]string] // gates whose fields the API server has dropped
	known   chan struct{}            // closed with the first answer
	now     chan struct{}            // has a value when the API server is to be asked at once
	changed chan struct{}
}

// newGates returns Gates about which nothing is known yet.
func newGates(c PublisherConfig) *Gates {
	return &Gates{PublisherConfig: c, known: make(chan struct{}), now: make(chan struct{}, 1),
		changed: make(chan struct{}, 1)}
}

// Changed has a value when the answer of the API server has changed since it was last received from.
func (g *Gates) Changed() <-chan struct{} { return g.changed }

// Lacking returns the features that the API server does not have; none before its first answer.
func (g *Gates) Lacking() Lacking {
	if lacks := g.lacks.Load(); lacks != nil {
		return *lacks
	}
	return nil
}

// Lacking are features that the API server does not have.
type Lacking []*feature

// Limit returns the use of the GPU without what the API server lacks.
func (l Lacking) Limit(d gpu.Device, use gpu.SharingMode) gpu.SharingMode {
	for _, f := range l {
		if f.limit != nil {
			use = f.limit(d, use)
		}
	}
	return use
}

// Taints reports whether the API server stores no taints, so that nothing is evicted.
func (l Lacking) Taints() bool { return slices.Contains(l, &taints) }

// Run asks the API server until ctx ends.
func (g *Gates) Run(ctx context.Context) {
	for {
		period := askPeriod
		if lacks, err := g.ask(ctx); err != nil {
			klog.FromContext(ctx).Info("The API server does not say which features it has", "err", err)
			period = retryPeriod
		} else {
			g.learn(ctx, lacks)
		}
		select {
		case <-ctx.Done():
			return
		case <-g.now:
		case <-time.After(period):
		}
	}
}

// failed handles an error of writing a slice, which is tried again. If the API server has refused the slice or dropped
// fields, Run asks again at once.
func (g *Gates) failed(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	var dropped *resourceslice.DroppedFieldsError
	var gates []string
	switch {
	case errors.As(err, &dropped):
		gates = dropped.DisabledFeatures()
	case !apierrors.IsInvalid(err):
		return
	}
	g.dropped.Store(&gates)
	signal(g.now)
}

// signal makes the channel, which has room for one value, have one.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (g *Gates) learn(ctx context.Context, lacks Lacking) {
	before := g.Lacking()
	if g.lacks.Swap(&lacks) == nil {
		close(g.known)
	}
	if slices.Equal(before, lacks) {
		return
	}
	var gates, texts []string
	for _, f := range lacks {
		gates = append(gates, f.gate)
		if f.without != "" {
			texts = append(texts, fmt.Sprintf("without the feature gate %s, %s", f.gate, f.without))
		}
	}
	klog.FromContext(ctx).Info("Features that the API server lacks", "gates", gates, "without", texts)
	if len(texts) > 0 {
		g.Reporter.Node(report.Events.FieldsDropped, "the API server lacks features: "+strings.Join(texts, "; "))
	}
	signal(g.changed)
}

// ask returns the features that the API server does not have, in the order of allFeatures. It takes two requests: when
// the plugins of many nodes start at once, all of them ask.
func (g *Gates) ask(ctx context.Context) (Lacking, error) {
	is, err := g.version(ctx)
	if err != nil {
		return nil, err
	}
	var examples []*feature
	for _, f := range allFeatures {
		if f.since == nil {
			examples = append(examples, f)
		}
	}
	known, err := g.dryRun(ctx, examples)
	if apierrors.IsInvalid(err) { // at least one of them
		known = map[*feature]bool{}
		for _, f := range examples {
			alone, err := g.dryRun(ctx, []*feature{f})
			if err != nil && !apierrors.IsInvalid(err) {
				return nil, err
			}
			known[f] = alone[f]
		}
	} else if err != nil {
		return nil, err
	}
	lacks, without := Lacking{}, map[*feature]bool{}
	for _, f := range allFeatures {
		moot := slices.ContainsFunc(f.partOf, func(whole *feature) bool { return without[whole] })
		stored := known[f] || f.since != nil && (is == nil || has(is, f.since))
		if !stored && !moot {
			lacks = append(lacks, f)
		}
		without[f] = !stored || moot
	}
	return lacks, nil
}

// dryRun creates a slice with an example of each feature, as a dry run, and reports which of them the API server would
// store. The error is Invalid if it does not accept one of them.
func (g *Gates) dryRun(ctx context.Context, features []*feature) (map[*feature]bool, error) {
	var devices []resourceapi.Device
	for i, f := range features {
		devices = append(devices, f.example)
		devices[i].Name = fmt.Sprintf("example-%d", i)
	}
	pools := map[string]inventory.Pool{g.Node: {Slices: []inventory.Slice{{Devices: devices}}}}
	slice, err := g.Client.ResourceV1().ResourceSlices().Create(ctx, inventory.Slices(g.Driver, g.Node, pools)[0],
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	refused := apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) // some webhook allows no dry runs
	if err != nil && !refused {
		return nil, err
	}
	dropped := g.dropped.Load()
	if refused {
		klog.FromContext(ctx).Info("Dry run refused: what the API server lacks is known only when it has dropped it",
			"err", err)
	}
	known := map[*feature]bool{}
	for i, f := range features {
		if refused {
			known[f] = dropped == nil || !slices.Contains(*dropped, f.gate)
		} else {
			known[f] = len(slice.Spec.Devices) == len(features) && f.stored(slice.Spec.Devices[i])
		}
	}
	return known, nil
}

// version returns the version of the API server, or nil if it does not say.
//
// The scheduler, which some features are about, tells nobody its version. It may be older, at most by a minor version,
// and mostly is only during an upgrade: docs/start/compatibility.md says what to do then.
func (g *Gates) version(ctx context.Context) (*version.Version, error) {
	is, err := g.Client.Discovery().ServerVersion()
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		return nil, err
	}
	if err == nil {
		var v *version.Version
		if v, err = version.ParseGeneric(is.GitVersion); err == nil {
			return v, nil
		}
	}
	klog.FromContext(ctx).Info("The API server does not say its version", "err", err)
	return nil, nil
}

// has reports whether a version has what these versions of Kubernetes brought: it is at least the last of them, or at
// least another one of the same minor version.
func has(v *version.Version, since []string) bool {
	return slices.ContainsFunc(since, func(text string) bool {
		first := version.MustParseGeneric(text)
		isLast := text == since[len(since)-1]
		return v.AtLeast(first) && (isLast || v.Major() == first.Major() && v.Minor() == first.Minor())
	})
}

// fit returns the pool as the API server can store it, without what it lacks. Devices that need that are left out,
// unless a claim holds them: the scheduler would forget the allocation.
func (g *Gates) fit(pool inventory.Pool, lacks Lacking) inventory.Pool {
	if len(lacks) == 0 {
		return pool
	}
	records, err := g.Records.List()
	var claimed []string
	for _, rec := range records {
		claimed = append(claimed, rec.Plan.Devices()...)
	}
	held := func(match func(device string) bool) bool { // a record that cannot be read may hold any device
		return err != nil || slices.ContainsFunc(claimed, match)
	}
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
			usable := !noCounters || len(d.ConsumesCounters) == 0 ||
				!held(func(device string) bool { return gpu.ParentName(device) == d.Name })
			for _, f := range lacks {
				usable = f.remove(&d) && usable
			}
			if usable || held(func(device string) bool { return device == d.Name }) {
				devices = append(devices, d)
			}
		}
		slice.Devices = devices
		if len(devices) > 0 || len(slice.SharedCounters) > 0 {
			fitted.Slices = append(fitted.Slices, slice)
		}
	}
	if len(fitted.Slices) == 0 {
		fitted.Slices = []inventory.Slice{{}} // the driver runs
	}
	return fitted
}
