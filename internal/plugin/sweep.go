// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// sweeper releases what the kubelet has forgotten: it never unprepares a claim after its own state was wiped, or after the node
// was restored from a snapshot.
//
// A claim is only released when it has no devices here in the API any more, the kubelet lists no container with it, and every sweep
// has found both for as long as grace: a pod deleted with grace period 0 loses its API object, and its place in the kubelet's list,
// while its container still ends. The kubelet ends it within seconds and unprepares the claim itself. A process that no signal ends
// is not noticed: neither the API nor the kubelet lists it.
type sweeper struct {
	driver    string
	pool      string
	client    kubernetes.Interface
	records   claims.Records
	specs     Specs
	kubelet   string // socket of the kubelet's pod resources
	self      string // socket of this plugin: claims are released in the way the kubelet does it
	period    time.Duration
	grace     time.Duration
	forgotten map[types.UID]time.Time // since when
}

// sweepTimeout is for one sweep, so that a server that never answers does not end them all.
const sweepTimeout = 30 * time.Second

func newSweeper(c Config) *sweeper {
	return &sweeper{
		driver:  c.DriverName,
		pool:    c.NodeName,
		client:  c.Client,
		records: c.Records,
		specs:   c.Specs,
		kubelet: c.PodResources,
		self:    filepath.Join(c.PluginDir, serviceSocket(c)),
		period:  c.SweepPeriod,
		grace:   2 * c.SweepPeriod,
	}
}

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Sweep incomplete")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.period):
		}
	}
}

func (s *sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	records, listErr := s.records.List() // a record that cannot be read stays
	return errors.Join(listErr, s.sweepRecords(ctx, records), s.sweepSpecs(ctx))
}

// sweepRecords releases what has been forgotten long enough. What it cannot find out counts as not forgotten.
func (s *sweeper) sweepRecords(ctx context.Context, records []checkpoint.Record) error {
	before := s.forgotten
	s.forgotten = map[types.UID]time.Time{}
	if len(records) == 0 {
		return nil
	}
	running, err := s.running(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range records {
		uid := rec.Claim.UID
		gone, err := s.gone(ctx, rec)
		errs = append(errs, err)
		if !gone || strings.Contains(running, string(uid)) {
			continue
		}
		since, known := before[uid]
		if !known {
			since = time.Now()
		}
		s.forgotten[uid] = since
		if known && time.Since(since) >= s.grace {
			klog.FromContext(ctx).Info("Releasing a claim that nobody uses any more", "claim", rec.Claim, "claimUID", uid)
			errs = append(errs, s.release(ctx, rec.Claim))
		}
	}
	return errors.Join(errs...)
}

// sweepSpecs removes CDI specs of claims that have no record.
func (s *sweeper) sweepSpecs(ctx context.Context) error {
	orphans, err := s.specs.Orphans(func(claim types.UID) bool {
		_, err := s.records.Get(claim)
		return !errors.Is(err, checkpoint.ErrNotFound)
	})
	for _, claim := range orphans {
		klog.FromContext(ctx).Info("Removing the CDI specs of a claim without a record", "claimUID", claim)
		err = errors.Join(err, s.release(ctx, sharing.Claim{UID: claim}))
	}
	return err
}

// gone says whether the API has no such claim, or not this one, or one that has got none of the recorded devices.
func (s *sweeper) gone(ctx context.Context, rec checkpoint.Record) (bool, error) {
	claim := rec.Claim
	found, err := s.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for claim %s: %w", claim, err)
	}
	if found.UID != claim.UID || found.Status.Allocation == nil {
		return true, nil
	}
	here := func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == s.driver && r.Pool == s.pool && slices.Contains(rec.Plan.Devices(), r.Device)
	}
	return !slices.ContainsFunc(found.Status.Allocation.Devices.Results, here), nil
}

// running are the names of the CDI devices, which have the UIDs of claims in them, of all containers that the kubelet has.
func (s *sweeper) running(ctx context.Context) (string, error) {
	pods, err := podResources(ctx, s.kubelet)
	if err != nil {
		return "", err
	}
	var names strings.Builder
	for _, pod := range pods {
		for _, container := range pod.Containers {
			for _, name := range cdiNames(container) {
				fmt.Fprintln(&names, name)
			}
		}
	}
	return names.String(), nil
}

// release unprepares the claim as the kubelet would: over the socket, through everything that belongs to it.
func (s *sweeper) release(ctx context.Context, claim sharing.Claim) error {
	conn, err := dial(s.self)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := drapb.NewDRAPluginClient(conn).NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}})
	if err == nil && answer.Claims[string(claim.UID)].GetError() != "" {
		err = errors.New(answer.Claims[string(claim.UID)].GetError())
	}
	if err != nil {
		return fmt.Errorf("release claim %s: %w", claim.UID, err)
	}
	return nil
}
