// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// shorten returns reports as text, with the first words of each message.
func shorten(all []health.DeviceReport) string {
	var lines []string
	for _, r := range all {
		text := r.Device + " " + string(r.Status)
		if r.Message != "" {
			first, _, _ := strings.Cut(r.Message, ": ")
			text += ": " + first
		}
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

func TestReports(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(n *testNode)
		want string
	}{
		{"nothing is wrong", func(*testNode) {}, `
gpu-0 Healthy
gpu-0-mig-1g10gb-0 Healthy
gpu-0-mig-1g10gb-2 Healthy
gpu-1 Healthy
monitor Healthy`},
		{"a GPU is sick, and the monitor device is not", func(n *testNode) { n.xid("GPU-1", 48) }, `
gpu-0 Healthy
gpu-0-mig-1g10gb-0 Healthy
gpu-0-mig-1g10gb-2 Healthy
gpu-1 Unhealthy: XID 48
monitor Healthy: gpu-1`},
		{"a partition is sick", func(n *testNode) { n.xidAt(9, 95) }, `
gpu-0 Unhealthy: XID 95
gpu-0-mig-1g10gb-0 Healthy
gpu-0-mig-1g10gb-2 Unhealthy: XID 95
gpu-1 Healthy
monitor Healthy: gpu-0`},
		{"a program failed", func(n *testNode) { n.xid("GPU-1", 13) }, `
gpu-0 Healthy
gpu-0-mig-1g10gb-0 Healthy
gpu-0-mig-1g10gb-2 Healthy
gpu-1 Healthy: XID 13
monitor Healthy: gpu-1`},
		{"a GPU is not watched, and another is not but sick", func(n *testNode) {
			n.found.Unwatched["GPU-0"], n.found.Unwatched["GPU-1"] = "no events", "no events"
			n.answer("GPU-1", gpu.Health{RecoveryAction: gpu.RecoveryReset})
		}, `
gpu-0 Unknown: not watched
gpu-0-mig-1g10gb-0 Unknown: not watched
gpu-0-mig-1g10gb-2 Unknown: not watched
gpu-1 Unhealthy: RecoveryActionReset
monitor Healthy: gpu-1`},
		{"a partition was removed", func(n *testNode) {
			n.found.Published[2].Lost = true
			n.look()
		}, `
gpu-0 Healthy
gpu-0-mig-1g10gb-0 Healthy
gpu-0-mig-1g10gb-2 Unhealthy: The device does not answer, or was removed.
gpu-1 Healthy
monitor Healthy`},
		{"a GPU is lost", func(n *testNode) {
			n.found.GPUs[1].Lost, n.found.Published[3].Lost = true, true
			n.look()
		}, `
gpu-0 Healthy
gpu-0-mig-1g10gb-0 Healthy
gpu-0-mig-1g10gb-2 Healthy
gpu-1 Unhealthy: GPULost
monitor Healthy: gpu-1`},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newTestNode(t)
			row.do(n)
			if got, want := shorten(n.Reports()), strings.TrimSpace(row.want); got != want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestMessagesAreNotTooLong(t *testing.T) {
	n := newTestNode(t)
	for number := range uint64(500) {
		n.xid("GPU-1", number)
	}
	for _, r := range n.Reports() {
		if len(r.Message) > 1024 {
			t.Errorf("%s: got a message of %d bytes, want 1024 at most", r.Device, len(r.Message))
		}
	}
}

// TestClaimConditions: the status of a claim says what is wrong with its devices.
func TestClaimConditions(t *testing.T) {
	n := newTestNode(t)
	client := fake.NewClientset()
	patches := make(chan string, 10)
	client.PrependReactor("patch", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var claim resourceapi.ResourceClaim
		patch := a.(clienttesting.PatchAction)
		if err := json.Unmarshal(patch.GetPatch(), &claim); err != nil {
			return true, nil, err
		}
		text := patch.GetName()
		for _, d := range claim.Status.Devices {
			c := d.Conditions[0]
			text += fmt.Sprintf("; %s %s=%s %s %s", d.Device, c.Type, c.Status, c.Reason,
				c.LastTransitionTime.Sub(start))
		}
		patches <- text
		return true, &claim, nil
	})
	n.reporter = report.NewReporter(t.Context(), report.ReporterConfig{Driver: driver, Node: "node", Client: client})
	go n.reporter.Run(t.Context())
	want := func(want string) {
		t.Helper()
		select {
		case got := <-patches:
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		case <-time.After(5 * time.Minute):
			t.Fatalf("got nothing, want %s", want)
		}
	}

	n.hold("a", sharing.Assignment{Device: "gpu-1"},
		sharing.Assignment{Device: gpu.PartitionName("gpu-0", first)})
	n.hold("b", sharing.Assignment{Device: gpu.PartitionName("gpu-0", second)})
	n.xid("GPU-1", 13) // changes no condition
	n.pass(time.Second)
	n.xid("GPU-1", 999)
	want("a; gpu-1 Healthy=False XID999 1s; gpu-0-mig-1g10gb-0 Healthy=True Healthy 1s")
	n.pass(10 * time.Minute)
	want("a; gpu-1 Healthy=True Recovered 10m1s; gpu-0-mig-1g10gb-0 Healthy=True Healthy 10m1s")
	n.xidAt(9, 95)
	want("b; gpu-0-mig-1g10gb-2 Healthy=False XID95 10m1s")
}
