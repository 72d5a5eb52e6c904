// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// discoverPeriod is how often a machine that is not ready is looked at again.
	discoverPeriod = 2 * time.Second
	// rescanPeriod is how often a machine is asked whether its GPUs are still the same.
	rescanPeriod = 10 * time.Second
	// knownFile keeps the last inventory in the plugin's directory: what a lost GPU was is not written anywhere else.
	knownFile = "devices.json"
)

// machine is what is known of the node, kept up to date.
type machine struct {
	config   Config
	modes    *configSource
	status   *status
	metrics  *metrics
	reporter *reporter
	publish  func(ctx context.Context, inv inventory.Inventory) // called after every look
	resume   func()                                             // called when the inventory is another one: claims may need what is new

	looked chan struct{} // closed when the machine has been looked at once, whatever was seen
	node   atomic.Pointer[claims.Node]
	said   map[string]string // the last problem of each kind that was logged, so that it is logged once

	pending []pendingChange // of modes
}

// current is the machine as last seen, or what it waits for.
func (m *machine) current() (claims.Node, error) {
	if node := m.node.Load(); node != nil {
		return *node, nil
	}
	return claims.Node{}, fmt.Errorf("not ready: %w", m.status.waitingFor())
}

// inventory is the last known one, also of a machine that is not ready.
func (m *machine) inventory() inventory.Inventory {
	return m.lastKnown(m.node.Load())
}

// watch looks at the machine until ctx ends.
func (m *machine) watch(ctx context.Context) {
	for first := true; ; first = false {
		period := rescanPeriod
		if err := m.look(ctx); err != nil {
			m.say(ctx, "Machine cannot be read", err)
			if m.node.Load() == nil {
				m.status.wait(err)
				period = discoverPeriod
			}
		}
		if first {
			close(m.looked)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
	}
}

// look reads the machine once. What it was stays known when it cannot be read.
func (m *machine) look(ctx context.Context) error {
	node, broken, err := m.config.Discover()
	if err != nil {
		return err
	}
	if err := errors.Join(broken...); err != nil {
		m.say(ctx, "GPU left out: it cannot be read", err)
	}
	before := m.node.Load()
	known := m.lastKnown(before)
	records, err := m.config.Records.List()
	if err != nil {
		m.say(ctx, "Records cannot be read, every known device counts as held", err)
	}
	node.Inventory = node.Inventory.Retain(known, touched(records, err))
	node.Inventory, err = m.settle(ctx, node.Inventory, known, holders(records, err))
	if err != nil {
		return err
	}
	node.Hardware = measuredHardware{node.Hardware, m.metrics}
	m.node.Store(&node) // also when it has the same devices: the session that found them may be another one
	defer m.publish(ctx, node.Inventory)
	if before != nil && reflect.DeepEqual(before.Inventory, node.Inventory) {
		return nil
	}
	m.report(ctx, known, node.Inventory)
	if err := m.keep(node.Inventory); err != nil {
		klog.FromContext(ctx).Error(err, "Inventory not saved: a GPU that is lost now will be forgotten at the next start")
	}
	if before == nil {
		m.status.wait(nil)
	}
	m.resume()
	m.metrics.published(node.Inventory.Pool(m.config.NodeName))
	return nil
}

// settle gives every GPU its mode. Without a configuration, GPUs keep the modes that they had; the error says that they had none.
func (m *machine) settle(ctx context.Context, found, known inventory.Inventory, claimsOn func(device string) []sharing.Claim) (inventory.Inventory, error) {
	config, err := m.modes.current(ctx)
	if err == nil {
		m.modes.explain(ctx, config, found)
		settled, pending := settle(found, known, claimsOn, config)
		m.announce(ctx, pending)
		return settled, nil
	}
	settled, unknown := recorded(found, known)
	if unknown == nil {
		return settled, nil
	}
	if len(settled) == 0 {
		return nil, err
	}
	m.say(ctx, "GPU left out: without a node configuration nobody knows how it may be used", unknown)
	return settled, nil
}

// touched says which devices records are about. When some of them cannot be read, that may be any.
func touched(records []checkpoint.Record, unreadable error) func(device string) bool {
	var devices []string
	for _, rec := range records {
		devices = append(devices, rec.Plan.Devices()...)
	}
	return func(device string) bool { return unreadable != nil || slices.Contains(devices, device) }
}

// lastKnown is the inventory before, also across a restart.
func (m *machine) lastKnown(before *claims.Node) inventory.Inventory {
	if before != nil {
		return before.Inventory
	}
	data, err := os.ReadFile(filepath.Join(m.config.PluginDir, knownFile))
	var inv inventory.Inventory
	if err == nil {
		err = json.Unmarshal(data, &inv)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.Background().Error(err, "Last known inventory cannot be read, a lost GPU will be forgotten", "file", knownFile)
		return nil
	}
	return inv
}

func (m *machine) keep(inv inventory.Inventory) error {
	data, err := json.Marshal(inv)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(m.config.PluginDir, knownFile), data, 0o600)
}

// report logs what became of which GPU.
func (m *machine) report(ctx context.Context, before, now inventory.Inventory) {
	logger := klog.FromContext(ctx)
	logger.Info("Devices discovered", "devices", len(now))
	for _, d := range now {
		switch old, ok := before.Find(d.Name); {
		case d.Lost && !old.Lost:
			logger.Info("GPU lost", "device", d.Name, "uuid", d.UUID)
			m.reporter.device(Events.GPULost, d.Name, "GPU %s (%s, %s) does not answer any more", d.Name, d.Product.Name, d.UUID)
		case !d.Lost && (!ok || old.Lost):
			logger.Info("GPU found", "device", d.Name, "uuid", d.UUID, "product", d.Product.Name, "mode", d.Use.String())
		}
		if old, ok := before.Find(d.Name); ok && old.Use != d.Use {
			logger.Info("Mode of GPU changed", "device", d.Name, "uuid", d.UUID, "from", old.Use.String(), "to", d.Use.String())
			m.reporter.device(Events.ModeChanged, d.Name, "GPU %s (%s) changed from %s to %s", d.Name, d.UUID, old.Use, d.Use)
		}
	}
	for _, d := range before {
		if _, ok := now.Find(d.Name); !ok {
			logger.Info("GPU gone", "device", d.Name, "uuid", d.UUID)
		}
	}
}

// say logs a problem that lasts, once.
func (m *machine) say(ctx context.Context, what string, err error) {
	if m.said == nil {
		m.said = map[string]string{}
	}
	if text := err.Error(); text != m.said[what] {
		m.said[what] = text
		klog.FromContext(ctx).Error(err, what)
	}
}
