// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// TestHealthz: the probe fails when the discovery loop hangs, and no longer than that.
func TestHealthz(t *testing.T) {
	r := NewReadiness(time.Minute)
	server, err := Serve("", r, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		change func()
		want   int
	}{
		{"it has just started", func() {}, http.StatusOK},
		{"no heartbeat for long", func() { r.beat = r.beat.Add(-2 * time.Minute) }, http.StatusServiceUnavailable},
		{"a heartbeat", r.Beat, http.StatusOK},
	} {
		row.change()
		w := httptest.NewRecorder()
		server.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if w.Code != row.want {
			t.Errorf("%s: got %d, %s, want %d", row.name, w.Code, w.Body, row.want)
		}
	}
}

// TestEventsTellThePresentCause: events about the same claim with different causes are not aggregated.
func TestEventsTellThePresentCause(t *testing.T) {
	client := fake.NewClientset()
	r := NewReporter(t.Context(), ReporterConfig{Driver: "gpu.nvidia.com", Node: "node", Client: client})
	claim := sharing.Claim{Namespace: "ns", Name: "c", UID: "1"}
	for _, cause := range []string{"GPU gpu-1 is busy", "GPU gpu-1 is busy", "MPS daemon gpu-1 is not ready"} {
		r.Waiting(claim, errors.New(cause))
	}
	want := []string{"node node waits: GPU gpu-1 is busy", "node node waits: MPS daemon gpu-1 is not ready"}
	var got []string
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		list, err := client.EventsV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got = notes(list.Items)
		if slices.Equal(got, want) {
			return
		}
	}
	t.Errorf("got events %q, want %q", got, want)
}

// TestEventsOfServerFailures: failures of one MPS daemon are counted in one event, whatever its clients make it say.
func TestEventsOfServerFailures(t *testing.T) {
	client := fake.NewClientset()
	r := NewReporter(t.Context(), ReporterConfig{Driver: "gpu.nvidia.com", Node: "node", Client: client})
	claim := sharing.Claim{Namespace: "ns", Name: "c", UID: "1"}
	for status := range 20 {
		r.ServerFailed(claim, "gpu-1", fmt.Sprint("a server exited with status ", status))
	}
	r.ServerFailed(claim, "gpu-2", "a server exited with status 1")
	var got []eventsv1.Event
	// A series that is written at the same time as its event is written again after more than 10 s.
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		list, err := client.EventsV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got = list.Items
		if slices.ContainsFunc(got, func(e eventsv1.Event) bool { return e.Series != nil }) && len(got) >= 2 {
			break
		}
	}
	if len(got) != 2 || (got[0].Series == nil) == (got[1].Series == nil) {
		t.Errorf("got events %q, want one of gpu-1, with a series, and one of gpu-2", notes(got))
	}
}

func notes(all []eventsv1.Event) []string {
	var out []string
	for _, e := range all {
		out = append(out, e.Note)
	}
	slices.Sort(out)
	return out
}

// TestTransitionTime: a condition keeps its transition time while its status does not change.
func TestTransitionTime(t *testing.T) {
	long := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "1"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.nvidia.com", Pool: "node",
			Device: "gpu-1"}}}}
	for _, row := range []struct {
		name   string
		device string // that the condition of before is about
		before metav1.ConditionStatus
		kept   bool
	}{
		{"not ready before and now", "gpu-1", metav1.ConditionFalse, true},
		{"ready before", "gpu-1", metav1.ConditionTrue, false},
		{"another device not ready before", "gpu-2", metav1.ConditionFalse, false},
	} {
		r := NewReporter(t.Context(), ReporterConfig{Driver: "gpu.nvidia.com", Node: "node",
			Client: fake.NewClientset()})
		claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "gpu.nvidia.com", Pool: "node",
			Device:     row.device,
			Conditions: []metav1.Condition{{Type: readyCondition, Status: row.before, LastTransitionTime: long}}}}
		r.Failed(claim, errors.New("GPU gpu-1 is lost"))
		got := r.statuses.next["1"].want.Status.Devices[0].Conditions[0].LastTransitionTime
		if got.Equal(&long) != row.kept {
			t.Errorf("%s: got time %s, before it was %s; want it kept: %t", row.name, got, long, row.kept)
		}
	}
}

// The owner of a pod learns from the pod that its GPU is sick. Other pods of the namespace are not told.
func TestOwnersOfPodsAreTold(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid"}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "pod"},
		{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "group"}}
	for _, row := range []struct {
		name  string
		event event.Kind
		uid   types.UID
		want  string
	}{
		{"a sick GPU", Events.DeviceUnhealthy, "uid", "ResourceClaim c uid\nPod p pod\n"},
		{"it is healthy again", Events.DeviceRecovered, "uid", "ResourceClaim c uid\nPod p pod\n"},
		{"a notice", Events.DeviceNotice, "uid", "ResourceClaim c uid\n"},
		{"a later claim of the same name", Events.DeviceUnhealthy, "former", "ResourceClaim c former\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := &recorded{}
				r := NewReporterTo(told, ReporterConfig{Node: "n", Client: fake.NewClientset(claim)})
				r.Write(Notice{Event: row.event, Text: "sick",
					Claim: sharing.Claim{Namespace: "ns", Name: "c", UID: row.uid}})
				synctest.Wait()
				r.shutDown()
				if got := told.text.String(); got != row.want {
					t.Errorf("got:\n%swant:\n%s", got, row.want)
				}
			})
		})
	}
}

// recorded writes down what events are about.
type recorded struct{ text strings.Builder }

func (r *recorded) Eventf(about, _ runtime.Object, _, _, _, _ string, _ ...any) {
	of, ok := about.(*corev1.ObjectReference)
	if ok {
		fmt.Fprintln(&r.text, of.Kind, of.Name, of.UID)
	}
}
