// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// A claim has an event where nothing enforces its share, which says why.
func TestUnenforcedShares(t *testing.T) {
	for _, row := range []struct {
		name string
		use  gpu.Use
		want string
	}{
		{"the claim chose it", gpu.Use{}, "Normal ShareNotEnforced request gpu: the share of gpu-0 is counted and " +
			"not enforced, because the claim asks for TimeSlicing"},
		{"the administrator did", gpu.Use{Sharing: gpu.Unlimited}, "Normal ShareNotEnforced request gpu: any number " +
			"of claims may use gpu-0, and nothing limits what each of them uses, because its node configuration has " +
			"sharing: unlimited"},
	} {
		t.Run(row.name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(1)
			r := NewReporterTo(recorder, Config{Driver: "gpu.nvidia.com", Node: "node"})
			r.Prepared(&resourceapi.ResourceClaim{}, checkpoint.Record{Plan: sharing.Plan{
				Assignments: []sharing.Assignment{{Request: "gpu", Device: "gpu-0", Share: &sharing.Share{},
					Unenforced: true}}}}, inventory.Inventory{{Name: "gpu-0", Use: row.use}})
			if got := <-recorder.Events; got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// The status of a claim is written between calls of the kubelet, or after statusDelay if they never pause.
func TestStatusWaitsForCalls(t *testing.T) {
	for _, row := range []struct {
		name  string
		calls func(c *Calls)
		want  time.Duration // from Prepared to the write
	}{
		{"the call ends after 100 ms", func(c *Calls) {
			end := c.Begin()
			time.Sleep(100 * time.Millisecond)
			end()
		}, 120 * time.Millisecond},
		{"another call begins before it ends", func(c *Calls) {
			first := c.Begin()
			time.Sleep(100 * time.Millisecond)
			second := c.Begin()
			first()
			time.Sleep(200 * time.Millisecond)
			second()
		}, 320 * time.Millisecond},
		{"a call hangs", func(c *Calls) { c.Begin() }, statusDelay},
		{"no call", func(*Calls) {}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				written := make(chan time.Time, 1)
				client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object,
					error) {
					written <- time.Now()
					return true, &resourceapi.ResourceClaim{}, nil
				})
				r := NewReporterTo(events.NewFakeRecorder(1), Config{Driver: "gpu.nvidia.com", Node: "node",
					Client: client})
				defer r.health.queue.ShutDown()
				defer r.statuses.queue.ShutDown()
				go r.statuses.run(t.Context(), client, &r.Calls)
				go row.calls(&r.Calls)
				synctest.Wait()
				begin := time.Now()
				r.Prepared(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c",
					UID: "1"}}, checkpoint.Record{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Pool: "node",
					Device: "gpu-0"}}}}, inventory.Inventory{})
				if got := (<-written).Sub(begin); got != row.want {
					t.Errorf("the status is written after %s, want %s", got, row.want)
				}
			})
		})
	}
}
