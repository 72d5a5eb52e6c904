// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The test acts as the kubelet: it finds the driver by its socket in the registry, gets its info, and prepares a claim.
func TestNothingWaitsForUnprepare(t *testing.T) {
	dir := t.TempDir()
	registered := filepath.Join(dir, "registered")
	registry := filepath.Join(dir, "plugins_registry")
	if err := os.Mkdir(registry, 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- newNothing(dir, "nic.example.com", registered).serve(ctx, dir) }()

	registration := registerpb.NewRegistrationClient(dial(t, filepath.Join(registry, "nic.example.com-reg.sock")))
	info, err := registration.GetInfo(t.Context(), &registerpb.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registration.NotifyRegistrationStatus(t.Context(),
		&registerpb.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(registered); err != nil {
		t.Error(err)
	}
	if info.Type != "DRAPlugin" || info.Name != "nic.example.com" {
		t.Errorf("got %s %s, want DRAPlugin nic.example.com", info.Type, info.Name)
	}
	driver := drapb.NewDRAPluginClient(dial(t, info.Endpoint))
	claims := []*drapb.Claim{{Namespace: "ns", Name: "claim", Uid: "u"}}
	prepared, err := driver.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: claims})
	if got := prepared.GetClaims()["u"]; err != nil || got == nil || got.Error != "" || len(got.Devices) != 0 {
		t.Errorf("got %v and error %v, want an entry without devices", got, err)
	}
	end()
	select {
	case err := <-ended:
		t.Fatalf("it is gone with a claim in use; error %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	unprepared, err := driver.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if got := unprepared.GetClaims()["u"]; err != nil || got == nil || got.Error != "" {
		t.Errorf("got %v and error %v, want an entry", got, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(registry, "*")); len(left) > 0 || err != nil {
		t.Errorf("got %q and error %v, want no socket left", left, err)
	}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}
