// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// processTimeout is the timeout for listing the processes of a GPU.
const processTimeout = 2 * time.Second

// processes lists the processes on GPUs.
type processes struct{ config CollectorConfig }

type processAnswer struct {
	processes gpu.Processes
	err       error
}

// listAll lists the processes of all GPUs in parallel, in the order of the GPUs.
func (p *processes) listAll(ctx context.Context, gpus inventory.Inventory) []processAnswer {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	answers := make([]processAnswer, len(gpus))
	var all sync.WaitGroup
	for i, d := range gpus {
		all.Go(func() {
			found, err := p.config.Processes(ctx, d)
			if err != nil {
				err = fmt.Errorf("%s: %w", d.Name, err)
			}
			answers[i] = processAnswer{found, err}
		})
	}
	all.Wait()
	return answers
}
