// SPDX-License-Identifier: Apache-2.0

// Package nodemetrics has an example of the plugin's metrics, for tests of pages, of the chart and of kubectl gpu.
package nodemetrics

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/idle"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/usage"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// Example returns a registry with at least one value of each metric, until the test ends. Names of containers and of
// their devices are empty.
func Example(t testing.TB) *prometheus.Registry {
	t.Helper()
	m := report.NewMetrics(records{})
	m.PendingChanges([]report.PendingChange{{UUID: "GPU-…", From: gpu.SharingMode{Sharing: gpu.Exclusive},
		Claims: []sharing.Claim{{Namespace: "ml", Name: "train"}}}})
	m.Answered(map[gpu.UUID]time.Time{"GPU-…": time.Now()})
	m.XID("GPU-…", 79)
	m.GPUStates(map[gpu.UUID]report.GPUState{"GPU-…": {Device: "gpu-3b-00-0", State: report.GPUUnhealthy,
		Causes: []string{"XID79"}}})
	m.Registry.MustRegister(usage.NewCollector(usage.CollectorConfig{Kubelet: serveKubelet(t),
		Records: records{{Claim: sharing.Claim{UID: "claim"},
			Plan: sharing.Plan{Assignments: []sharing.Assignment{{CDI: []string{"claim"}}}}}},
		Inventory: func() inventory.Inventory { return inventory.Inventory{{}} },
		Processes: func(context.Context, gpu.Device) (gpu.Processes, error) { return gpu.Processes{}, nil }}),
		idleClaim(t))
	return m.Registry
}

// idleClaim returns the metrics of a claim that has been idle for an hour.
func idleClaim(t testing.TB) *idle.Watcher {
	t.Helper()
	use := usage.ClaimUse{Claim: sharing.Claim{Namespace: "ml", Name: "train"}, Device: "gpu-3b-00-0", Use: usage.Idle}
	dir, now := t.TempDir(), time.Now()
	saved, err := json.Marshal(map[string]any{"At": now, "Devices": []any{map[string]any{"Claim": use.Claim,
		"Device": use.Device, "Use": use.Use, "Since": now.Add(-time.Hour)}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, idle.File), saved, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := idle.New(idle.Options{After: time.Minute, Dir: dir, Reporter: silent{},
		Claims: func() ([]usage.ClaimUse, bool) {
			used, unknown := use, use
			used.Claim.UID, used.Use = "used", usage.Used
			unknown.Claim.UID, unknown.Use = "unknown", usage.Unknown
			return []usage.ClaimUse{use, used, unknown}, true
		}})
	once, end := context.WithCancel(t.Context())
	end()
	w.Run(once)
	return w
}

type silent struct{}

func (silent) Idle(sharing.Claim, []report.DeviceCondition, string) {}

func (silent) IdleWritten() bool { return true }

type records []checkpoint.PreparedClaim

func (r records) List() ([]checkpoint.PreparedClaim, error) { return r, nil }

// serveKubelet serves the list of a kubelet with one container, and returns the socket.
func serveKubelet(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "metrics") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, kubelet{})
	go func() { _ = server.Serve(listener) }() // ends when the server is stopped
	t.Cleanup(func() {
		server.Stop()
		_ = os.RemoveAll(dir)
	})
	return socket
}

type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse,
	error) {
	devices := []*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{{Name: "claim"}}}}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Containers: []*podresources.ContainerResources{{
			DynamicResources: []*podresources.DynamicResource{{ClaimResources: devices}}}}}}}, nil
}
