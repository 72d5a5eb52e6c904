// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

const driver = clustertest.Driver

// exclusive are GPUs that are neither shared nor partitioned.
var exclusive = gpu.SharingMode{Sharing: gpu.Exclusive}

// published are the slices of a node "like" of a profile and use.
var published = map[string][]*resourceapi.ResourceSlice{}

// slicesOf returns the slices of a node. Their devices are copies.
func slicesOf(t testing.TB, n clustertest.SimNode) []*resourceapi.ResourceSlice {
	t.Helper()
	key := fmt.Sprintf("%s %+v", n.Profile, n.Use)
	if published[key] == nil {
		published[key] = clustertest.Slices(t, clustertest.SimNode{Name: "like", Profile: n.Profile, Use: n.Use})
	}
	var all []*resourceapi.ResourceSlice
	for i, s := range published[key] {
		s = s.DeepCopy()
		s.Name = fmt.Sprintf("%05d-%s", i, n.Name)
		s.Spec.NodeName, s.Spec.Pool.Name = &n.Name, strings.Replace(s.Spec.Pool.Name, "like", n.Name, 1)
		all = append(all, s)
	}
	return all
}

// fleet returns a cluster of simulated nodes and the chart's classes.
func fleet(t testing.TB, nodes ...clustertest.SimNode) *cluster.Snapshot {
	t.Helper()
	s := &cluster.Snapshot{Classes: clustertest.Classes(t), Unread: map[string]error{}}
	for _, n := range nodes {
		s.Slices = append(s.Slices, slicesOf(t, n)...)
		s.Nodes = append(s.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("64"),
				"memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110")}}})
	}
	return s
}

// requests is YAML of spec.devices of a claim with only requests.
func requests(all string) string { return "requests: " + all }

// claim returns a claim without devices. The devices are YAML of spec.devices.
func claim(t testing.TB, name, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	c := clustertest.Claim(t, devices)
	c.Name, c.UID = name, types.UID(name)
	return c
}

// judge asks the allocator about each node of the snapshot, without anything of this package. It returns the first node
// that the claims fit on, or "". An error on any node is an error, as for the scheduler.
func judge(t testing.TB, s *cluster.Snapshot, ended map[types.UID]bool, claims ...*resourceapi.ResourceClaim) (string,
	[]resourceapi.AllocationResult, error) {
	t.Helper()
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection()}
	for _, c := range s.Claims {
		if c.Status.Allocation == nil || ended[c.UID] {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			if r.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	classes := fit.Classes{}
	for _, c := range s.Classes {
		classes[c.Name] = c
	}
	allocator, err := structured.NewAllocator(t.Context(), structured.Features{AdminAccess: true, PrioritizedList: true,
		PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true,
		FractionalCapacityRange: true}, state, classes, s.Slices, selectors.Compiled)
	if err != nil {
		t.Fatal(err)
	}
	on, got := "", []resourceapi.AllocationResult(nil)
	for _, n := range s.Nodes {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		results, err := allocator.Allocate(ctx, n, claims)
		cancel()
		if err != nil {
			return "", nil, err
		}
		if on == "" && len(results) > 0 {
			on, got = n.Name, results
		}
	}
	return on, got, nil
}

// since is when all claims of tests got their devices.
var since = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// hold gives the claim devices, as the scheduler would.
func hold(t testing.TB, s *cluster.Snapshot, c *resourceapi.ResourceClaim) bool {
	t.Helper()
	on, results, err := judge(t, s, nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if on == "" {
		return false
	}
	c.Status.Allocation = &results[0]
	c.Status.Allocation.AllocationTimestamp = &since
	s.Claims = append(s.Claims, c)
	return true
}

// mustHold gives each claim devices.
func mustHold(t testing.TB, s *cluster.Snapshot, all ...*resourceapi.ResourceClaim) {
	t.Helper()
	for _, c := range all {
		if !hold(t, s, c) {
			t.Fatalf("claim %s does not fit", c.Name)
		}
	}
}

// text is a report for people.
func text(t testing.TB, r *Answer) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
