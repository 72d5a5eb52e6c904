// SPDX-License-Identifier: Apache-2.0

// Package kubelet serves the kubelet: it registers the plugin, takes calls, and shuts down without losing one. Package
// claims implements the calls. It must not import the packages node, usage and cleanup.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/guard"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Preparer prepares and unprepares claims: see package claims.
type Preparer interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (checkpoint.PreparedClaim, error)
	Unprepare(ctx context.Context, claim sharing.Claim) error
}

// Server implements the calls of the kubelet.
type Server struct {
	Preparer Preparer
	Metrics  *report.Metrics
	Reporter *report.Reporter
	// Observers observe the steps of every call, besides the metrics.
	Observers []steps.Observer
	Node      GPUs
	// Metadata writes and removes the files with the metadata of claims, and their CDI specs. WriteFile and MkdirAll
	// must be set.
	Metadata kubeletplugin.MetadataFileOperations
	// Fatal ends the process.
	Fatal    context.CancelCauseFunc
	NodeName string
}

// GPUs are what is known of the GPUs of the node: see package node.
type GPUs interface {
	// Inventory returns the last known inventory.
	Inventory() inventory.Inventory
	// Ready is closed after the first discovery.
	Ready() <-chan struct{}
	// Registered is called when a kubelet has registered the plugin, also one that was restarted.
	Registered()
	// Prepared is called when a claim has these devices, and Released when one has ended.
	Prepared(devices []string)
	Released()
	// ServeHealth calls send with the health of all devices, often enough for the kubelet, until ctx ends or send
	// returns false.
	ServeHealth(ctx context.Context, send func([]health.DeviceReport) bool)
}

var _ kubeletplugin.DRAPlugin = &Server{}

// PrepareResourceClaims prepares the claims. There is one: see prepareEach. While the plugin starts, the call waits,
// because the kubelet would retry only after a minute.
func (s *Server) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	select {
	case <-s.Node.Ready():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answer := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		rec, err := s.prepare(ctx, claim)
		answer[claim.UID] = s.answer(ctx, claim, rec, err)
	}
	return answer, nil
}

func (s *Server) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (rec checkpoint.PreparedClaim,
	err error) {
	defer s.Metrics.Operation("prepare")(&err)
	defer guard.Recover("prepare", &err) // the other claims of the node go on
	if n := len(claim.Namespace) + len(claim.Name); n > maxClaimName {
		return rec, fmt.Errorf("the namespace and the name of the claim have %d characters, and at most %d are "+
			"possible: its metadata would be in a directory of that name; create the claim under a shorter name", n,
			maxClaimName)
	}
	return s.Preparer.Prepare(s.Observed(ctx), claim)
}

// maxClaimName is how many characters namespace and name of a claim may have together: kubeletplugin has a directory of
// the name namespace_name, and names of files have at most 255 bytes.
const maxClaimName = 254

// answer converts the result of Prepare, and reports it.
func (s *Server) answer(ctx context.Context, claim *resourceapi.ResourceClaim, rec checkpoint.PreparedClaim,
	err error) kubeletplugin.PrepareResult {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(claim), "claimUID", claim.UID)
	if err != nil {
		logger.Error(err, "Claim not prepared")
		s.Reporter.Failed(claim, err)
		return kubeletplugin.PrepareResult{Err: err}
	}
	inv := s.Node.Inventory()
	result := kubeletplugin.PrepareResult{}
	var names []string
	for _, a := range rec.Plan.Assignments {
		result.Devices = append(result.Devices, device(a, inv, s.NodeName))
		names = append(names, a.Device)
	}
	logger.Info("Claim prepared", "devices", names)
	s.Reporter.Prepared(claim, rec, inv)
	s.Node.Prepared(names)
	return result
}

// Observed returns a context with all observers of steps.
func (s *Server) Observed(ctx context.Context) context.Context {
	ctx = steps.With(ctx, s.Metrics.Observe)
	for _, o := range s.Observers {
		ctx = steps.With(ctx, o)
	}
	return ctx
}

// device converts an assignment to the type of kubeletplugin. Every Prepare includes the metadata of the device
// (KEP-5304): kubeletplugin does not store it, and a repeated call without it would remove it from the container.
func device(a sharing.Assignment, inv inventory.Inventory, node string) kubeletplugin.Device {
	attributes := inv.Attributes(node, a.Device)
	if a.Partition != nil && attributes != nil { // it was published before it was created
		attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: (*string)(&a.Partition.UUID)}
	}
	if a.MakesVGPU() && attributes != nil {
		attributes["mdevUUID"] = resourceapi.DeviceAttribute{StringValue: &a.VFIO.VGPU.UUID}
	}
	d := kubeletplugin.Device{
		Metadata:     &kubeletplugin.DeviceMetadata{Attributes: attributes},
		Requests:     []string{a.Request},
		PoolName:     a.Pool,
		DeviceName:   a.Device,
		CDIDeviceIDs: slices.Clone(a.CDI),
	}
	// The kubelet identifies a device by the first ID when it reports health, so the ID that all devices have is last.
	slices.Reverse(d.CDIDeviceIDs)
	if a.ShareID != "" {
		d.ShareID = &a.ShareID
	}
	return d
}

// UnprepareResourceClaims releases all claims in parallel.
func (s *Server) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	if len(claims) == 1 { // without another goroutine, whose stack would have to grow
		return map[types.UID]error{claims[0].UID: s.unprepare(ctx, claims[0])}, nil
	}
	errs := make([]error, len(claims))
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() { errs[i] = s.unprepare(ctx, claim) })
	}
	all.Wait()
	answer := map[types.UID]error{}
	for i, claim := range claims {
		answer[claim.UID] = errs[i]
	}
	return answer, nil
}

func (s *Server) release(ctx context.Context, claim sharing.Claim) (err error) {
	defer s.Metrics.Operation("unprepare")(&err)
	defer guard.Recover("unprepare", &err)
	return s.Preparer.Unprepare(s.Observed(ctx), claim)
}

// unprepare releases one claim, and reports the result.
func (s *Server) unprepare(ctx context.Context, claim kubeletplugin.NamespacedObject) error {
	logger := klog.FromContext(ctx).WithValues("claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	err := s.release(ctx, sharing.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID})
	if err != nil {
		logger.Error(err, "Claim not released")
		s.Reporter.Node(report.Events.ReleaseFailed, fmt.Sprintf("claim %s/%s is not released: %v", claim.Namespace,
			claim.Name, err))
		if errors.Is(err, claims.ErrNotRestored) {
			s.Reporter.Released(claim.UID)
			return nil // the pod can end, and the cleanup tries again
		}
		return err
	}
	logger.Info("Claim released")
	s.Reporter.Released(claim.UID)
	s.Node.Released()
	return nil
}

// HandleError handles errors of kubeletplugin in the background. An error that a retry cannot fix ends the process.
func (s *Server) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		s.Fatal(err)
	}
}

// WatchHealthStatus sends the health of all devices to the kubelet.
func (s *Server) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	s.Node.ServeHealth(ctx, func(all []health.DeviceReport) bool {
		report := kubeletplugin.DeviceHealthReport{Devices: make([]kubeletplugin.DeviceHealth, len(all))}
		for i, h := range all {
			report.Devices[i] = kubeletplugin.DeviceHealth{
				PoolName: inventory.PoolOf(s.NodeName, h.Device), DeviceName: h.Device,
				Health: kubeletplugin.HealthStatus(h.Status), LastUpdated: time.Now(), Message: h.Message}
		}
		select {
		case reports <- report:
			return true
		case <-ctx.Done():
			return false
		}
	})
	return nil
}
