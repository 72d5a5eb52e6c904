// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// claimsAhead is how many claims are created before their pods.
const claimsAhead = 32

// arrival is a pod that was submitted, and the decision about it.
type arrival struct {
	name string
	pod  trace.Pod
	decision
}

// arrive submits the pods in their order, of which at most outstanding wait for a decision. It returns the decisions in
// the order of the pods, and calls progress after each.
func (s *submitter) arrive(ctx context.Context, prefix string, pods []trace.Pod, outstanding int,
	progress func([]arrival)) ([]arrival, error) {
	type waiting struct {
		arrival
		decided <-chan decision
	}
	all, ctx := errgroup.WithContext(ctx)
	claimed := make(chan chan error, claimsAhead)
	all.Go(func() error {
		defer close(claimed)
		for i, p := range pods {
			made := make(chan error, 1)
			select {
			case claimed <- made:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			go func() { made <- s.claim(ctx, podName(prefix, i), p) }()
		}
		return nil
	})
	submitted := make(chan waiting, outstanding)
	slots := make(chan struct{}, outstanding)
	all.Go(func() error {
		defer close(submitted)
		i := 0
		for made := range claimed {
			if err := <-made; err != nil {
				return fmt.Errorf("create claim: %w", err)
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			w := waiting{arrival: arrival{name: podName(prefix, i), pod: pods[i]}}
			var err error
			if w.decided, err = s.submit(ctx, w.name, w.pod); err != nil {
				return fmt.Errorf("create pod: %w", err)
			}
			submitted <- w
			i++
		}
		return nil
	})
	var done []arrival
	all.Go(func() error {
		for w := range submitted {
			d, err := s.await(ctx, w.name, w.decided)
			if err != nil {
				return err
			}
			<-slots
			w.decision = d
			done = append(done, w.arrival)
			progress(done)
		}
		return nil
	})
	return done, all.Wait()
}

func podName(prefix string, i int) string { return fmt.Sprintf("%s-%06d", prefix, i) }

// filled returns the share of the GPUs, 0 to 1, that is allocated when pods that request the share arrived of all GPUs
// have arrived. As in the study of the trace, it is the mean over all arrivals that round to that percentage.
func filled(arrivals []arrival, gpus int, arrived float64) float64 {
	var asked, placed int64
	var sum float64
	var n int
	total := float64(gpus) * trace.Whole
	for _, a := range arrivals {
		asked += a.pod.Total()
		if a.node != "" {
			placed += a.pod.Total()
		}
		if share := float64(asked) / total; share >= arrived-0.005 && share < arrived+0.005 {
			sum += float64(placed) / total
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}
