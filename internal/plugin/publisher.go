// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// publisherLock is held by the one instance on the node that publishes: two would undo each other's slices for ever.
const publisherLock = "publisher.lock"

// publisher publishes the inventory, once it is its turn.
type publisher struct {
	pool    string
	first   func(ctx context.Context, pool resourceslice.Pool) error // writes what the node lacks, once, before publish
	publish func(ctx context.Context, resources resourceslice.DriverResources) error

	mu     sync.Mutex
	theOne *os.File // the lock, when this instance has it
	latest *inventory.Inventory
	logged *inventory.Inventory // the last one that was published, so that it is logged once
	at     time.Time            // when it was
}

// againAfter is how often the same inventory is published again. It takes a comparison of all devices with those of the API server.
const againAfter = 30 * time.Second

// becomeTheOne waits until no other instance publishes.
func (p *publisher) becomeTheOne(ctx context.Context, dir string) {
	logger := klog.FromContext(ctx)
	lock, err := os.OpenFile(filepath.Join(dir, publisherLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			logger.Info("Another instance publishes the devices of this node; waiting for its end")
			for err = unix.EINTR; errors.Is(err, unix.EINTR); {
				err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
			}
		}
	}
	if err != nil {
		logger.Error(err, "Cannot become the publisher of this node")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.theOne = lock
	p.publishLatest(ctx)
}

// resign lets the next instance publish.
func (p *publisher) resign() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.theOne != nil {
		_ = p.theOne.Close()
		p.theOne = nil
	}
}

// set publishes the inventory, now or as soon as it is this instance's turn. To say the same again writes only what is missing: a
// kubelet that starts removes the slices of its node, and without being told they would come back no sooner than 30 s after that.
func (p *publisher) set(ctx context.Context, inv inventory.Inventory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest = &inv
	if p.logged != nil && time.Since(p.at) < againAfter && reflect.DeepEqual(*p.logged, inv) {
		return
	}
	p.publishLatest(ctx)
}

func (p *publisher) publishLatest(ctx context.Context) {
	if p.theOne == nil || p.latest == nil || ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	pool := p.latest.Pool(p.pool)
	if p.logged == nil {
		if err := p.first(ctx, pool); err != nil {
			logger.Info("The first slices were not written at once; they follow", "err", err)
		}
	}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.pool: pool}}
	if err := p.publish(ctx, resources); err != nil {
		logger.Error(err, "Devices not published")
		return
	}
	if p.logged == nil || !reflect.DeepEqual(*p.logged, *p.latest) {
		logger.Info("Devices published", "pool", p.pool, "devices", len(*p.latest))
	}
	p.logged, p.at = p.latest, time.Now()
}
