// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// kubeletDir is where the kubelet looks for plugins.
	kubeletDir = "/var/lib/kubelet"
	// registeredFile exists once the kubelet has registered the driver, for a readiness probe.
	registeredFile = "/tmp/registered"
)

// nothing is the node plugin of a DRA driver whose devices need no preparation. It tracks prepared claims and stays
// until they are unprepared: pods of a driver that is gone stay in Terminating.
type nothing struct {
	drapb.UnimplementedDRAPluginServer
	registerpb.UnimplementedRegistrationServer
	name, socket string
	registered   string // file to write when the driver is registered

	mu     sync.Mutex
	claims map[string]bool // by UID
}

func newNothing(dir, name, registered string) *nothing {
	return &nothing{name: name, socket: filepath.Join(dir, "plugins", name, "dra.sock"), registered: registered,
		claims: map[string]bool{}}
}

// serve serves the kubelet until the context has ended and every claim is unprepared.
func (n *nothing) serve(ctx context.Context, dir string) error {
	if err := os.MkdirAll(filepath.Dir(n.socket), 0o750); err != nil {
		return err
	}
	server := grpc.NewServer()
	drapb.RegisterDRAPluginServer(server, n)
	registerpb.RegisterRegistrationServer(server, n)
	served := make(chan error, 2)
	// The kubelet calls as soon as it sees the second socket.
	for _, socket := range []string{n.socket, filepath.Join(dir, "plugins_registry", n.name+"-reg.sock")} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed process
			return err
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		go func() { served <- server.Serve(listener) }()
	}
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", n.name, err)
	case <-ctx.Done():
	}
	for n.busy() {
		time.Sleep(100 * time.Millisecond)
	}
	server.GracefulStop() // also removes the sockets
	return nil
}

func (n *nothing) busy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.claims) > 0
}

func (n *nothing) GetInfo(context.Context, *registerpb.InfoRequest) (*registerpb.PluginInfo, error) {
	return &registerpb.PluginInfo{Type: registerpb.DRAPlugin, Name: n.name, Endpoint: n.socket,
		SupportedVersions: []string{drapb.DRAPluginService}}, nil
}

func (n *nothing) NotifyRegistrationStatus(_ context.Context, status *registerpb.RegistrationStatus) (
	*registerpb.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		fmt.Fprintf(os.Stderr, "gpu-demo: register %s: %s\n", n.name, status.Error)
		return &registerpb.RegistrationStatusResponse{}, nil
	}
	return &registerpb.RegistrationStatusResponse{}, os.WriteFile(n.registered, []byte(n.name+"\n"), 0o644)
}

func (n *nothing) NodePrepareResources(_ context.Context, request *drapb.NodePrepareResourcesRequest) (
	*drapb.NodePrepareResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	response := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, claim := range request.Claims {
		n.claims[claim.Uid] = true
		response.Claims[claim.Uid] = &drapb.NodePrepareResourceResponse{}
	}
	return response, nil
}

func (n *nothing) NodeUnprepareResources(_ context.Context, request *drapb.NodeUnprepareResourcesRequest) (
	*drapb.NodeUnprepareResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	response := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, claim := range request.Claims {
		delete(n.claims, claim.Uid)
		response.Claims[claim.Uid] = &drapb.NodeUnprepareResourceResponse{}
	}
	return response, nil
}
