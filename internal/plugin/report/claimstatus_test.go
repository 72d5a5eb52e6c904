// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
		use  gpu.SharingMode
		mps  *sharing.MPSClient
		want string
	}{
		{"the claim chose it", gpu.SharingMode{}, nil, "Normal ShareNotEnforced request gpu: the share of gpu-0 is " +
			"counted and not enforced, because the claim asks for TimeSlicing"},
		{"MPS has no limits there", gpu.SharingMode{}, &sharing.MPSClient{}, "Normal ShareNotEnforced request gpu: " +
			"the limits of MPS are not enforced on gpu-0 (Tesla P100), because GPUs have them from Volta on"},
		{"the administrator did", gpu.SharingMode{Sharing: gpu.Unlimited}, nil,
			"Normal ShareNotEnforced request gpu: any number of claims may use gpu-0, and nothing limits what each " +
				"of them uses, because its node configuration has sharing: unlimited"},
	} {
		t.Run(row.name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(1)
			r := NewReporterTo(recorder, ReporterConfig{Driver: "gpu.nvidia.com", Node: "node"})
			r.Prepared(&resourceapi.ResourceClaim{}, checkpoint.PreparedClaim{Plan: sharing.Plan{
				Assignments: []sharing.Assignment{{Request: "gpu", Device: "gpu-0", Share: &sharing.Share{},
					Unenforced: true, Isolation: sharing.Isolation{MPS: row.mps}}}}},
				inventory.Inventory{{Name: "gpu-0", Use: row.use, Product: gpu.Product{Name: "Tesla P100"}}})
			if got := <-recorder.Events; got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

// The status of a claim is written when no call of the kubelet has run for statusPause, after statusDelay if they never
// pause, and at once when the plugin stops.
func TestStatusWaitsForCalls(t *testing.T) {
	for _, row := range []struct {
		name  string
		calls func(c *Calls)
		stops time.Duration // after Prepared; 0: never
		want  time.Duration // from Prepared to the write
	}{
		{"the call ends after 100 ms", func(c *Calls) {
			end := c.Begin()
			time.Sleep(100 * time.Millisecond)
			end()
		}, 0, 100*time.Millisecond + statusPause},
		{"another call begins before it ends", func(c *Calls) {
			first := c.Begin()
			time.Sleep(100 * time.Millisecond)
			second := c.Begin()
			first()
			time.Sleep(200 * time.Millisecond)
			second()
		}, 0, 300*time.Millisecond + statusPause},
		{"a call hangs", func(c *Calls) { c.Begin() }, 0, statusDelay},
		{"a call hangs while the plugin stops", func(c *Calls) { c.Begin() }, 30 * time.Millisecond,
			30 * time.Millisecond},
		{"no call", func(*Calls) {}, 0, 0},
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
				stopping := make(chan struct{})
				r := NewReporterTo(events.NewFakeRecorder(1), ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
					Client: client, Stopping: stopping})
				defer r.shutDown()
				go r.Run(t.Context())
				go row.calls(&r.Calls)
				synctest.Wait()
				begin := time.Now()
				if row.stops > 0 {
					time.AfterFunc(row.stops, func() { close(stopping) })
				}
				r.Prepared(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c",
					UID: "1"}},
					checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Pool: "node",
						Device: "gpu-0"}}}}, inventory.Inventory{})
				if got := (<-written).Sub(begin); got != row.want {
					t.Errorf("the status is written after %s, want %s", got, row.want)
				}
			})
		})
	}
}

// A status that has to wait wakes nobody while calls of the kubelet run, and one that has not is written at once.
func TestStatusDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReporterTo(events.NewFakeRecorder(1), ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
			Client: fake.NewClientset()})
		defer r.shutDown()
		queued := func() int {
			synctest.Wait()
			return r.statuses.queue.Len()
		}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1"}}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.nvidia.com", Device: "gpu-0"}}}}
		end := r.Calls.Begin()
		r.Prepared(claim, checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{
			Device: "gpu-0"}}}}, inventory.Inventory{})
		if n := queued(); n != 0 {
			t.Errorf("a prepared claim queues %d updates in the call, want 0", n)
		}
		end()
		time.Sleep(statusPause)
		if n := queued(); n != 1 {
			t.Errorf("%d updates are queued after the call and the pause, want 1", n)
		}
		claim.UID = "2"
		defer r.Calls.Begin()()
		r.Failed(claim, errors.New("no"))
		if n := queued(); n != 2 {
			t.Errorf("%d updates are queued after an error, want 2", n)
		}
	})
}

// Why Prepare has failed is written at once. The status of a claim that was released before is not written. Flush waits
// for the others.
func TestStatusOfAReleasedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var written []string
		client.PrependReactor("patch", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			written = append(written, a.(clienttesting.PatchAction).GetName())
			return true, &resourceapi.ResourceClaim{}, nil
		})
		r := NewReporterTo(events.NewFakeRecorder(1), ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
			Client: client})
		defer r.shutDown()
		go r.Run(t.Context())
		r.Calls.Begin()()
		for _, name := range []string{"released", "kept"} {
			r.Prepared(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
				UID: types.UID(name)}}, checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{
				Pool: "node", Device: "gpu-0"}}}}, inventory.Inventory{})
		}
		failed := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "failed",
			UID: "failed"}}
		failed.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.nvidia.com", Device: "gpu-0"}}}}
		r.Failed(failed, errors.New("no such GPU"))
		for _, claim := range []types.UID{"released", "failed"} {
			r.Released(claim)
		}
		synctest.Wait()
		if want := []string{"failed"}; !slices.Equal(written, want) {
			t.Errorf("written at once: %q, want %q", written, want)
		}
		r.Flush(2 * statusPause)
		if want := []string{"failed", "kept"}; !slices.Equal(written, want) {
			t.Errorf("written in the end: %q, want %q", written, want)
		}
	})
}

// A status that says that Prepare has failed is replaced at once.
func TestStatusAfterAFailure(t *testing.T) {
	failed := resourceapi.AllocatedDeviceStatus{Driver: "gpu.nvidia.com", Conditions: []metav1.Condition{{
		Type: readyCondition, Status: metav1.ConditionFalse}}}
	for _, row := range []struct {
		name   string
		before []resourceapi.AllocatedDeviceStatus
		want   int // writes at once
	}{
		{"none before", nil, 0},
		{"a failure", []resourceapi.AllocatedDeviceStatus{failed}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := fake.NewClientset()
			written := 0
			client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				written++
				return true, &resourceapi.ResourceClaim{}, nil
			})
			r := NewReporterTo(events.NewFakeRecorder(1), ReporterConfig{Driver: "gpu.nvidia.com", Client: client})
			defer r.shutDown()
			go r.Run(t.Context())
			r.Calls.Begin()()
			r.Prepared(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1"},
				Status: resourceapi.ResourceClaimStatus{Devices: row.before}},
				checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-0"}}}},
				inventory.Inventory{})
			synctest.Wait()
			if written != row.want {
				t.Errorf("%s: written %d times at once, want %d", row.name, written, row.want)
			}
		})
	}
}

// Whether a device is idle is written by a field manager of its own, so that it stays when other conditions change.
func TestIdle(t *testing.T) {
	client := fake.NewClientset()
	applied := make(chan clienttesting.PatchActionImpl) // a write waits until it is received
	client.PrependReactor("patch", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		applied <- a.(clienttesting.PatchActionImpl)
		return true, &resourceapi.ResourceClaim{}, nil
	})
	recorder := events.NewFakeRecorder(1)
	r := NewReporterTo(recorder, ReporterConfig{Driver: "gpu.nvidia.com", Node: "node", Client: client})
	go r.Run(t.Context())
	since := time.Date(2026, 11, 25, 8, 0, 0, 0, time.UTC)
	r.Idle(sharing.Claim{Namespace: "ml", Name: "train", UID: "uid"}, []DeviceCondition{{Pool: "node", Device: "gpu-0",
		Status: metav1.ConditionTrue, Reason: "NotUsed", Message: "not used", Since: since}}, "not used for 30m0s")
	if r.IdleWritten() {
		t.Error("written while it is not")
	}
	const status = `"status":{"devices":[{"driver":"gpu.nvidia.com","pool":"node","device":"gpu-0","conditions":[` +
		`{"type":"Idle","status":"True","lastTransitionTime":"2026-11-25T08:00:00Z","reason":"NotUsed",` +
		`"message":"not used"}]}]}`
	patch := <-applied
	if r.Flush(time.Minute); !r.IdleWritten() {
		t.Error("not written while it is")
	}
	manager := patch.PatchOptions.FieldManager
	if got := string(patch.Patch); !strings.Contains(got, status) || manager != "gpu.nvidia.com/idle" {
		t.Errorf("got %s by %s, want in it %s", got, manager, status)
	}
	if got, want := <-recorder.Events, "Normal ClaimIdle node node: not used for 30m0s"; got != want {
		t.Errorf("got event %q, want %q", got, want)
	}
}
