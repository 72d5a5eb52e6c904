// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/fleettest"
)

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
			nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprint("node-", i), Profile: "t4-x2",
				Use: fleettest.Exclusive})
		}
		s := fleettest.Fleet(t, nodes...)
		fleettest.SetUUIDs(s)
		s.Claims = append(s.Claims, fleettest.Claim(t, "c",
			fleettest.GPUs(fmt.Sprintf(", selectors: [{cel: {expression: %q}}]", row.expression))))
		fleettest.Shorten(s, AttributesFor(s))
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

// The allocator gives no request more devices than the bound says.
func TestMostIsBound(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := fleettest.RandomFleet(t, r)
		fleettest.Fill(t, r, s)
		c := fleettest.Claim(t, "c", fleettest.Requests("[{name: r, exactly: {"+fleettest.RandomRequest(r,
			false)+"}}]"))
		p := cluster.Subrequests(&c.Spec)[0]
		if p.All() || *p.Capacity != nil {
			continue
		}
		q := About(t.Context(), New(s), OfClaim(c, Origin{}))
		for _, at := range q.Groups {
			most, err := q.Most(at, at.Held, p)
			if err != nil {
				continue
			}
			*p.Count = most + 1
			one := *s
			one.Nodes = append(s.Nodes[:0:0], at.Node)
			if on, _, err := fleettest.Judge(t, &one, nil, c); err == nil && on != "" {
				t.Errorf("seed %d: the bound of node %s is %d, and the allocator gives more: %+v", seed, on, most,
					c.Spec)
			}
		}
	}
}

// Claims that differ by the pod that they keep devices for are equal.
func TestEqualTokens(t *testing.T) {
	keys := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		c := fleettest.Claim(t, name,
			fleettest.GPUs(", tolerations: [{key: gpu.nvidia.com/preemption, operator: Equal, value: "+name+
				", effect: NoSchedule}]"))
		_, _, key, _ := OfClaim(c, Origin{}).Anonymous("claim " + name)
		keys[key] = true
	}
	if len(keys) != 1 {
		t.Errorf("got the keys %v, want one", keys)
	}
}
