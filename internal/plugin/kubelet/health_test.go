// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

func TestWatchHealthStatus(t *testing.T) {
	s := &Server{NodeName: "node", Node: &gpus{reports: []health.DeviceReport{{Device: "gpu-0", Status: health.Healthy},
		{Device: "gpu-1", Status: health.Unhealthy, Message: "XID 79"},
		{Device: "gpu-2", Status: health.Unknown}, {Device: "monitor", Status: health.Healthy}}}}
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
