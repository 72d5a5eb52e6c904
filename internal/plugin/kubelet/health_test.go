// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

// A part of a slice that the API server does not store must not keep all devices from being published.
func TestUnstored(t *testing.T) {
	invalid := func(at string) error {
		return fmt.Errorf("update slice: %w", apierrors.NewInvalid(
			schema.GroupKind{Kind: "ResourceSlice"}, "slice", field.ErrorList{
				field.NotSupported(field.NewPath(at), "None", []string{"NoSchedule", "NoExecute"})}))
	}
	pool := resourceapi.ResourcePool{Name: "node"}
	withoutCounters := &resourceslice.DroppedFieldsError{
		DesiredSlice: &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Pool: pool,
			SharedCounters: []resourceapi.CounterSet{{Name: "gpu"}}}},
		ActualSlice: &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Pool: pool}}}
	for _, row := range []struct {
		name string
		err  error
		want string
	}{
		{"a taint is refused", invalid("spec.devices[0].taints[0].effect"), "[]"},
		{"counters are dropped", fmt.Errorf("create slice: %w", withoutCounters),
			"[DRAPartitionableDevices]"},
		{"no answer", errors.New("connection refused, taints unknown"), ""},
	} {
		got := ""
		s := &Server{Unstored: func(gates []string) { got += fmt.Sprint(gates) }}
		s.PublishFailed(t.Context(), row.err, "publish")
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

func TestWatchHealthStatus(t *testing.T) {
	s := &Server{NodeName: "node", ServeHealth: func(_ context.Context, send func([]health.Report) bool) {
		for send([]health.Report{{Device: "gpu-0", Status: health.Healthy},
			{Device: "gpu-1", Status: health.Unhealthy, Message: "XID 79"},
			{Device: "gpu-2", Status: health.Unknown}, {Device: "monitor", Status: health.Healthy}}) {
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reports, ended := make(chan kubeletplugin.DeviceHealthReport), make(chan error, 1)
	go func() { ended <- s.WatchHealthStatus(ctx, reports) }()
	for range 2 {
		got := ""
		select {
		case report := <-reports:
			for _, d := range report.Devices {
				if age := time.Since(d.LastUpdated); age < 0 || age > time.Minute {
					t.Errorf("%s: got the time %s", d.DeviceName, d.LastUpdated)
				}
				got += fmt.Sprintf("%s/%s %s %q\n", d.PoolName, d.DeviceName, d.Health, d.Message)
			}
		case <-time.After(5 * time.Minute):
			t.Fatal("no report")
		}
		const want = "node/gpu-0 Healthy \"\"\nnode/gpu-1 Unhealthy \"XID 79\"\nnode/gpu-2 Unknown \"\"\n" +
			"node/monitor/monitor Healthy \"\"\n"
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	cancel() // nobody receives the next report
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("got %v, want no error", err)
		}
	case <-time.After(5 * time.Minute):
		t.Error("it goes on after the end of its context")
	}
}
