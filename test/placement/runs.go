// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/test/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/placement/sim"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// fillTo is the share of all GPUs that the pods of fill request: so much that the last arrivals round to 130 %.
const fillTo = 1.305

// extenderScheduler is the name of the second scheduler of rate, which asks the controller.
const extenderScheduler = "placement"

// runner runs tests on the nodes of one trace.
type runner struct {
	options
	lab   *lab
	trace trace.Trace
}

// run runs the test on a fresh control plane, and checks its result with the API server's objects.
func (r *runner) run(ctx context.Context, k key) (res result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, err := r.lab.open(ctx)
	if err != nil {
		return res, err
	}
	defer r.lab.plane.Close()
	res = result{key: k, GPUs: r.lab.gpus, When: time.Now()}
	var score *controller
	extenders := ""
	if k.Policy != policyDefault {
		if score, err = startController(ctx, r.lab.plane, r.controller, cmp.Or(k.Policy, policyPack)); err != nil {
			return res, err
		}
		defer score.Stop()
		extenders = score.extender()
	}
	if k.Test == testRate {
		with, err := r.lab.plane.StartScheduler(ctx, extenderScheduler, extenders)
		if err != nil {
			return res, err
		}
		defer with.Stop()
		extenders = ""
	}
	s, err := r.lab.plane.StartScheduler(ctx, controlplane.DefaultScheduler, extenders)
	if err != nil {
		return res, err
	}
	defer s.Stop()
	submitter, err := newSubmitter(ctx, client, controlplane.DefaultScheduler)
	if err != nil {
		return res, err
	}
	say("%s begins; the scheduler's profiles are at %s", k, s.URL)
	begin := time.Now()
	done, remains, err := r.measure(ctx, submitter, &res)
	res.Seconds, res.Decided = time.Since(begin).Seconds(), len(done)
	if err != nil {
		return res, err
	}
	if err := check(ctx, client, remains); err != nil {
		return res, err
	}
	for _, a := range done {
		if a.node == "" {
			res.Refused++
		}
	}
	res.Replay = r.replay(k)
	if score == nil {
		return res, nil
	}
	if res.Fast, res.Followed, err = score.counted(); err != nil {
		return res, err
	}
	if res.P50, res.P99, err = score.latency(ctx, submitter, r.trace.Pods, names(r.trace.Nodes)); err != nil {
		return res, fmt.Errorf("ask for scores: %w", err)
	}
	res.Memory, err = score.PeakMemory()
	return res, err
}

// replay returns what a simulation of the run measures, or nil if there is none.
func (r *runner) replay(k key) *measures {
	p, has := map[string]sim.Policy{policyDefault: sim.Default, policyPack: sim.Pack}[k.Policy]
	switch {
	case has && k.Test == testFill:
		at100, at130 := sim.Fill(r.trace, p, k.Seed)
		return &measures{At100: at100 / 100, At130: at130 / 100}
	case has && k.Test == testChurn:
		return &measures{Served: sim.Churn(r.trace, p, k.Seed, k.Load, k.Pods) / 100}
	}
	return nil
}

// measure submits the pods of the test and adds what is measured to the result. It returns the decisions, and how much
// of GPUs the pods should have that remain, in thousandths.
func (r *runner) measure(ctx context.Context, s *submitter, res *result) (done []arrival, remains int64, err error) {
	switch res.Test {
	case testFill:
		pods := r.trace.Fill(res.Seed, fillTo)
		done, err = s.arrive(ctx, "fill", pods, r.outstanding, progress(res.key, len(pods), time.Now()))
		res.At100, res.At130 = filled(done, res.GPUs, 1), filled(done, res.GPUs, 1.3)
		return done, placed(done), err
	case testChurn:
		visits := r.trace.Churn(res.Seed, res.Load, res.Pods)
		done, remains, err = s.churn(ctx, visits, progress(res.key, len(visits), time.Now()))
		res.Served = served(done)
		return done, remains, err
	}
	return r.alternate(ctx, s, res)
}

// Of rate: pods in a batch.
const (
	largestBatch = 200
	batches      = 6  // of each scheduler
	burst        = 64 // pods that wait at the same time
)

// alternate submits the pods of a fill in batches, in turn to the scheduler without and with the extender: without,
// with, with, without, and so on. The first batch of each is not measured.
func (r *runner) alternate(ctx context.Context, s *submitter, res *result) (done []arrival, remains int64, err error) {
	pods := r.trace.Fill(res.Seed, 0.7) // few are refused
	batch := min(largestBatch, len(pods)/(2*batches+2))
	for i := range 2*batches + 2 {
		with := i%4 == 1 || i%4 == 2 // later batches are slower, on a fuller cluster
		s.scheduler = controlplane.DefaultScheduler
		if with {
			s.scheduler = extenderScheduler
		}
		begin := time.Now()
		some, err := s.arrive(ctx, fmt.Sprintf("rate-%d", i), pods[:batch], burst, func([]arrival) {})
		if err != nil {
			return nil, 0, err
		}
		done, pods = append(done, some...), pods[batch:]
		if i < 2 {
			continue // the schedulers' caches were empty
		}
		rate := float64(batch) / time.Since(begin).Seconds()
		say("%s: %.1f pods/s by %s", res.key, rate, s.scheduler)
		if with {
			res.With = append(res.With, rate)
		} else {
			res.Without = append(res.Without, rate)
		}
	}
	return done, placed(done), nil
}

// placed returns how much of GPUs the placed pods have, in thousandths.
func placed(all []arrival) (total int64) {
	for _, a := range all {
		if a.node != "" {
			total += a.pod.Total()
		}
	}
	return total
}

// check compares what the API server has with what the test has counted.
func check(ctx context.Context, client kubernetes.Interface, remains int64) error {
	s, err := read(ctx, client)
	if err != nil {
		return err
	}
	total, problems := s.allocated()
	if total != remains {
		problems = append(problems, fmt.Errorf("claims have %d thousandths of GPUs, placed pods asked for %d", total,
			remains))
	}
	if len(problems) > 0 {
		return fmt.Errorf("the result contradicts the API server: %w", errors.Join(problems...))
	}
	return nil
}

// progressPeriod is the time between two lines about a run.
const progressPeriod = 15 * time.Second

// shownRefusals is how many refusals a run prints.
const shownRefusals = 5

// progress returns a function that prints a line from time to time.
func progress(k key, total int, begin time.Time) func([]arrival) {
	last, before, refused := begin, 0, 0
	return func(all []arrival) {
		if a := all[len(all)-1]; a.node == "" {
			if refused++; refused <= shownRefusals {
				say("%s: %s (%d m CPU, %d MiB, %d GPUs, %d m each, %v) is refused: %s", k, a.name, a.pod.CPU,
					a.pod.Memory, a.pod.GPUs, a.pod.Amount, a.pod.Models, a.why)
			}
		}
		if now := time.Now(); now.Sub(last) >= progressPeriod || len(all) == total {
			say("%s: %d of %d pods, %d refused, %.1f/s; the last %s %.1f/s", k, len(all), total, refused,
				float64(len(all))/now.Sub(begin).Seconds(), now.Sub(last).Round(time.Second),
				float64(len(all)-before)/now.Sub(last).Seconds())
			last, before = now, len(all)
		}
	}
}

func names(nodes []trace.Node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return all
}
