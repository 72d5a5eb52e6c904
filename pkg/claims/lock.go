// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpudra/gpu-dra-driver/pkg/allocation"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// errChanged means that the record of the claim has changed, so that the attempt begins again.
var errChanged = errors.New("the record of the claim has changed")

// lock locks the physical GPU of each device, until unlock.
func (t *tx) lock(devices []string) error {
	return steps.Do(t.ctx, steps.LockDevices, func(ctx context.Context) (err error) {
		t.locks, err = t.Records.Lock(ctx, devices)
		return err
	})
}

// unlock releases all locks. It may be called without any.
func (t *tx) unlock() {
	if t.locks != nil {
		t.locks()
		t.locks = nil
	}
}

// lockNew locks the GPUs of a claim without a record. Error: errChanged if it has one by now.
func (t *tx) lockNew(results []allocation.Result) error {
	var devices []string
	for _, r := range results {
		devices = append(devices, r.Device)
	}
	if err := t.lock(devices); err != nil {
		return err
	}
	if _, err := t.Records.Get(t.claim.UID); !errors.Is(err, checkpoint.ErrNotFound) {
		return errChanged // by another call, for another pod with the claim
	}
	return nil
}

// lockRecorded locks all GPUs of the claim and reads its current record. While this call waited for the locks, another
// one may have released the claim, or prepared it again since before was read. Error: checkpoint.ErrNotFound.
func (t *tx) lockRecorded(before checkpoint.PreparedClaim) error {
	for {
		devices := before.Plan.Devices()
		err := t.lock(devices)
		if err != nil {
			return err
		}
		t.record, err = t.Records.Get(t.claim.UID)
		if err != nil || slices.Equal(t.record.Plan.Devices(), devices) {
			return err
		}
		t.unlock()
		before = t.record
	}
}

// lockHeld is lockRecorded for a claim that is not being released. Error: checkpoint.ErrNotFound.
func (t *tx) lockHeld(before checkpoint.PreparedClaim) error {
	err := t.lockRecorded(before)
	if err == nil && t.record.Phase == checkpoint.Releasing {
		err = fmt.Errorf("claim %s is being released: %w", t.record.Claim, checkpoint.ErrNotFound)
	}
	return err
}
