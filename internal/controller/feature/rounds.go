// SPDX-License-Identifier: Apache-2.0

package feature

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// roundFactor bounds the time of rounds, most of which is that of requests, to a quarter.
const roundFactor = 3

// Rounds calls round once the view is complete, until ctx ends: after a pause of the period, or of longer if a round
// takes long. what names a round in the counter of panics; failed is the message of the log about its error.
func (c *Controller) Rounds(ctx context.Context, period time.Duration, what, failed string,
	round func(started time.Time) error) {
	for pause := period; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if c.Known() != nil {
			continue
		}
		started := time.Now()
		err := c.Guard.Do(what, func() error { return round(started) })
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, failed)
		}
		pause = max(period, roundFactor*time.Since(started))
	}
}
