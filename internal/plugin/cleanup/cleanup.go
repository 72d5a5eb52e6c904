// SPDX-License-Identifier: Apache-2.0

// Package cleanup releases claims that the kubelet has forgotten. The kubelet never unprepares a claim after its state
// was wiped, or after the node was restored from a snapshot. Of its sibling packages, it may import only podresources.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/podresources"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Releaser releases what nobody uses any more.
type Releaser interface {
	// Release unprepares a claim as the kubelet would.
	Release(ctx context.Context, claim sharing.Claim) error
	// EndUnusedDaemons ends MPS daemons that no record names.
	EndUnusedDaemons(ctx context.Context) error
}

// Records are the records of claims.
type Records interface {
	List() ([]checkpoint.PreparedClaim, error)
	Get(claim types.UID) (checkpoint.PreparedClaim, error)
}

// Specs finds claims that have CDI specs but no record, and what a killed plugin has left of others.
type Specs interface {
	Orphans(known func(claim types.UID) bool) ([]types.UID, error)
	RemoveTemporary() error
}

// Cleaner releases a claim when every cleanup for twice the period finds that the claim has no devices here in the API,
// and that the kubelet lists no container with it. Both must last: a pod deleted with grace period 0 loses its API
// object and its place in the kubelet's list while its container is still stopping.
type Cleaner struct {
	Driver   string
	NodeName string
	Client   kubernetes.Interface
	Records  Records
	Specs    Specs
	Kubelet  string // socket of the kubelet's pod resources API
	Releaser Releaser
	// Period is the time between cleanups. A claim is released when it has been forgotten for twice as long.
	Period time.Duration

	forgotten map[types.UID]time.Time // since when
}

const (
	// queryTimeout is the timeout of all API and kubelet requests of one cleanup.
	queryTimeout = 30 * time.Second
	// releaseTimeout is the timeout of one release, as in the kubelet.
	releaseTimeout = 45 * time.Second
	// releaseWorkers limits how many claims are released in parallel.
	releaseWorkers = 8
)

// Run cleans up until ctx ends.
func (c *Cleaner) Run(ctx context.Context) {
	for {
		if err := c.cleanUp(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Sweep incomplete")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.Period):
		}
	}
}

func (c *Cleaner) cleanUp(ctx context.Context) error {
	records, listErr := c.Records.List() // a record that cannot be read is kept
	forgotten, err := c.findForgotten(ctx, records)
	orphans, orphansErr := c.Specs.Orphans(func(claim types.UID) bool {
		_, err := c.Records.Get(claim)
		return !errors.Is(err, checkpoint.ErrNotFound)
	})
	for _, claim := range orphans {
		klog.FromContext(ctx).Info("Removing the CDI specs of a claim without a record", "claimUID", claim)
		forgotten = append(forgotten, sharing.Claim{UID: claim})
	}
	return errors.Join(listErr, err, orphansErr, c.Specs.RemoveTemporary(), c.release(ctx, forgotten),
		c.endUnusedDaemons(ctx))
}

// endUnusedDaemons ends what a record has left that was removed by hand.
func (c *Cleaner) endUnusedDaemons(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return c.Releaser.EndUnusedDaemons(ctx)
}

// release releases the claims in parallel, so that one that hangs does not block the others.
func (c *Cleaner) release(ctx context.Context, claims []sharing.Claim) error {
	errs := make([]error, len(claims))
	workers := make(chan struct{}, releaseWorkers)
	var all sync.WaitGroup
	for i, claim := range claims {
		all.Go(func() {
			workers <- struct{}{}
			defer func() { <-workers }()
			ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
			defer cancel()
			errs[i] = c.Releaser.Release(ctx, claim)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// findForgotten returns the claims that have been forgotten long enough. A claim counts as in use when that is not
// known.
func (c *Cleaner) findForgotten(ctx context.Context, records []checkpoint.PreparedClaim) ([]sharing.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	before := c.forgotten
	c.forgotten = map[types.UID]time.Time{}
	if len(records) == 0 {
		return nil, nil
	}
	running, err := c.running(ctx)
	if err != nil {
		return nil, err
	}
	var found []sharing.Claim
	var errs []error
	for _, rec := range records {
		uid := rec.Claim.UID
		gone, err := c.isGone(ctx, rec)
		errs = append(errs, err)
		if !gone || strings.Contains(running, string(uid)) {
			continue
		}
		since, known := before[uid]
		if !known {
			since = time.Now()
		}
		c.forgotten[uid] = since
		if known && time.Since(since) >= 2*c.Period {
			klog.FromContext(ctx).Info("Releasing a claim that nobody uses any more", "claim", rec.Claim, "claimUID",
				uid)
			found = append(found, rec.Claim)
		}
	}
	return found, errors.Join(errs...)
}

// isGone reports whether the API has no such claim, a claim with another UID, or one without the recorded devices.
func (c *Cleaner) isGone(ctx context.Context, rec checkpoint.PreparedClaim) (bool, error) {
	claim := rec.Claim
	found, err := c.Client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
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
		// Older versions had the monitor device in the pool of the node.
		pool := r.Pool == c.NodeName || r.Pool == inventory.PoolOf(c.NodeName, r.Device)
		return r.Driver == c.Driver && pool && slices.Contains(rec.Plan.Devices(), r.Device)
	}
	return !slices.ContainsFunc(found.Status.Allocation.Devices.Results, here), nil
}

// running returns the CDI device names of all containers that the kubelet lists. They contain the UIDs of claims.
func (c *Cleaner) running(ctx context.Context) (string, error) {
	pods, err := podresources.List(ctx, c.Kubelet)
	if err != nil {
		return "", err
	}
	var names strings.Builder
	for _, pod := range pods {
		for _, container := range pod.Containers {
			for _, name := range podresources.CDINames(container) {
				fmt.Fprintln(&names, name)
			}
		}
	}
	return names.String(), nil
}
