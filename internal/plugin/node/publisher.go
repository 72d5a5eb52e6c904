// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// publisherLock is a file that the publishing instance locks. Two publishers would keep undoing each other's slices.
const publisherLock = "publisher.lock"

// lockRetry is the time between attempts to lock after an error.
const lockRetry = 5 * time.Second

// Publisher publishes the devices of the node in its own goroutine, because the API server may be unavailable for long.
type Publisher struct {
	NodeName string
	// Server knows what the API server can store. Nothing is published before that is known.
	Server *Server
	// First creates the missing slices of the node, once, before Publish.
	First func(ctx context.Context, pools map[string]resourceslice.Pool) error
	// Publish updates the slices of the node to match resources.
	Publish func(ctx context.Context, resources resourceslice.DriverResources) error

	next  chan inventory.Inventory // holds only the latest
	stale atomic.Bool              // the next one is published even if it is the same

	mu   sync.Mutex
	lock *os.File // if this instance is the leader
	err  error    // why it cannot become the leader
}

// Stale makes the publisher publish the next inventory even if it is the same: the API server stores other parts of it,
// or a kubelet that has started has removed it.
func (p *Publisher) Stale() { p.stale.Store(true) }

// NewPublisher returns a Publisher without an inventory.
func NewPublisher(node string) *Publisher {
	return &Publisher{NodeName: node, next: make(chan inventory.Inventory, 1)}
}

// Set replaces the inventory to publish. It does not block.
func (p *Publisher) Set(inv inventory.Inventory) {
	for {
		select {
		case p.next <- inv:
			return
		default:
		}
		select {
		case <-p.next: // drop the older one
		default:
		}
	}
}

// Run acquires leadership on the node and publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context, dir string) {
	for !p.acquire(ctx, dir) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lockRetry):
		}
	}
	select {
	case <-ctx.Done():
		return
	case <-p.Server.Known():
	}
	var published inventory.Inventory
	var fitted map[string]resourceslice.Pool
	first := true
	for {
		select {
		case <-ctx.Done():
			return
		case inv := <-p.next:
			known := !p.stale.Swap(false) && !first
			if known && len(p.Server.lacking()) == 0 && reflect.DeepEqual(published, inv) {
				continue
			}
			pools := inv.Pools(p.NodeName)
			p.fit(pools) // what the API server lacks makes them depend on the records, too
			if known && reflect.DeepEqual(fitted, pools) {
				published = inv
				continue
			}
			if p.publish(ctx, pools, first) {
				published, fitted, first = inv, pools, false
			} else {
				p.Stale()
			}
		}
	}
}

// fit changes the pools to what the API server can store.
func (p *Publisher) fit(pools map[string]resourceslice.Pool) {
	for name, pool := range pools {
		pools[name] = p.Server.Fit(pool)
	}
}

func (p *Publisher) publish(ctx context.Context, pools map[string]resourceslice.Pool, first bool) (done bool) {
	logger := klog.FromContext(ctx)
	if first {
		if err := p.First(ctx, pools); err != nil {
			logger.Info("The first slices were not written at once; they follow", "err", err)
		}
	}
	if err := p.Publish(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		logger.Error(err, "Devices not published")
		return false
	}
	logger.Info("Devices published", "pools", sizes(pools))
	return true
}

// sizes returns the number of devices of each pool, for people.
func sizes(pools map[string]resourceslice.Pool) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		devices := 0
		for _, s := range pools[name].Slices {
			devices += len(s.Devices)
		}
		all = append(all, fmt.Sprintf("%s: %d", name, devices))
	}
	return all
}

// acquire locks the publisher lock. It blocks while another instance has it.
func (p *Publisher) acquire(ctx context.Context, dir string) (leads bool) {
	lock, err := lockFile(ctx, filepath.Join(dir, publisherLock))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if p.err == nil || p.err.Error() != err.Error() {
			klog.FromContext(ctx).Error(err, "Devices cannot be published, will be tried again")
		}
		p.err = err
		return false
	}
	p.lock, p.err = lock, nil
	return true
}

func lockFile(ctx context.Context, path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("become the publisher of this node: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		klog.FromContext(ctx).Info("Another instance publishes the devices of this node; waiting for its end")
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		}
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("become the publisher of this node: lock %s: %w", path, err)
	}
	return lock, nil
}

// Problem returns why this instance cannot publish; nil also while another instance publishes.
func (p *Publisher) Problem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Release unlocks the publisher lock for the next instance.
func (p *Publisher) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		_ = p.lock.Close()
		p.lock = nil
	}
}
