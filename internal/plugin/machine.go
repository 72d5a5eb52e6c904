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

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

const (
	// discoverPeriod is how often a machine that is not ready is looked at again.
	discoverPeriod = 2 * time.Second
	// rescanPeriod is how often a machine is asked whether its GPUs are still the same.
	rescanPeriod = 10 * time.Second
	// knownFile keeps the last inventory in the plugin's directory: what a lost GPU was is not written anywhere else.
	knownFile = "devices.json"
	// partitionsFile does the same for partitions.
	partitionsFile = "partitions.json"
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
	known  inventory.Inventory // all that there was at the last look, also GPUs of which claims can get partitions only
	busy   *busyGPUs
	// uncounted means that the API server keeps no counters: GPUs are offered whole, or nothing would tie them to their partitions.
	uncounted atomic.Bool
	said      map[string]string // the last problem of each kind that was logged, so that it is logged once

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
	if node := m.node.Load(); node != nil {
		return node.Inventory
	}
	return m.saved()
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
	before, errBefore := m.config.Records.List()
	node, broken, err := m.config.Discover()
	if err != nil {
		return err
	}
	if err := errors.Join(broken...); err != nil {
		m.say(ctx, "GPU cannot be read, it counts as lost", err)
	}
	after, errAfter := m.config.Records.List()
	l := newLedger(m.config.BootID, before, after, errors.Join(errBefore, errAfter))
	if l.incomplete != nil {
		m.say(ctx, "Records cannot be read, every known device counts as held", l.incomplete)
	}
	first := m.node.Load() == nil
	if first {
		m.known = m.saved()
	}
	gpus := remember(node.Inventory, m.known).Retain(m.known.GPUs(), l.touched)
	if gpus, err = m.settle(ctx, gpus, m.known.GPUs(), l); err != nil {
		return err
	}
	gpus = m.block(gpus, l)
	gone := l.missing(gpus)
	heldBefore := slices.DeleteFunc(slices.Clone(m.known), func(d gpu.Device) bool { return !l.held(d.Name) })
	node.Inventory = steady(withoutMissing(gpus.Divide(l.own).Retain(heldBefore, l.held), gone))
	node.Hardware = measuredHardware{node.Hardware, m.metrics, m.busy}
	last := m.node.Load()
	m.node.Store(&node) // also when it has the same devices: the session that found them may be another one
	defer m.publish(ctx, node.Inventory)
	partitions := slices.DeleteFunc(slices.Clone(node.Inventory), func(d gpu.Device) bool { return d.Partition == nil })
	knownBefore := m.known
	m.known = append(slices.Clone(gpus), partitions...)
	if !first && reflect.DeepEqual(last.Inventory, node.Inventory) {
		return nil
	}
	m.report(ctx, knownBefore, m.known, gone)
	if err := m.keep(gpus, partitions); err != nil {
		klog.FromContext(ctx).Error(err, "Inventory not saved: a GPU that is lost now will be forgotten at the next start")
	}
	if first {
		m.status.wait(nil)
	}
	m.resume()
	m.metrics.published(node.Inventory.Pool(m.config.NodeName))
	return nil
}

// settle gives every GPU its mode. Without a configuration, GPUs keep the modes that they had; the error says that they had none.
func (m *machine) settle(ctx context.Context, found, known inventory.Inventory, l ledger) (inventory.Inventory, error) {
	config, err := m.modes.current(ctx)
	if err == nil {
		m.modes.explain(ctx, config, found)
		settled, pending := settle(found, known, l, m.offered(config))
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

// offered is how GPUs are to be used, as far as the API server allows.
func (m *machine) offered(config nodeconfig.Config) func(gpu.Device) gpu.Use {
	return func(d gpu.Device) gpu.Use {
		use := config.For(d)
		if m.uncounted.Load() && use.Partitions != gpu.PartitionsStatic {
			use.Partitions = gpu.PartitionsNone
		}
		return use
	}
}

// saved is the last known inventory of the instance before.
func (m *machine) saved() inventory.Inventory {
	return append(m.load(knownFile), m.load(partitionsFile)...)
}

func (m *machine) load(file string) inventory.Inventory {
	data, err := os.ReadFile(filepath.Join(m.config.PluginDir, file))
	var inv inventory.Inventory
	if err == nil {
		err = json.Unmarshal(data, &inv)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.Background().Error(err, "Last known inventory cannot be read, a lost GPU will be forgotten", "file", file)
		return nil
	}
	return inv
}

// keep saves what is known. A driver that knows no partitions takes all that is in the first file for GPUs.
func (m *machine) keep(gpus, partitions inventory.Inventory) error {
	for file, inv := range map[string]inventory.Inventory{knownFile: gpus, partitionsFile: partitions} {
		data, err := json.Marshal(inv)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(filepath.Join(m.config.PluginDir, file), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// report logs what became of which GPU, and of partitions that claims have.
func (m *machine) report(ctx context.Context, before, now inventory.Inventory, gone []missing) {
	logger := klog.FromContext(ctx)
	gpus := now.GPUs()
	logger.Info("Devices discovered", "gpus", len(gpus), "partitions", len(now)-len(gpus))
	for _, d := range gpus {
		old, known := before.Find(d.Name)
		switch {
		case d.Lost && !old.Lost:
			logger.Info("GPU lost", "device", d.Name, "uuid", d.UUID)
			m.reporter.device(Events.GPULost, d.Name, "GPU %s (%s, %s) does not answer any more", d.Name, d.Product.Name, d.UUID)
		case !d.Lost && (!known || old.Lost):
			logger.Info("GPU found", "device", d.Name, "uuid", d.UUID, "product", d.Product.Name, "mode", d.Use.String())
		}
		if known && old.Use != d.Use {
			logger.Info("Mode of GPU changed", "device", d.Name, "uuid", d.UUID, "from", old.Use.String(), "to", d.Use.String())
			m.reporter.device(Events.ModeChanged, d.Name, "GPU %s (%s) changed from %s to %s", d.Name, d.UUID, old.Use, d.Use)
		}
		if d.Blocked != "" && old.Blocked == "" {
			what := "cannot be partitioned"
			if d.MIG.Enabled {
				what = "cannot be made whole again"
			}
			logger.Info("GPU "+what, "device", d.Name, "uuid", d.UUID, "why", d.Blocked)
			m.reporter.device(Events.MIGBlocked, d.Name, "%s", note(fmt.Sprintf("GPU %s (%s) %s: %s", d.Name, d.UUID, what, d.Blocked)))
		}
		if d.MIG.Enabled && d.Use.Partitions == gpu.PartitionsNone && !(old.MIG.Enabled && old.Use.Partitions == gpu.PartitionsNone) {
			logger.Info("GPU is in MIG mode and offered with partitions: none, so nobody can have it: switch MIG mode off, or offer its partitions", "device", d.Name, "uuid", d.UUID)
		}
	}
	for _, d := range before.GPUs() {
		if _, ok := now.Find(d.Name); !ok {
			logger.Info("GPU gone", "device", d.Name, "uuid", d.UUID)
		}
	}
	for _, g := range gone {
		if old, _ := before.Find(g.device); !old.Lost {
			logger.Info("Partition is gone under a claim", "device", g.device, "uuid", g.partition.UUID, "claim", g.claim)
			m.reporter.partitionLost(g.claim, g.device, g.partition)
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
