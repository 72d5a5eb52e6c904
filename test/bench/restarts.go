// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// kubeletRestarts is the number of restarts that are measured.
const kubeletRestarts = 200

// measureKubeletRestarts restarts the kubelet, which removes the slices of its node when it starts, and measures how
// long not all slices are there.
func measureKubeletRestarts(ctx context.Context, b *bench) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	w, err := b.watchSlices(watching)
	if err != nil {
		return err
	}
	var away samples
	for range kubeletRestarts {
		one, err := b.restartKubelet(ctx, w)
		if err != nil {
			return err
		}
		away = append(away, one)
	}
	b.results["kubelet"] = []float64{away.at(1), away.p50()}
	return b.attach(ctx)
}

// restartKubelet returns the time from the first removed slice until all are there again.
func (b *bench) restartKubelet(ctx context.Context, w *sliceWatch) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	if err := w.drain(); err != nil {
		return 0, err
	}
	all := len(w.slices)
	restart := exec.CommandContext(ctx, "_output/bin/cluster", "restart", "--name", "bench", b.node+"/kubelet")
	if output, err := restart.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("restart the kubelet of the cluster \"bench\": %w: %s", err, output)
	}
	removed, err := w.until(ctx, "slices to be removed", func(w *sliceWatch) bool { return len(w.slices) < all })
	if err != nil {
		return 0, err
	}
	back, err := w.until(ctx, "the slices to be back", func(w *sliceWatch) bool { return len(w.slices) == all })
	return back.Sub(removed), errors.Join(err, sleep(ctx, 500*time.Millisecond))
}
