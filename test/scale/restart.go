// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gpudra/gpu-dra-driver/test/apirequests"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

const (
	// idlePeriod is how long the latency is measured before a restart.
	idlePeriod = 10 * time.Second
	// quietPeriod is the time without an answer after which all plugins have started.
	quietPeriod = 5 * time.Second
)

// answers counts the answers to requests and notes when the last one has come.
type answers struct {
	http.RoundTripper
	seen *answered
}

type answered struct {
	mu    sync.Mutex
	count int
	last  time.Time
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(r)
	a.seen.mu.Lock()
	defer a.seen.mu.Unlock()
	a.seen.count++
	a.seen.last = time.Now()
	return answer, err
}

// restart starts the plugins of all nodes at once.
func (l *lab) restart(ctx context.Context, f *fleet.Fleet) (r *restart, err error) {
	client, err := kubernetes.NewForConfig(l.plane.REST())
	if err != nil {
		return nil, err
	}
	r = &restart{Nodes: f.Size().Nodes}
	stop := latency(ctx, client)
	time.Sleep(idlePeriod)
	idle, err := stop()
	if err != nil {
		return nil, err
	}
	r.Idle50, r.Idle99 = at(idle, 0.5), at(idle, 0.99)
	before, err := apirequests.Read(ctx, l.client.Discovery().RESTClient())
	if err != nil {
		return nil, err
	}
	stop = latency(ctx, client)
	begin := time.Now()
	seen := &answered{last: begin}
	config := l.plane.REST()
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return answers{rt, seen} })
	stopPlugins, err := f.Restart(ctx, config)
	if err != nil {
		_, stopErr := stop()
		return nil, errors.Join(err, stopErr)
	}
	defer stopPlugins()
	for {
		time.Sleep(quietPeriod / 10)
		seen.mu.Lock()
		last := seen.last
		r.Requests = seen.count
		seen.mu.Unlock()
		if time.Since(last) > quietPeriod || ctx.Err() != nil {
			r.Seconds = last.Sub(begin).Seconds()
			break
		}
	}
	during, err := stop()
	if err != nil {
		return nil, err
	}
	r.P50, r.P99 = at(during, 0.5), at(during, 0.99)
	after, err := apirequests.Read(ctx, l.client.Discovery().RESTClient())
	if err != nil {
		return nil, err
	}
	did := after.Since(before)
	r.Writes = did.Writes("resourceslices", "nodes")
	r.DryRuns = did["POST resourceslices dry run"]
	peak, err := l.plane.Server.PeakMemory()
	r.Peak = float64(peak) / (1 << 20)
	return r, err
}
