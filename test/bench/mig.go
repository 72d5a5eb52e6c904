// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const (
	creation  = time.Second // simulated time to create a GPU instance
	migBursts = 5
)

// measureMakingPartitions times creating partitions on all GPUs in parallel, with a creation time of one second and
// without.
func measureMakingPartitions(ctx context.Context, b *bench) error {
	machine, err := node.Attach(b.process.path(filepath.Dir(driverRoot)))
	if err != nil {
		return err
	}
	one, removal, err := b.partitionCycles(ctx)
	if err != nil {
		return err
	}
	b.results["migprepare"] = []float64{one.p50(), removal.p50()}
	for i := range b.gpus {
		if err := machine.Slow(strconv.Itoa(i), "CreateGpuInstanceWithPlacement", creation); err != nil {
			return err
		}
	}
	defer func() {
		for i := range b.gpus {
			_ = machine.Heal(strconv.Itoa(i)) // the cluster ends with the bench
		}
	}()
	var wall samples
	for range migBursts {
		claims, err := b.allocated(ctx, b.partitions()...)
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := atOnce(len(claims), len(claims), func(i int) error {
			_, err := b.prepare(ctx, claims[i])
			return err
		}); err != nil {
			return err
		}
		wall = append(wall, time.Since(begin))
		if err := b.release(ctx, claims); err != nil {
			return err
		}
	}
	b.results["mig8"] = []float64{wall.p50() / 1000}
	return b.deleteClaims(ctx)
}

// partitionCycles times creating and removing a partition on one GPU after the other.
func (b *bench) partitionCycles(ctx context.Context) (prepares, unprepares samples, err error) {
	for range migBursts {
		claims, err := b.allocated(ctx, b.partitions()...)
		if err != nil {
			return nil, nil, err
		}
		for _, claim := range claims {
			took, err := b.prepare(ctx, claim)
			if err != nil {
				return nil, nil, err
			}
			prepares = append(prepares, took)
			if took, err = b.unprepare(ctx, claim); err != nil {
				return nil, nil, err
			}
			unprepares = append(unprepares, took)
		}
	}
	return prepares, unprepares, nil
}

// partitions returns one small partition of each GPU.
func (b *bench) partitions() []resourceapi.DeviceRequestAllocationResult {
	var all []resourceapi.DeviceRequestAllocationResult
	for i := range b.gpus {
		result := b.gpu(i)
		result.Device = gpu.PartitionName(result.Device, gpu.Placement{Profile: "1g.10gb", Start: 6})
		all = append(all, result)
	}
	return all
}

func (b *bench) release(ctx context.Context, claims []*drapb.Claim) error {
	var errs []error
	for _, claim := range claims {
		if _, err := b.unprepare(ctx, claim); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", claim.Name, err))
		}
	}
	return errors.Join(errs...)
}
