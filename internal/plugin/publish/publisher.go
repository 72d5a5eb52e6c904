// SPDX-License-Identifier: Apache-2.0

// Package publish writes the ResourceSlices of the node, as the API server can store them. Of its sibling packages, it
// may import only report.
package publish

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// LockFile is a file in the plugin's directory that the publishing instance locks. Two publishers would keep undoing
// each other's slices.
const LockFile = "publisher.lock"

// lockRetry is the time between attempts to lock after an error.
const lockRetry = 5 * time.Second

// PublisherConfig is what Gates and Publisher need.
type PublisherConfig struct {
	Client    kubernetes.Interface
	Driver    string // its name
	Node      string // its name
	Dir       string // of the plugin
	Records   report.Lister
	Reporter  *report.Reporter
	Readiness *report.Readiness
	// WithoutMonitor leaves out the monitor device.
	WithoutMonitor bool
}

// Publisher publishes the devices of the node in its own goroutine, because the API server may be unavailable for long.
type Publisher struct {
	PublisherConfig
	// Gates are those of the API server. Nothing is published before they are known.
	Gates *Gates
	next  chan inventory.Inventory // holds only the latest
	stale atomic.Bool              // the next one is published even if it is the same
	// control updates the slices to match the resources, and keeps them so.
	control func(context.Context, map[string]inventory.Pool) error

	mu         sync.Mutex
	lock       *os.File                  // if this instance is the leader
	controller *resourceslice.Controller // nil: nothing is published yet
	owner      types.UID                 // of its slices: the Node's
}

// New returns a Publisher without an inventory.
func New(c PublisherConfig) *Publisher {
	p := &Publisher{PublisherConfig: c, Gates: newGates(c), next: make(chan inventory.Inventory, 1)}
	p.control = p.startOrUpdate
	return p
}

// Stale makes the publisher publish the next inventory even if it is the same: a kubelet removes all slices of its node
// when it starts, and the Node object may be another one.
func (p *Publisher) Stale() { p.stale.Store(true) }

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
func (p *Publisher) Run(ctx context.Context) {
	if !p.acquire(ctx) {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-p.Gates.known:
	}
	// What is published: the inventory, or if the API server lacks something, what is left of it. Pools are large, and
	// the controller has a copy.
	var whole *inventory.Inventory
	var fitted map[string]inventory.Pool
	for first := true; ; {
		select {
		case <-ctx.Done():
			return
		case inv := <-p.next:
			lacks, same := p.Gates.Lacking(), !p.stale.Swap(false)
			if same && len(lacks) == 0 && whole != nil && reflect.DeepEqual(*whole, inv) {
				continue
			}
			pools := inv.Pools(p.Node)
			if p.WithoutMonitor {
				delete(pools, inventory.MonitorPool(p.Node))
			}
			for name, pool := range pools { // what the API server lacks makes them depend on the records, too
				pools[name] = p.Gates.fit(pool, lacks)
			}
			if !same || len(lacks) == 0 || !reflect.DeepEqual(fitted, pools) {
				if !p.publish(ctx, pools, first) {
					p.Stale()
					continue
				}
			}
			first, whole, fitted = false, nil, nil
			if len(lacks) == 0 {
				whole = &inv
			} else {
				fitted = pools
			}
		}
	}
}

func (p *Publisher) publish(ctx context.Context, pools map[string]inventory.Pool, first bool) (done bool) {
	logger := klog.FromContext(ctx)
	if first {
		if _, err := FirstSlices(ctx, p.Client, p.Driver, p.Node, pools); err != nil {
			logger.Info("The first slices were not written at once; they follow", "err", err)
		}
	}
	if err := p.control(ctx, pools); err != nil {
		logger.Error(err, "Devices not published")
		return false
	}
	var sizes []string // the number of devices of each pool, for people
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		devices := 0
		for _, s := range pools[name].Slices {
			devices += len(s.Devices)
		}
		sizes = append(sizes, fmt.Sprintf("%s: %d", name, devices))
	}
	logger.Info("Devices published", "pools", sizes)
	return true
}

// acquire locks the publisher lock. It blocks while another instance has it, and returns false when ctx ends. Readiness
// learns why this instance cannot publish, but not that another one does.
func (p *Publisher) acquire(ctx context.Context) (leads bool) {
	logged := ""
	for {
		lock, err := lockFile(ctx, filepath.Join(p.Dir, LockFile))
		p.Readiness.Publishing(err)
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.lock = lock
			return true
		}
		if err.Error() != logged {
			klog.FromContext(ctx).Error(err, "Devices cannot be published, will be tried again")
		}
		logged = err.Error()
		select {
		case <-ctx.Done():
			return false
		case <-time.After(lockRetry):
		}
	}
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

// Stop returns when no request to the API server is in flight any more. Then the next instance may publish. The slices
// stay.
func (p *Publisher) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.controller != nil {
		p.controller.Stop()
	}
	if p.lock != nil {
		_ = p.lock.Close()
		p.lock = nil
	}
}
