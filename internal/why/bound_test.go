// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/advice"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// A claim for more devices than a node can have is answered at once, although the allocator would try all sets of them.
func TestMost(t *testing.T) {
	for _, row := range []struct {
		profile, class string
		held           int // GPUs
		want           int
	}{
		{"dgx-h100", driver, 0, 8},
		{"dgx-h100", driver, 4, 4},
		{"dgx-h100", "mig.nvidia.com", 4, 28},
		{"gb200-nvl4", "mig.nvidia.com", 0, 28},
		{"dgx-h100", "mig-3g.40gb.nvidia.com", 0, 16},
	} {
		t.Run(fmt.Sprintf("%s of %s, %d GPUs held", row.class, row.profile, row.held), func(t *testing.T) {
			s := fleet(t, clustertest.SimNode{Name: "a", Profile: row.profile})
			for i := range row.held {
				mustHold(t, s, claim(t, fmt.Sprint("held-", i), gpus("")))
			}
			s.Claims = append(s.Claims, claim(t, "c", requests(fmt.Sprintf(
				"[{name: r, exactly: {deviceClassName: %s, count: 31}}]", row.class))))
			r, err := Claim(t.Context(), s, "ns", "c")
			if err != nil {
				t.Fatal(err)
			}
			// The search is complete only if the allocator has answered each question in time.
			want := fmt.Sprintf("ask for %d devices instead of 31", row.want)
			if len(r.Change) != 1 || r.Change[0].Text != want || !r.Search.Complete {
				t.Errorf("got %+v, %+v, want %q", r.Change, r.Search, want)
			}
		})
	}
}

// The same holds for two requests together.
func TestMostOfTwoRequests(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "gb200-nvl4"})
	s.Claims = append(s.Claims, claim(t, "c", requests("[{name: x, exactly: {deviceClassName: mig.nvidia.com, "+
		"count: 15}}, {name: y, exactly: {deviceClassName: mig.nvidia.com, count: 15}}]")))
	r, err := Claim(t.Context(), s, "ns", "c")
	if err != nil {
		t.Fatal(err)
	}
	want := "ask for 13 devices instead of 15"
	if len(r.Change) != 1 || r.Change[0].Text != want || !r.Search.Complete {
		t.Errorf("got %+v, %+v, want %q", r.Change, r.Search, want)
	}
}

// A question that takes the allocator too long counts as no, and the answer says so.
func TestSlow(t *testing.T) {
	s := fleet(t, clustertest.SimNode{Name: "a", Profile: "t4-x2", Use: exclusive})
	s.Claims = append(s.Claims, claim(t, "c", gpus(", count: 3")))
	defer func(before schedule.Limits) { schedule.DefaultLimits = before }(schedule.DefaultLimits)
	schedule.DefaultLimits.Ask, schedule.DefaultLimits.Change = time.Nanosecond, time.Nanosecond
	r, err := Claim(t.Context(), s, "ns", "c")
	if err != nil {
		t.Fatal(err)
	}
	want := Search{Asked: r.Search.Asked, NotTried: "what the allocator does not answer within 1ns (4 questions)"}
	if r.Search != want || len(r.Change) > 0 {
		t.Errorf("got %+v, %+v, want %+v", r.Search, r.Change, want)
	}
}

// The cause of a pod that excludes many kinds of nodes does not take the time of a question for each of them.
func TestSlowCause(t *testing.T) {
	defer func(before schedule.Limits, asked int) {
		schedule.DefaultLimits, advice.SearchAsked = before, asked
	}(schedule.DefaultLimits, advice.SearchAsked)
	schedule.DefaultLimits.Ask, advice.SearchAsked = 500*time.Millisecond, 1
	explain := func(kinds int) (*Answer, time.Duration) {
		var nodes []clustertest.SimNode
		for i := range kinds {
			nodes = append(nodes, clustertest.SimNode{Name: fmt.Sprint("n", i), Profile: "rtxpro6000-x2"})
		}
		s := fleet(t, nodes...)
		for i, slice := range s.Slices {
			if len(slice.Spec.Devices) > 0 { // no two nodes are equal
				slice.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: fmt.Sprint("t", i), Effect: "None"}}
			}
		}
		c := claim(t, "c", requests("[{name: r, exactly: {deviceClassName: mig.nvidia.com, count: 20, "+
			"capacity: {requests: {memory: 11Gi}}}}]"))
		p := pod("p", c)
		p.Spec.NodeSelector = map[string]string{"zone": "z1"}
		s.Claims, s.Pods = append(s.Claims, c), append(s.Pods, p)
		begin := time.Now()
		r, err := Pod(t.Context(), s, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		return r, time.Since(begin)
	}
	_, one := explain(1) // the machine may be slow
	r, all := explain(20)
	if all > 4*one {
		t.Errorf("20 kinds of nodes took %s, one took %s: as if each had taken a question's time", all, one)
	}
	const want = "pod p waits: the pod excludes all 20 nodes, most often by the node selector zone=z1; the allocator " +
		"did not say in time whether any of them has the devices"
	if r.Cause != want {
		t.Errorf("got %q, want %q", r.Cause, want)
	}
}
