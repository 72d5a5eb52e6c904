// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

// discovery is what a discovery needs to know of the state at its start. There is one at a time.
type discovery struct {
	first   bool // none has worked yet
	known   inventory.Inventory
	lacking publish.Lacking
	blocked map[gpu.UUID]string
	unbound map[gpu.UUID]string
	stuck   map[gpu.UUID]string // GPUs that do not come back from virtual machines
}

// found is what a discovery has found.
type found struct {
	gpu.Discovery
	err      error   // nothing is known
	records  records // before and after
	known    inventory.Inventory
	config   nodeconfig.Config
	noConfig error                  // why there is no configuration yet
	gpus     inventory.Inventory    // with their modes
	pending  []report.PendingChange // of modes
	unknown  error                  // GPUs that are left out, because their mode is not known
	users    map[gpu.UUID]string    // programs that use a GPU
	openers  map[gpu.UUID]string    // those that keep it from virtual machines
}

// discover reads the machine and its configuration. It blocks as long as a GPU does.
func (n *Node) discover(ctx context.Context, d *discovery) *found {
	n.send(paused(n.config.paused(ctx))) // also while NVML is closed because of it
	before, errBefore := n.Records.List()
	discovered, err := n.Machine.Discover(ctx)
	if err != nil {
		return &found{err: err}
	}
	after, errAfter := n.Records.List()
	f := &found{Discovery: discovered, known: d.known, users: map[gpu.UUID]string{}, openers: map[gpu.UUID]string{},
		records: newRecords(n.BootID, before, after, errors.Join(errBefore, errAfter))}
	if d.first {
		f.known = saved(n.Dir)
	}
	gpus := f.known.GPUs()
	present := withOwnVGPUs(withPassthrough(f, gpus, d.stuck), f.records)
	free := func(d gpu.Device) bool { return !f.records.touches(d.Name) }
	n.awaitRemoval(ctx, silent(gpus, present, free))
	removed := func(d gpu.Device) bool { return free(d) && n.Machine.Removed(d) }
	expected := slices.DeleteFunc(slices.Clone(gpus), removed)
	present = slices.DeleteFunc(present, func(d gpu.Device) bool { return d.Lost && removed(d) })
	all := withProduct(inventory.New(present), f.known).Retain(expected, f.records.touches)
	all = withIndexes(all, gpus)
	f.config, f.noConfig = n.config.current(ctx)
	if f.noConfig == nil {
		n.config.logUnmatched(ctx, f.config, all)
		f.gpus, f.pending = assignModes(all, gpus, f.records,
			func(d0 gpu.Device) gpu.SharingMode {
				use := f.config.For(d0)
				use.NoPassthrough = use.NoPassthrough || !n.VirtualMachines
				use.OnDemand = n.PartitionRequests.Name != ""
				return d.lacking.Limit(d0, use)
			})
	} else if f.gpus, f.unknown = withKnownModes(all, gpus); f.unknown != nil && len(f.gpus) == 0 {
		f.err, f.unknown = f.noConfig, nil
		return f
	}
	for _, g := range f.gpus {
		if !n.FindUsers || f.records.touches(g.Name) {
			continue
		}
		if changesMode(g) && d.blocked[g.UUID] == "" {
			f.users[g.UUID] = usedBy(ctx, g, n.Machine.Users)
		}
		if bindable(g) && d.unbound[g.UUID] == "" {
			f.openers[g.UUID] = usedBy(ctx, g, n.Machine.Openers)
		}
	}
	return f
}

// silent returns the known GPUs that are free, answered before, and do not now.
func silent(known inventory.Inventory, present []gpu.Device, free func(gpu.Device) bool) []gpu.Device {
	return slices.DeleteFunc(slices.Clone(known), func(d gpu.Device) bool {
		answers := func(now gpu.Device) bool { return now.UUID == d.UUID && !now.Lost }
		return d.Lost || !free(d) || slices.ContainsFunc(present, answers)
	})
}

// awaitRemoval waits while the GPUs may be about to leave the PCI bus: whether they are lost or removed shows then.
func (n *Node) awaitRemoval(ctx context.Context, gpus []gpu.Device) {
	const looks = 20
	for range looks {
		if gpus = slices.DeleteFunc(gpus, n.Machine.Removed); len(gpus) == 0 || ctx.Err() != nil {
			return
		}
		time.Sleep(gpu.LeavesBus / looks)
	}
}

// withProduct keeps the known product and topology of GPUs in MIG mode: NVML reports less of them in this mode, and
// NVLink is off.
func withProduct(gpus, known inventory.Inventory) inventory.Inventory {
	gpus = slices.Clone(gpus)
	for i, d := range gpus {
		if before, ok := known.FindUUID(d.UUID); ok && d.MIG.Enabled && !d.Lost &&
			before.Product != (gpu.Product{}) { // of a GPU that was lost at the first discovery, nothing is known
			gpus[i].Product, gpus[i].Topology = before.Product, before.Topology
			gpus[i].Product.PeakCompute = cmp.Or(before.Product.PeakCompute, d.Product.PeakCompute)
		}
	}
	return gpus
}

// withIndexes gives each GPU the index that it keeps, because node configurations and claims select by it: NVML numbers
// the others anew when a GPU goes to a virtual machine. A known GPU has its former index; a new one has that of the GPU
// that was in its place, or NVML's, or else the first free one. A GPU that somebody else has bound to vfio-pci has
// none.
func withIndexes(gpus, known inventory.Inventory) inventory.Inventory {
	gpus = slices.Clone(gpus)
	former := func(d gpu.Device, found bool) int {
		if !found {
			return -1
		}
		return d.Index
	}
	taken, done := map[int]bool{-1: true}, map[string]bool{}
	for _, choose := range []func(gpu.Device) int{
		func(d gpu.Device) int { return former(known.FindUUID(d.UUID)) },
		func(d gpu.Device) int { return former(known.Find(d.Name)) },
		func(d gpu.Device) int { return d.Index },
		func(gpu.Device) (n int) {
			for taken[n] {
				n++
			}
			return n
		},
	} {
		for i, d := range gpus {
			if n := choose(d); !done[d.Name] && !taken[n] && (d.VFIO == nil || !d.VFIO.External()) {
				gpus[i].Index, taken[n], done[d.Name] = n, true, true
			}
		}
	}
	return gpus
}

// withoutOwnPartitions returns what is remembered of GPUs for when they are lost: a partition of the driver may end
// meanwhile, with its claim, and must not count as one that somebody else has made.
func withoutOwnPartitions(gpus inventory.Inventory, own func(gpu.Placement) bool) inventory.Inventory {
	gpus = slices.Clone(gpus)
	for i, d := range gpus {
		gpus[i].MIG.Instances = inventory.Foreign(d, own)
	}
	return gpus
}

// withRemoved marks removed partitions of claims as lost. They cannot be allocated, but their claims can still be
// released.
func withRemoved(inv inventory.Inventory, all []removedPartition) inventory.Inventory {
	for i, d := range inv {
		if slices.ContainsFunc(all, func(p removedPartition) bool { return p.device == d.Name }) {
			inv[i].Lost = true
		}
	}
	return inv
}

// withoutTransientState clears the fields that change with every claim, or with every renewal of a license, so that
// they do not make inventories differ.
func withoutTransientState(inv inventory.Inventory) inventory.Inventory {
	inv = slices.Clone(inv)
	for i := range inv {
		inv[i].MIG.Enabled, inv[i].MIG.Instances, inv[i].ComputeMode = false, nil, ""
		if v := inv[i].Guest; v != nil {
			inv[i].Guest = &gpu.Guest{HostDriver: v.HostDriver, License: gpu.License{State: v.License.State}}
		}
	}
	return inv
}

// report logs and reports changes of GPUs, and removed partitions of claims.
func (s *state) report(ctx context.Context, before inventory.Inventory, removed []removedPartition, a *actions) {
	logger := klog.FromContext(ctx)
	gpus := s.known.GPUs()
	logger.Info("Devices discovered", "gpus", len(gpus), "partitions", len(s.known)-len(gpus))
	for _, d := range gpus {
		old, known := before.Find(d.Name)
		reportGPU(logger.WithValues("device", d.Name, "uuid", d.UUID), d, old, known, a)
	}
	reportRefused(gpus, before, a)
	for _, d := range before.GPUs() {
		if _, ok := s.known.Find(d.Name); !ok {
			logger.Info("GPU gone", "device", d.Name, "uuid", d.UUID)
		}
	}
	for _, p := range removed {
		if old, _ := before.Find(p.device); !old.Lost {
			logger.Info("Partition of a claim was removed", "device", p.device, "uuid", p.partition.UUID, "claim",
				p.claim)
			a.Removed = append(a.Removed, p)
		}
	}
}

// notice adds news about the node.
func (a *actions) notice(e event.Kind, text string) {
	a.Notices = append(a.Notices, report.Notice{Event: e, Text: text})
}

func reportGPU(logger klog.Logger, d, old gpu.Device, known bool, a *actions) {
	switch {
	case d.MovedTo != "" && old.MovedTo == "":
		logger.Info("GPU has another place on the PCI bus", "now", d.MovedTo)
		a.notice(report.Events.GPULost, fmt.Sprintf("GPU %s (%s, %s) has another place on the PCI bus: its "+
			"name is %s now. Pods with claims for %s cannot use it any more: delete them", d.Name, d.Product.Name,
			old.UUID, d.MovedTo, d.Name))
	case d.Lost && !d.ResetRequired && (!old.Lost || old.ResetRequired):
		logger.Info("GPU lost")
		a.notice(report.Events.GPULost, fmt.Sprintf("GPU %s (%s, %s) does not answer any more", d.Name,
			d.Product.Name, d.UUID))
	case !d.Lost && (!known || old.Lost):
		logger.Info("GPU found", "product", d.Product.Name, "mode", d.Use.String())
	}
	if known && old.Use != d.Use {
		logger.Info("Mode of GPU changed", "from", old.Use.String(), "to", d.Use.String())
		a.notice(report.Events.ModeChanged, fmt.Sprintf("GPU %s (%s) changed from %s to %s", d.Name, d.UUID,
			old.Use, d.Use))
	}
	if d.Blocked != "" && old.Blocked == "" {
		what := "cannot be partitioned"
		if d.MIG.Enabled {
			what = "cannot be made whole again"
		}
		logger.Info("GPU "+what, "why", d.Blocked)
		a.notice(report.Events.MIGBlocked, fmt.Sprintf("GPU %s (%s) %s: %s", d.Name, d.UUID, what, d.Blocked))
	}
	reportPassthrough(logger, d, old, a)
	if n := len(d.VGPUs.Foreign()); n != len(old.VGPUs.Foreign()) {
		logger.Info("GPU has vGPUs that somebody else has made: with any, it is offered in no other shape", "vgpus", n)
	}
	if unusable(d) && !unusable(old) {
		logger.Info("GPU is in MIG mode and offered with partitions: none, so nobody can have it: " +
			"switch MIG mode off, or offer its partitions")
	}
}

// unusable reports whether the GPU can be allocated neither as a whole nor in partitions.
func unusable(d gpu.Device) bool { return d.MIG.Enabled && d.Use.Partitions == gpu.PartitionsNone }
