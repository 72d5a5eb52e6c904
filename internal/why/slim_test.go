// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// shorten replaces the slices by what Read keeps of them.
func shorten(s *cluster.Snapshot) {
	var list resourceapi.ResourceSliceList
	for _, slice := range s.Slices {
		list.Items = append(list.Items, *slice.DeepCopy())
	}
	read.Devices{Attribute: attributesFor(s), Counters: true}.Shorten(&list)
	s.Slices = nil
	for i := range list.Items {
		s.Slices = append(s.Slices, &list.Items[i])
	}
}

// Answers about slim slices are those about the slices.
func TestSlimSlices(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := randomFleet(t, r)
		fill(t, r, s)
		c := claim(t, "c", randomClaim(r))
		s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, pod("p", c))
		want, err := Pod(t.Context(), s, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		shorten(s)
		got, err := Pod(t.Context(), s, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		if a, b := text(t, got), text(t, want); a != b {
			t.Errorf("seed %d: got\n%s\nwant\n%s", seed, a, b)
		}
	}
}

// Equal devices of several nodes share their parts, whatever their UUIDs are, unless a claim reads these.
func TestSlimSlicesShareParts(t *testing.T) {
	for _, row := range []struct {
		name, expression string
		shared           bool
	}{
		{"a claim reads the model", "device.attributes['gpu.nvidia.com'].productName == 'x'", true},
		{"a claim reads the UUID", "device.attributes['gpu.nvidia.com'].uuid == 'x'", false},
		{"a claim reads any attribute", "device.attributes['gpu.nvidia.com'].exists(a, a == 'x')", false},
	} {
		var nodes []clustertest.SimNode
		for i := range 2 {
			nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprint("node-", i), Profile: "t4-x2", Use: exclusive})
		}
		s := fleet(t, nodes...)
		setUUIDs(s)
		s.Claims = append(s.Claims, claim(t, "c", ask(row.expression, "")))
		shorten(s)
		var maps []map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
		for _, slice := range s.Slices {
			for _, d := range slice.Spec.Devices {
				if ptr.Deref(d.Attributes["type"].StringValue, "") == "gpu" {
					maps = append(maps, d.Attributes)
				}
			}
		}
		if len(maps) != 4 {
			t.Fatalf("%s: got %d GPUs, want 4", row.name, len(maps))
		}
		if got := reflect.ValueOf(maps[0]).Pointer() == reflect.ValueOf(maps[2]).Pointer(); got != row.shared {
			t.Errorf("%s: shared %t, want %t", row.name, got, row.shared)
		}
	}
}
