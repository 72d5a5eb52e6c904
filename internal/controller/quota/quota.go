// SPDX-License-Identifier: Apache-2.0

// Package quota limits how much of GPUs the claims of a namespace take together: memory, multiprocessors, TFLOP/s and
// devices, as GPUQuotas say.
//
// A quota is never exceeded by claims that are created at once, with any number of replicas and API servers:
//
//   - The webhook admits a claim only after it has added the claim to status.pending and the claim's amount to
//     status.used. It writes these with the resource version that it has read from the API server, not from a cache.
//     So of two writers that have read the same state, one is refused and reads again.
//   - The leader counts again. It reads the quota first and then all claims of the namespace, both from the API server.
//     A pending claim that is among them is no longer pending. One that is not stays pending for PendingFor, which is
//     longer than the API server works on a request: another webhook may have refused it. A claim that was admitted
//     meanwhile has changed the quota, so that the count is not written and starts again.
//
// So status.used is never less than what the claims take: an admitted claim is pending until a count has found it.
package quota

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
)

// Add serves the webhook, and counts on the leader once the API server has the kind: that may be installed later.
func Add(c *feature.Controller) error {
	c.ServeAlone("/quota", NewWebhook(c))
	r := NewCounter(c, metrics.NewQuotas())
	return errors.Join(ctrlmetrics.Registry.Register(r.amounts), c.Manager.Add(later{
		served: func() error {
			_, err := c.Manager.GetRESTMapper().RESTMapping(cluster.QuotaVersion.WithKind("GPUQuota").GroupKind())
			return err
		},
		start:  func() error { return r.watch(c.Manager) },
		period: 10 * time.Second,
	}))
}

// later starts something when the API server serves a kind. The manager runs it on the leader.
type later struct {
	served func() error // returns an error until then
	start  func() error
	period time.Duration // between questions to the API server
}

// Start waits for the kind and starts.
func (l later) Start(ctx context.Context) error {
	for {
		err := l.served()
		if err == nil {
			return l.start()
		}
		if !meta.IsNoMatchError(err) {
			log.FromContext(ctx).Error(err, "GPUQuotas are not counted")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.period):
		}
	}
}
