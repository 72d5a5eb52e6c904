// SPDX-License-Identifier: Apache-2.0

// Package fleettest builds snapshots of simulated clusters for tests, and asks Kubernetes' allocator about them without
// anything of the packages that are tested.
package fleettest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

const driver = clustertest.Driver

// Exclusive are GPUs that are neither shared nor partitioned.
var Exclusive = gpu.SharingMode{Sharing: gpu.Exclusive}

// published are the slices of a node "like" of a profile and use.
var published = map[string][]*resourceapi.ResourceSlice{}

// SlicesOf returns the slices of a node. Their devices are copies.
func SlicesOf(t testing.TB, n clustertest.SimNode) []*resourceapi.ResourceSlice {
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

// Fleet returns a cluster of simulated nodes and the chart's classes.
func Fleet(t testing.TB, nodes ...clustertest.SimNode) *cluster.Snapshot {
	t.Helper()
	s := &cluster.Snapshot{Classes: clustertest.Classes(t), Unread: map[string]error{}}
	for _, n := range nodes {
		s.Slices = append(s.Slices, SlicesOf(t, n)...)
		s.Nodes = append(s.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("64"),
				"memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110")}}})
	}
	return s
}

// Requests is YAML of spec.devices of a claim with only requests.
func Requests(all string) string { return "requests: " + all }

// Claim returns a claim without devices. The devices are YAML of spec.devices.
func Claim(t testing.TB, name, devices string) *resourceapi.ResourceClaim {
	t.Helper()
	c := clustertest.Claim(t, devices)
	c.Name, c.UID = name, types.UID(name)
	return c
}

// Judge asks the allocator about each node of the snapshot, with nothing of the packages that are tested but
// internal/allocator. It returns the first node that the claims fit on, or "". An error on any node is an error, as for
// the scheduler.
func Judge(t testing.TB, s *cluster.Snapshot, ended map[types.UID]bool, claims ...*resourceapi.ResourceClaim) (string,
	[]resourceapi.AllocationResult, error) {
	t.Helper()
	judge, err := allocator.New(t.Context(), allocator.HeldBy(s.Claims, ended), allocator.ClassesOf(s.Classes),
		s.Slices, selectors.Compiled)
	if err != nil {
		t.Fatal(err)
	}
	on, got := "", []resourceapi.AllocationResult(nil)
	for _, n := range s.Nodes {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		results, err := judge.Allocate(ctx, n, claims)
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

// Since is when all claims of tests got their devices.
var Since = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// Hold gives the claim devices, as the scheduler would.
func Hold(t testing.TB, s *cluster.Snapshot, c *resourceapi.ResourceClaim) bool {
	t.Helper()
	on, results, err := Judge(t, s, nil, c)
	if err != nil {
		t.Fatal(err)
	}
	if on == "" {
		return false
	}
	c.Status.Allocation = &results[0]
	c.Status.Allocation.AllocationTimestamp = &Since
	s.Claims = append(s.Claims, c)
	return true
}

// MustHold gives each claim devices.
func MustHold(t testing.TB, s *cluster.Snapshot, all ...*resourceapi.ResourceClaim) {
	t.Helper()
	for _, c := range all {
		if !Hold(t, s, c) {
			t.Fatalf("claim %s does not fit", c.Name)
		}
	}
}

// GPUs is the content of a claim for GPUs.
func GPUs(more string) string {
	return Requests("[{name: gpu, exactly: {deviceClassName: gpu.nvidia.com" + more + "}}]")
}

// SetTaint taints the devices of that name.
func SetTaint(s *cluster.Snapshot, device string) {
	for _, slice := range s.Slices {
		for i := range slice.Spec.Devices {
			if d := &slice.Spec.Devices[i]; d.Name == device {
				d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79",
					Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	}
}

// Pick returns one of them.
func Pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// Shorten replaces the slices by what is kept of them when they are read with these attributes.
func Shorten(s *cluster.Snapshot, attributes func(resourceapi.QualifiedName) bool) {
	var list resourceapi.ResourceSliceList
	for _, slice := range s.Slices {
		list.Items = append(list.Items, *slice.DeepCopy())
	}
	read.Devices{Attribute: attributes, Counters: true}.Shorten(&list)
	s.Slices = nil
	for i := range list.Items {
		s.Slices = append(s.Slices, &list.Items[i])
	}
}
