// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// The scheduler's allocator, run in this process on the slices of nodes with partitionable GPUs, without a cluster.

const (
	migTables = "pkg/inventory/testdata/mig/tables.yaml"
	migCard   = "H100-80GB"
	halfFull  = 1000 // nodes
)

// partitionable returns the inventory of count GPUs with all their possible partitions.
func partitionable(tables string, count int) (inventory.Inventory, error) {
	text, err := os.ReadFile(tables)
	if err != nil {
		return nil, fmt.Errorf("run this in the repository root: %w", err)
	}
	var profiles map[string][]gpu.Profile
	if err := yaml.Unmarshal(text, &profiles); err != nil {
		return nil, fmt.Errorf("%s: %w", tables, err)
	}
	var gpus []gpu.Device
	for i := range count {
		pci := gpu.PCIAddress{Bus: uint8(0x10 + i)}
		id := fmt.Sprintf("GPU-%d", i)
		gpus = append(gpus, gpu.Device{
			Name: pci.DeviceName(), Type: gpu.TypeGPU, UUID: gpu.UUID(id), PCI: pci, PCIeRoot: "pci0000:0f", Index: i,
			Minor: i, Memory: 80 << 30,
			Topology: gpu.Topology{NVLinkDomain: "all", FabricDomain: id},
			Product:  gpu.Product{Name: migCard, Multiprocessors: 132, MemoryBandwidth: 3352, PeakCompute: 989},
			MIG:      gpu.MIG{Capable: true, Switchable: true, Profiles: profiles[migCard]},
			Use:      gpu.SharingMode{Partitions: gpu.PartitionsDynamic},
		})
	}
	return inventory.New(gpus).WithPartitions(func(gpu.Placement) bool { return true }), nil
}

// allocatorNode is a node whose devices the allocator searches.
type allocatorNode struct {
	inv      inventory.Inventory
	slices   []*resourceapi.ResourceSlice
	compiled *cel.Cache
	held     allocator.Held
}

func newAllocatorNode(inv inventory.Inventory) *allocatorNode {
	s := &allocatorNode{inv: inv, compiled: allocator.NewCache(100)}
	s.slices = inventory.Slices(driver, "node", inv.Pools("node"))
	for i, slice := range s.slices {
		slice.Name, slice.UID = fmt.Sprint(slice.GenerateName, i), types.UID(fmt.Sprint(i))
	}
	return s
}

// fill allocates about half of the node at random: of each GPU all, a share, nothing, or partitions.
func (s *allocatorNode) fill(rng *rand.Rand) {
	s.held = allocator.HeldBy(nil, nil)
	for i, d := range s.inv.GPUs() {
		switch rng.Intn(5) {
		case 0, 1:
			s.held.Add(resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "node", Device: d.Name,
				ShareID: ptr.To(types.UID(fmt.Sprint("share-", i))),
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse([]string{"80Gi", "10Gi"}[rng.Intn(2)]), "cores": {}}})
		default:
			s.fillGPU(rng, d.UUID, rng.Intn(8))
		}
	}
}

// fillGPU allocates partitions until at least that number of memory slices is taken.
func (s *allocatorNode) fillGPU(rng *rand.Rand, of gpu.UUID, enough int) {
	var held []gpu.Partition
	taken := 0
	for _, i := range rng.Perm(len(s.inv)) {
		p := s.inv[i].Partition
		if p == nil || p.Parent != of || taken+p.Size > 8 || taken >= enough || !fitsBeside(*p, held) {
			continue
		}
		s.held.Add(resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "node", Device: s.inv[i].Name})
		held, taken = append(held, *p), taken+p.Size
	}
}

func fitsBeside(p gpu.Partition, held []gpu.Partition) bool {
	for _, h := range held {
		if h.Overlaps(p.Placement) || h.Engines.OFA > 0 && p.Engines.OFA > 0 {
			return false
		}
	}
	return true
}

// ask runs the allocator for a claim and returns the duration.
func (s *allocatorNode) ask(ctx context.Context, class string, selectors []string, count int64) (time.Duration, error) {
	request := resourceapi.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, expression := range selectors {
		request.Selectors = append(request.Selectors,
			resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "claim", UID: "claim"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "part", Exactly: &request}}
	begin := time.Now()
	scheduler, err := allocator.New(ctx, s.held, deviceClasses{}, s.slices, s.compiled)
	if err != nil {
		return 0, err
	}
	_, err = scheduler.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
		[]*resourceapi.ResourceClaim{claim})
	return time.Since(begin), err
}

// deviceClasses are the device classes "gpu" for whole GPUs, "mig" for all partitions, and one for each profile, such
// as "mig-1g.10gb".
type deviceClasses struct{}

func (deviceClasses) List() ([]*resourceapi.DeviceClass, error) {
	return nil, errors.ErrUnsupported // no claim is for an extended resource
}

func (deviceClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	kind, profile, ofProfile := strings.Cut(name, "-")
	expression := "device.driver == '" + driver + "' && device.attributes['" + driver + "'].type == '" + kind + "'"
	if ofProfile {
		expression += " && " + isProfile(profile)
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return class, nil
}

func isProfile(profile string) string {
	return "device.attributes['" + driver + "'].profile == '" + profile + "'"
}

// measurePartitions times allocations of partitions.
func measurePartitions(ctx context.Context, b *bench) error {
	var nodes []*allocatorNode
	for _, count := range []int{8, 16} {
		inv, err := partitionable(migTables, count)
		if err != nil {
			return err
		}
		nodes = append(nodes, newAllocatorNode(inv))
	}
	b.results["partslices"] = []float64{float64(len(nodes[0].slices))}
	var one, all samples
	rng := rand.New(rand.NewSource(1))
	for range halfFull {
		n := nodes[0]
		n.fill(rng)
		d, err := n.ask(ctx, "mig-1g.10gb", nil, 1)
		if err != nil {
			return err
		}
		one = append(one, d)
		n = nodes[rng.Intn(len(nodes))]
		n.fill(rng)
		if d, err = n.askAsRecommended(ctx, rng); err != nil {
			return err
		}
		all = append(all, d)
	}
	b.results["partition"] = []float64{one.p50()}
	b.results["partitionways"] = []float64{all.at(0.99), all.p50()}
	return nil
}

// askAsRecommended requests devices in a random way of those that docs/use/partitions.md recommends. They may be
// unavailable.
func (s *allocatorNode) askAsRecommended(ctx context.Context, rng *rand.Rand) (time.Duration, error) {
	var profiles []string
	for _, d := range s.inv {
		if d.Partition != nil {
			profiles = append(profiles, d.Partition.Profile) // weighted by the number of placements
		}
	}
	profile := profiles[rng.Intn(len(profiles))]
	count := 1 + rng.Int63n(4)
	if strings.Contains(profile, "+") {
		count = 1 + rng.Int63n(2)
	}
	switch rng.Intn(5) {
	case 0:
		return s.ask(ctx, "mig-"+profile, nil, count)
	case 1:
		return s.ask(ctx, "mig", []string{isProfile(profile)}, 1)
	case 2:
		return s.ask(ctx, "gpu", nil, 1)
	case 3:
		return s.ask(ctx, "mig", nil, 1)
	}
	return s.ask(ctx, "mig-"+profile, nil, 1)
}
