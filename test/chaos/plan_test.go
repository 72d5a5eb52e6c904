// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/test/chaos/check"
)

// TestPlan: a seed means one plan, another seed another one, and every kind of fault and pod is in a plan that is long
// enough.
func TestPlan(t *testing.T) {
	nodes := []string{"node-1", "node-2"}
	plan := func(seed, round uint64) string {
		return newPlan(seed, round, 3*time.Minute, 4*time.Second, nodes).String()
	}
	text := plan(7, 1)
	if again := plan(7, 1); again != text {
		t.Errorf("the same seed: got\n%s\nwant\n%s", again, text)
	}
	for _, other := range []string{plan(8, 1), plan(7, 2)} {
		if other == text {
			t.Error("another seed or round has the same plan")
		}
	}
	for _, f := range faults {
		if !strings.Contains(text, f.kind+" on node-") {
			t.Errorf("there is no fault %q in\n%s", f.kind, text)
		}
	}
	for _, kind := range kinds {
		if !strings.Contains(text, ": "+kind+" for ") {
			t.Errorf("there is no pod of kind %q in\n%s", kind, text)
		}
	}
}

// TestShortPlan: a short plan has every kind of fault, too.
func TestShortPlan(t *testing.T) {
	p := newPlan(1, 0, time.Second, time.Second, []string{"node-1"})
	if got, want := len(p.faults), len(faults); got != want {
		t.Errorf("got %d faults, want %d", got, want)
	}
}

func TestRounds(t *testing.T) {
	got := options{length: 7 * time.Minute}.rounds()
	if len(got) != 3 || got[0] != roundLength || got[2] != time.Minute {
		t.Errorf("got %v, want two rounds of %s and one of a minute", got, roundLength)
	}
}

func TestParseNode(t *testing.T) {
	part := func(lines ...string) string { return "\n" + mark + strings.Join(lines, "\n") }
	text := part("spec k8s.gpu.nvidia.com-claim_11-22.json", `{"a": 1}`) +
		part("left", "claims/11-22.json", "17 nvidia-cuda-mps-control -f", "") +
		part("container c1", `{"annotations": {"io.kubernetes.cri.sandbox-uid": "p",
			"io.kubernetes.cri.container-name": "main"}}`) +
		part("devices", "./nvidiactl ff", "./nvidia0 2", "./nvidia-caps/nvidia-cap300 12c", "./vfio/17", "") +
		part("end", "")
	var n check.Node
	if err := parseNode(&n, text); err != nil {
		t.Fatal(err)
	}
	if got := n.Specs["11-22"]; got != `{"a": 1}` {
		t.Errorf("the spec: got %q", got)
	}
	if got, want := strings.Join(n.Left, "|"), "claims/11-22.json|17 nvidia-cuda-mps-control -f"; got != want {
		t.Errorf("what is left: got %q, want %q", got, want)
	}
	if len(n.Containers) != 1 || n.Containers[0].ID != "c1" || n.Containers[0].Pod != "p" ||
		n.Containers[0].Name != "main" {
		t.Fatalf("got containers %v", n.Containers)
	}
	// The device node nvidia0 is in truth that of the GPU with the minor number 2.
	const want = "nvidia-caps/nvidia-cap300 nvidia2 nvidiactl vfio/17"
	if got := strings.Join(n.Containers[0].Devices, " "); got != want {
		t.Errorf("got devices %s, want %s", got, want)
	}
	if err := parseNode(&n, part("left")); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("without an end: got error %v", err)
	}
}

// TestEvery: without a time between faults, a plan would have no end.
func TestEvery(t *testing.T) {
	for every, want := range map[time.Duration]string{0: "-every 0s: want at least 1ms",
		-time.Second: "-every -1s: want at least 1ms", time.Microsecond: "-every 1µs: want at least 1ms"} {
		err := options{length: time.Second, every: every, plan: true}.run(t.Context())
		if got := fmt.Sprint(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
