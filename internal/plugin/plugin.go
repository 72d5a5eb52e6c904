// SPDX-License-Identifier: Apache-2.0

// Package plugin is the side of the driver that the kubelet sees.
package plugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Preparer does the work: see package claims.
type Preparer interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (checkpoint.Record, error)
	Unprepare(ctx context.Context, claim types.UID) error
}

// plugin answers the kubelet.
type plugin struct {
	preparer  Preparer
	metrics   *metrics
	reporter  *reporter
	inventory func() inventory.Inventory
	looked    <-chan struct{}         // closed when it is known whether claims can be prepared
	fatal     context.CancelCauseFunc // ends the process
	uncounted func()                  // called when the API server keeps no counters
	dropped   sync.Once               // fields of slices that the API server does not know
}

var _ kubeletplugin.DRAPlugin = &plugin{}

// PrepareResourceClaims prepares all claims at once: none waits for another. A call that comes while the plugin starts waits: the
// kubelet would try again only many seconds later.
func (p *plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	select {
	case <-p.looked:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	results := make([]kubeletplugin.PrepareResult, len(claims))
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() { results[i] = p.prepare(ctx, claim) })
	}
	all.Wait()
	answer := map[types.UID]kubeletplugin.PrepareResult{}
	for i, claim := range claims {
		answer[claim.UID] = results[i]
	}
	return answer, nil
}

func (p *plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(claim), "claimUID", claim.UID)
	var rec checkpoint.Record
	err := p.metrics.operation("prepare", func() (err error) {
		rec, err = p.preparer.Prepare(ctx, claim)
		return err
	})
	if err != nil {
		logger.Error(err, "Claim not prepared")
		p.reporter.failed(claim, err)
		return kubeletplugin.PrepareResult{Err: err}
	}
	inv := p.inventory()
	result := kubeletplugin.PrepareResult{}
	var names []string
	for i, g := range rec.Grants {
		result.Devices = append(result.Devices, device(g, rec.Plan.Assignments[i], inv))
		names = append(names, g.Device)
	}
	logger.Info("Claim prepared", "devices", names)
	p.reporter.prepared(claim, rec, inv)
	return result
}

// device is a grant in the words of kubeletplugin, whose types are not stored. The container is told what the device is
// (KEP-5304), every time anew: a repeated Prepare without it would leave it with nothing.
func device(g checkpoint.Grant, a sharing.Assignment, inv inventory.Inventory) kubeletplugin.Device {
	attributes := inv.Attributes(g.Pool, g.Device)
	if a.Partition != nil && attributes != nil { // where it is published, it does not exist yet
		attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: (*string)(&a.Partition.UUID)}
	}
	d := kubeletplugin.Device{
		Metadata:     &kubeletplugin.DeviceMetadata{Attributes: attributes},
		Requests:     []string{g.Request},
		PoolName:     g.Pool,
		DeviceName:   g.Device,
		CDIDeviceIDs: g.CDI,
	}
	if g.ShareID != "" {
		d.ShareID = &g.ShareID
	}
	return d
}

// UnprepareResourceClaims takes all claims back at once.
func (p *plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	errs := make([]error, len(claims))
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() { errs[i] = p.unprepare(ctx, claim) })
	}
	all.Wait()
	answer := map[types.UID]error{}
	for i, claim := range claims {
		answer[claim.UID] = errs[i]
	}
	return answer, nil
}

func (p *plugin) unprepare(ctx context.Context, claim kubeletplugin.NamespacedObject) error {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	err := p.metrics.operation("unprepare", func() error { return p.preparer.Unprepare(ctx, claim.UID) })
	if err != nil {
		logger.Error(err, "Claim not released")
		return err
	}
	logger.Info("Claim released")
	return nil
}

// partitionableGate is the feature of the API server that keeps counters. Without them the scheduler takes a GPU and its partitions for
// devices that have nothing to do with each other.
const partitionableGate = "DRAPartitionableDevices"

// HandleError is told of what goes wrong in the background, such as publishing. What a retry cannot mend ends the process.
func (p *plugin) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	var dropped *resourceslice.DroppedFieldsError
	if errors.As(err, &dropped) {
		if slices.Contains(dropped.DisabledFeatures(), partitionableGate) {
			p.uncounted()
		}
		p.dropped.Do(func() {
			p.reporter.machine(Events.FieldsDropped,
				"the API server does not know some of what describes the GPUs and left it out: enable the feature gates %s, or do without what they give",
				strings.Join(dropped.DisabledFeatures(), ", "))
		})
	}
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(err)
	}
}

// WatchHealthStatus declines: the health of GPUs is not watched yet.
func (p *plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
