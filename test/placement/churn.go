// SPDX-License-Identifier: Apache-2.0

package main

import (
	"container/heap"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// departure is a pod that has been placed, and the virtual time when it ends.
type departure struct {
	arrival
	ends float64
}

// departures is a heap, the earliest first.
type departures []departure

func (d departures) Len() int           { return len(d) }
func (d departures) Less(i, j int) bool { return d[i].ends < d[j].ends }
func (d departures) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *departures) Push(x any)        { *d = append(*d, x.(departure)) }
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

// add adds a departure.
func (d *departures) add(one departure) { heap.Push(d, one) }

// due removes the departures until then, in their order.
func (d *departures) due(now float64) (all []departure) {
	for d.Len() > 0 && (*d)[0].ends <= now {
		all = append(all, heap.Pop(d).(departure))
	}
	return all
}

// churn submits one visit after the other, in virtual time: before each arrival, the pods whose time is over are
// deleted, and the scheduler has decided about all earlier arrivals. It returns the decisions, and how much of GPUs the
// pods have that remain, in thousandths.
func (s *submitter) churn(ctx context.Context, visits []trace.Visit, progress func([]arrival)) (done []arrival,
	remains int64, err error) {
	var running departures
	for i, v := range visits {
		name := podName("churn", i)
		var all errgroup.Group // the claim of the next pod changes nothing until its pod is there
		all.Go(func() error { return s.claim(ctx, name, v.Pod) })
		for _, d := range running.due(v.Arrives) {
			all.Go(func() error {
				if err := s.remove(ctx, d.name, d.pod); err != nil {
					return fmt.Errorf("remove pod %s: %w", d.name, err)
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			return done, 0, err
		}
		decided, err := s.submit(ctx, name, v.Pod)
		if err != nil {
			return done, 0, err
		}
		d, err := s.await(ctx, name, decided)
		if err != nil {
			return done, 0, err
		}
		a := arrival{name, v.Pod, d}
		if a.node != "" {
			running.add(departure{a, v.Arrives + v.Runs})
		}
		done = append(done, a)
		progress(done)
	}
	for _, d := range running {
		remains += d.pod.Total()
	}
	return done, remains, nil
}

// served returns the share of the requested GPUs, 0 to 1, that was placed. The first third of the arrivals does not
// count: the cluster was empty when they came.
func served(arrivals []arrival) float64 {
	var asked, placed int64
	for _, a := range arrivals[len(arrivals)/3:] {
		asked += a.pod.Total()
		if a.node != "" {
			placed += a.pod.Total()
		}
	}
	if asked == 0 {
		return 0
	}
	return float64(placed) / float64(asked)
}
