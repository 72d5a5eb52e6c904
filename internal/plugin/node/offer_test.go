// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// offered says how many GPUs are published as a whole, and of which possible partitions are.
func (l *testNode) offered() string {
	var all []string
	whole := 0
	for _, d := range l.published {
		switch {
		case d.Partition == nil:
			whole++
		case !slices.Contains(all, gpu.ParentName(d.Name)):
			all = append(all, gpu.ParentName(d.Name))
		}
	}
	slices.Sort(all)
	return strings.TrimSpace(fmt.Sprint(whole, " whole; ", strings.Join(all, " ")))
}

// part records a claim on a partition of the GPU.
func (l *testNode) part(claim, of string) checkpoint.PreparedClaim {
	l.Helper()
	rec := l.hold(claim, of+"-mig-1g10gb-0")
	rec.Plan.Assignments[0].Partition = &sharing.AssignedPartition{Placement: gpu.Placement{
		Parent: gpu.UUID(strings.ToUpper(of)), Profile: "1g.10gb", Size: 1}}
	if err := l.records.Put(rec); err != nil {
		l.Fatal(err)
	}
	return rec
}

func TestPartitionsOnDemand(t *testing.T) {
	l := newTestNode(t)
	l.devices = nil
	for i := range 4 {
		l.devices = append(l.devices, gpu.Device{Name: fmt.Sprint("gpu-", i), UUID: gpu.UUID(fmt.Sprint("GPU-", i)),
			Type: gpu.TypeGPU, Index: i, PCI: gpu.PCIAddress{Bus: uint8(i)},
			MIG: gpu.MIG{Capable: true, Switchable: true,
				Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Slices: 1, Starts: []int{0, 1}}}}})
	}
	want := func(when, want string) {
		t.Helper()
		if err := l.look(); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got := l.offered(); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	minute := func() {
		for name, since := range l.state.offered.Since {
			l.state.offered.Since[name] = since.Add(-inventory.WithdrawAfter)
		}
	}
	want("without a configuration", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
	l.write("default", configHead+"gpus: [{partitions: onDemand}]")
	want("GPUs of which partitions were published keep them while they are free", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
	for i := range 3 {
		l.hold(fmt.Sprint("whole-", i), fmt.Sprint("gpu-", i))
	}
	want("held for a moment", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
	minute()
	want("held for a minute", "4 whole; gpu-3")
	last := l.part("last", "gpu-3")
	want("used in parts", "4 whole; gpu-3")
	if err := l.records.Delete(checkpoint.PreparedClaim{Claim: sharing.Claim{UID: "whole-1"},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-1"}}}}); err != nil {
		t.Fatal(err)
	}
	want("a GPU is free again", "4 whole; gpu-1 gpu-3")
	l.restart(l.Options)
	want("after a restart", "4 whole; gpu-1 gpu-3")
	if err := l.records.Delete(last); err != nil {
		t.Fatal(err)
	}
	want("nothing is withdrawn from free GPUs", "4 whole; gpu-1 gpu-3")
	l.part("other", "gpu-1")
	want("one is used in parts, and one is spare", "4 whole; gpu-1 gpu-3")
	l.hold("whole-3", "gpu-3")
	want("the spare one is held for a moment", "4 whole; gpu-1 gpu-3")
	minute()
	want("the spare one is held", "4 whole; gpu-1")
	l.write("default", "")
	want("without a configuration again", "4 whole; gpu-0 gpu-1 gpu-2 gpu-3")
}

// While a record cannot be read, each GPU may be held, as a whole or not: no partition is withdrawn, and the minute
// begins when all can be read.
func TestUnreadableRecordsWithdrawNothing(t *testing.T) {
	gpus := inventory.New(simtest.Discover(t, "dgx-h100")[:2])
	for i := range gpus {
		gpus[i].Use = gpu.SharingMode{Partitions: gpu.PartitionsDynamic, OnDemand: true}
	}
	s := newState(Options{Dir: t.TempDir()})
	s.offered.GPUs = map[string]bool{gpus[0].Name: true, gpus[1].Name: true}
	now := time.Now()
	look := func(when string, after time.Duration, incomplete error, want int) {
		t.Helper()
		now = now.Add(after)
		rec := checkpoint.PreparedClaim{Claim: sharing.Claim{UID: "whole"}, Phase: checkpoint.Releasing,
			Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: gpus[0].Name, GPU: gpus[0].Physical()}}}}
		records := []checkpoint.PreparedClaim{rec}
		s.basis = basis{gpus: gpus, known: s.known, records: newRecords("now", records, records, incomplete)}
		var a actions
		s.derive()
		s.offer(now, false, &a)
		if len(s.offered.GPUs) != want {
			t.Errorf("%s: partitions of %v are published, want %d GPUs", when, s.offered.GPUs, want)
		}
	}
	look("unreadable", 0, checkpoint.ErrUnreadable, 2)
	look("unreadable for long", 2*inventory.WithdrawAfter, checkpoint.ErrUnreadable, 2)
	look("readable again", 2*inventory.WithdrawAfter, nil, 2)
	look("for a minute", inventory.WithdrawAfter, nil, 1)
}

// TestWanted: when a pod waits for partitions of this node, those of all unused GPUs are published, and stay. That is
// the default where somebody asks.
func TestWanted(t *testing.T) {
	l := newTestNode(t)
	for i := range l.devices {
		l.devices[i].MIG = gpu.MIG{Capable: true, Switchable: true,
			Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Slices: 1, Starts: []int{0}}}}
	}
	l.turn(l.Context(), wanted{}) // nothing is known of the GPUs yet
	l.PartitionRequests.Name = "requests"
	l.restart(l.Options)
	want := func(when, want string) {
		t.Helper()
		if got := l.offered(); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	look := func(when, offered string) {
		t.Helper()
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		want(when, offered)
	}
	look("at first", "2 whole; gpu-1")
	l.turn(l.Context(), wanted{})
	want("at once, without a discovery", "2 whole; gpu-0 gpu-1")
	look("after a discovery", "2 whole; gpu-0 gpu-1")
	l.restart(l.Options)
	look("after a restart", "2 whole; gpu-0 gpu-1")
	l.hold("whole", "gpu-0")
	look("held for a moment", "2 whole; gpu-0 gpu-1")
	l.state.offered.Since["gpu-0"] = l.state.offered.Since["gpu-0"].Add(-inventory.WithdrawAfter)
	look("held for a minute", "2 whole; gpu-1")
	l.turn(l.Context(), wanted{})
	want("a GPU that is held as a whole has none to give", "2 whole; gpu-1")
	l.write("default", configHead+"gpus: [{partitions: dynamic}]")
	look("all by the node configuration", "2 whole; gpu-0 gpu-1")
}

// What claims change is looked at at once where it may change what is published, and not otherwise.
func TestClaimsAskForADiscovery(t *testing.T) {
	l := newTestNode(t)
	for i := range l.devices {
		l.devices[i].MIG = gpu.MIG{Capable: true, Switchable: true,
			Profiles: []gpu.Profile{{Name: "1g.10gb", Size: 1, Slices: 1, Starts: []int{0}}}}
	}
	l.write("default", configHead+"gpus: [{partitions: onDemand}]")
	asks := func(event any) bool {
		l.state.asked, l.state.discovering = false, true // it stays so while one is under way
		l.turn(l.Context(), event)
		return l.state.asked
	}
	if err := l.look(); err != nil || l.offered() != "2 whole; gpu-1" {
		t.Fatal(l.offered(), err)
	}
	if asks(prepared{"gpu-0"}) || asks(released{}) {
		t.Error("a claim for another GPU asks for a discovery")
	}
	if !asks(prepared{"gpu-1-mig-1g10gb-0"}) {
		t.Error("a claim for a partition of the spare GPU asks for no discovery")
	}
	l.hold("a", "gpu-1")
	l.hold("b", "gpu-0")
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	if asks(prepared{"gpu-1"}) {
		t.Error("one more claim for a GPU that is held asks for a discovery")
	}
	if !asks(released{}) {
		t.Error("the end of a claim on a node without a spare GPU asks for no discovery")
	}
}

// TestNoGPUIsGivenTwice lets Kubernetes' allocator give out what a node publishes on demand: whatever claims come, are
// prepared and end, and however often the plugin starts again or its configuration changes, a device that is given out
// overlaps no other.
func TestNoGPUIsGivenTwice(t *testing.T) {
	gpus := inventory.New(simtest.Discover(t, "dgx-h100")[:3])
	classes, compiled := allocator.ClassesOf(clustertest.Classes(t)), allocator.NewCache(20)
	const node = "node"
	type given struct {
		*resourceapi.ResourceClaim
		rec      checkpoint.PreparedClaim
		prepared bool
	}
	var claims []given
	r, now, counts := rand.New(rand.NewPCG(1, 2)), time.Now(), map[string]int{}
	s := newState(Options{Dir: t.TempDir()})
	s.offered.GPUs = map[string]bool{}
	onDemand := true
	look := func() {
		all := slices.Clone(gpus)
		for i := range all {
			all[i].Use = gpu.SharingMode{Partitions: gpu.PartitionsDynamic, OnDemand: onDemand}
		}
		var records []checkpoint.PreparedClaim
		for _, c := range claims {
			if c.prepared {
				records = append(records, c.rec)
			}
		}
		s.basis = basis{gpus: all, known: s.known, records: newRecords("now", records, records, nil)}
		var a actions
		s.derive()
		s.offer(now, false, &a)
		s.publish(&a)
		counts[fmt.Sprint(len(s.offered.GPUs), " GPUs with partitions published")]++
	}
	look()
	for range 2000 {
		switch r.IntN(8) {
		case 0, 1, 2:
			class := []string{"gpu.nvidia.com", "mig-1g.10gb.nvidia.com", "mig-3g.40gb.nvidia.com"}[r.IntN(3)]
			more := ""
			if class == "gpu.nvidia.com" && r.IntN(2) == 0 {
				more = ", capacity: {requests: {memory: 20Gi}}"
			}
			claim := clustertest.Claim(t, fmt.Sprintf("requests: [{name: r, exactly: {deviceClassName: %s%s}}]", class,
				more))
			claim.UID = types.UID(fmt.Sprint(counts["claims"]))
			counts["claims"]++
			var held []*resourceapi.ResourceClaim
			for _, c := range claims {
				held = append(held, c.ResourceClaim)
			}
			published := inventory.Slices(driver, node, s.published.Pools(node))
			for i, slice := range published {
				slice.Name = fmt.Sprint(i)
			}
			got, err := classes.Place(t.Context(), compiled, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
				published, allocator.HeldBy(held, nil), claim)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 {
				counts["refused"]++
				continue
			}
			claim.Status.Allocation = &got[0]
			d, ok := s.devices.Find(got[0].Devices.Results[0].Device)
			if !ok {
				t.Fatalf("%s is given out, and Prepare does not know it", d.Name)
			}
			a := sharing.Assignment{Device: d.Name, GPU: d.Physical()}
			if d.Partition != nil {
				a.Partition = &sharing.AssignedPartition{Placement: d.Partition.Placement}
				counts["partitions"]++
			}
			for _, c := range claims {
				b := c.rec.Plan.Assignments[0]
				overlap := a.GPU == b.GPU && (a.Partition == nil) != (b.Partition == nil)
				if a.Partition != nil && b.Partition != nil {
					part := gpu.Partition{Placement: a.Partition.Placement}
					overlap = part.Overlaps(b.Partition.Placement)
				}
				if overlap {
					t.Fatalf("after %v: %s is given out beside %s", counts, a.Device, b.Device)
				}
			}
			claims = append(claims, given{ResourceClaim: claim, rec: checkpoint.PreparedClaim{
				Claim: sharing.Claim{UID: claim.UID}, Phase: checkpoint.Prepared, BootID: "now",
				Plan: sharing.Plan{Assignments: []sharing.Assignment{a}}}})
		case 3:
			if len(claims) > 0 {
				claims[r.IntN(len(claims))].prepared = true
			}
		case 4, 5:
			if len(claims) > 0 {
				i := r.IntN(len(claims))
				claims = slices.Delete(claims, i, i+1)
			}
		case 6:
			now = now.Add(time.Duration(r.IntN(100)) * time.Second)
			look()
		default:
			switch r.IntN(8) {
			case 0:
				onDemand = r.IntN(8) > 0
			case 1:
				known := s.known
				s = newState(Options{Dir: t.TempDir()})
				s.known, s.offered = known, inventory.Offered{GPUs: offeredBefore(known)}
				look()
			}
		}
	}
	t.Log(counts)
	for _, what := range []string{"refused", "partitions",
		"2 GPUs with partitions published", "3 GPUs with partitions published"} {
		if counts[what] < 20 {
			t.Errorf("%s: %d times: this shows nothing", what, counts[what])
		}
	}
}
