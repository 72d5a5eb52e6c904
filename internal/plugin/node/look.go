// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// resumePeriod is the minimum time between repairs of changed GPU settings, so that a repair that fails is not retried
// at every discovery.
const resumePeriod = time.Minute

// look runs one discovery. The last inventory stays valid when it fails.
func (n *Node) look(ctx context.Context) error {
	n.Health.Paused(ctx, n.config.paused(ctx)) // also while NVML is closed because of it
	before, errBefore := n.Records.List()
	found, err := n.Discover(ctx)
	if err != nil {
		return err
	}
	n.Metrics.Looked(found.Answered)
	if err := errors.Join(found.Broken...); err != nil {
		n.logOnce(ctx, "GPU cannot be read, it counts as lost", err)
	}
	after, errAfter := n.Records.List()
	r := newRecords(n.BootID, before, after, errors.Join(errBefore, errAfter))
	if r.incomplete != nil {
		n.logOnce(ctx, "Records cannot be read, every known device counts as held", r.incomplete)
	}
	last := n.devices.Load()
	if last == nil {
		n.known = n.saved()
	}
	gpus := withProduct(inventory.New(found.Devices), n.known).Retain(n.known.GPUs(), r.touches)
	config, noConfig := n.config.current(ctx)
	if gpus, err = n.assignModes(ctx, gpus, r, config, noConfig); err != nil {
		return err
	}
	gpus = n.block(ctx, gpus, r)
	removed := r.removed(gpus)
	heldBefore := slices.DeleteFunc(slices.Clone(n.known), func(d gpu.Device) bool { return !r.holds(d.Name) })
	devices := withoutTransientState(withRemoved(gpus.WithPartitions(r.own).Retain(heldBefore, r.holds), removed))
	n.devices.Store(&devices)
	look := gpuhealth.Look{GPUs: gpus, Devices: devices, Answers: found.Health, Unwatched: found.Unwatched,
		Persistent: found.Persistent, Held: r.touches, Untainted: n.Gates.Lacking().Taints()}
	if noConfig == nil {
		look.Policies = policies(config, gpus)
	}
	n.Health.Looked(ctx, look)
	defer n.Republish()

	partitions := slices.DeleteFunc(slices.Clone(devices), func(d gpu.Device) bool { return d.Partition == nil })
	knownBefore := n.known
	n.known = append(slices.Clone(gpus), partitions...)
	if last != nil && reflect.DeepEqual(*last, devices) {
		n.repairSettings(ctx, gpus, r)
		return nil
	}
	n.report(ctx, knownBefore, removed)
	if err := n.save(gpus, partitions); err != nil {
		klog.FromContext(ctx).Error(err, "Inventory not saved: a GPU that is lost now will be forgotten at the next "+
			"start")
	}
	if last == nil {
		n.Readiness.Wait(nil)
	}
	n.resume()
	return nil
}

// repairSettings resumes claims whose GPU does not have the compute mode that they need: the GPU was reset, or the mode
// was changed by hand.
func (n *Node) repairSettings(ctx context.Context, gpus inventory.Inventory, r records) {
	if time.Since(n.resumed) < resumePeriod {
		return
	}
	holders := sharing.InPlace(r.holders(), gpus)
	for _, d := range gpus {
		want := sharing.State(d.UUID, holders, gpus).Settings
		if d.Lost || want == nil || want.Mode == d.ComputeMode {
			continue
		}
		klog.FromContext(ctx).Info("GPU has not the compute mode that its claims need: they are brought right",
			"device", d.Name, "uuid", d.UUID, "has", d.ComputeMode, "want", want.Mode)
		n.resume()
		return
	}
}

func (n *Node) resume() {
	n.resumed = time.Now()
	n.Resume()
}

// withProduct keeps the known product and topology of GPUs in MIG mode: NVML reports less of them in this mode, and
// NVLink is off.
func withProduct(gpus, known inventory.Inventory) inventory.Inventory {
	gpus = slices.Clone(gpus)
	for i, d := range gpus {
		if before, ok := known.FindUUID(d.UUID); ok && d.MIG.Enabled && !d.Lost &&
			before.Product != (gpu.Product{}) { // of a GPU that was lost at the first look, nothing is known
			gpus[i].Product, gpus[i].Topology = before.Product, before.Topology
			gpus[i].Product.PeakCompute = cmp.Or(before.Product.PeakCompute, d.Product.PeakCompute)
		}
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

// withoutTransientState clears the fields that change with every claim, so that they do not make inventories differ.
func withoutTransientState(inv inventory.Inventory) inventory.Inventory {
	inv = slices.Clone(inv)
	for i := range inv {
		inv[i].MIG.Enabled, inv[i].MIG.Instances, inv[i].ComputeMode = false, nil, ""
	}
	return inv
}

// report logs and reports changes of GPUs, and removed partitions of claims.
func (n *Node) report(ctx context.Context, before inventory.Inventory, removed []removedPartition) {
	logger := klog.FromContext(ctx)
	gpus := n.known.GPUs()
	logger.Info("Devices discovered", "gpus", len(gpus), "partitions", len(n.known)-len(gpus))
	for _, d := range gpus {
		old, known := before.Find(d.Name)
		n.reportGPU(logger.WithValues("device", d.Name, "uuid", d.UUID), d, old, known)
	}
	for _, d := range before.GPUs() {
		if _, ok := n.known.Find(d.Name); !ok {
			logger.Info("GPU gone", "device", d.Name, "uuid", d.UUID)
		}
	}
	for _, p := range removed {
		if old, _ := before.Find(p.device); !old.Lost {
			logger.Info("Partition of a claim was removed", "device", p.device, "uuid", p.partition.UUID, "claim",
				p.claim)
			n.Reporter.PartitionLost(p.claim, p.device, p.partition)
		}
	}
}

func (n *Node) reportGPU(logger klog.Logger, d, old gpu.Device, known bool) {
	switch {
	case d.MovedTo != "" && old.MovedTo == "":
		logger.Info("GPU has another place on the PCI bus", "now", d.MovedTo)
		n.Reporter.Node(report.Events.GPULost, fmt.Sprintf("GPU %s (%s, %s) has another place on the PCI bus: its "+
			"name is %s now. Pods with claims for %s cannot use it any more: delete them", d.Name, d.Product.Name,
			old.UUID, d.MovedTo, d.Name))
	case d.Lost && !old.Lost:
		logger.Info("GPU lost")
		n.Reporter.Node(report.Events.GPULost, fmt.Sprintf("GPU %s (%s, %s) does not answer any more", d.Name,
			d.Product.Name, d.UUID))
	case !d.Lost && (!known || old.Lost):
		logger.Info("GPU found", "product", d.Product.Name, "mode", d.Use.String())
	}
	if known && old.Use != d.Use {
		logger.Info("Mode of GPU changed", "from", old.Use.String(), "to", d.Use.String())
		n.Reporter.Node(report.Events.ModeChanged, fmt.Sprintf("GPU %s (%s) changed from %s to %s", d.Name, d.UUID,
			old.Use, d.Use))
	}
	if d.Blocked != "" && old.Blocked == "" {
		what := "cannot be partitioned"
		if d.MIG.Enabled {
			what = "cannot be made whole again"
		}
		logger.Info("GPU "+what, "why", d.Blocked)
		n.Reporter.Node(report.Events.MIGBlocked, fmt.Sprintf("GPU %s (%s) %s: %s", d.Name, d.UUID, what, d.Blocked))
	}
	if unusable(d) && !unusable(old) {
		logger.Info("GPU is in MIG mode and offered with partitions: none, so nobody can have it: " +
			"switch MIG mode off, or offer its partitions")
	}
}

// unusable reports whether the GPU can be allocated neither as a whole nor in partitions.
func unusable(d gpu.Device) bool { return d.MIG.Enabled && d.Use.Partitions == gpu.PartitionsNone }
