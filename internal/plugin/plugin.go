// SPDX-License-Identifier: Apache-2.0

// Package plugin is the side of the driver that the kubelet sees.
package plugin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
)

// Preparer does the work: see package claims.
type Preparer interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]checkpoint.Grant, error)
	Unprepare(ctx context.Context, claim types.UID) error
}

// plugin answers the kubelet.
type plugin struct {
	preparer Preparer
	fatal    context.CancelCauseFunc // ends the process
	calls    atomic.Int64            // in flight
}

var _ kubeletplugin.DRAPlugin = &plugin{}

// PrepareResourceClaims prepares all claims at once: none waits for another.
func (p *plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	p.calls.Add(1)
	defer p.calls.Add(-1)
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
	grants, err := p.preparer.Prepare(ctx, claim)
	if err != nil {
		logger.Error(err, "Claim not prepared")
		return kubeletplugin.PrepareResult{Err: err}
	}
	result := kubeletplugin.PrepareResult{}
	var names []string
	for _, g := range grants {
		result.Devices = append(result.Devices, device(g))
		names = append(names, g.Device)
	}
	logger.Info("Claim prepared", "devices", names)
	return result
}

// device is a grant in the words of kubeletplugin, whose types are not stored.
func device(g checkpoint.Grant) kubeletplugin.Device {
	d := kubeletplugin.Device{
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
	p.calls.Add(1)
	defer p.calls.Add(-1)
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
	if err := p.preparer.Unprepare(ctx, claim.UID); err != nil {
		logger.Error(err, "Claim not released")
		return err
	}
	logger.Info("Claim released")
	return nil
}

// HandleError is told of what goes wrong in the background, such as publishing. What a retry cannot mend ends the process.
func (p *plugin) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(err)
	}
}

// WatchHealthStatus declines: the health of GPUs is not watched yet.
func (p *plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
