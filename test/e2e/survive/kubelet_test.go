//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// fakeKubelet calls plugins as a node's kubelet does: once a second it looks for registration sockets, asks each new
// one for the plugin's endpoint, and calls the plugin that it found last. It notices new and removed plugins as late as
// the kubelet, but can call at any rate.
type fakeKubelet struct {
	n    node
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	plugins []*instance // in the order in which they were found
	seen    []string
}

// instance is a registered plugin.
type instance struct {
	socket string
	conn   *grpc.ClientConn
}

func (n node) fakeKubelet(t *testing.T) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{n: n, stop: make(chan struct{}), done: make(chan struct{})}
	k.look(t)
	go func() {
		defer close(k.done)
		for {
			select {
			case <-k.stop:
				return
			case <-time.After(time.Second):
				k.look(t)
			}
		}
	}()
	return k
}

func (k *fakeKubelet) end() {
	close(k.stop)
	<-k.done
}

// look finds new and removed plugins.
func (k *fakeKubelet) look(t *testing.T) {
	const registry = "/var/lib/kubelet/plugins_registry"
	entries, err := os.ReadDir(k.n.disk(registry))
	if err != nil {
		t.Error(err)
		return
	}
	there := map[string]bool{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), driver) {
			there[e.Name()] = true
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var left []*instance
	for _, p := range k.plugins {
		if there[p.socket] {
			left = append(left, p)
			delete(there, p.socket)
		}
	}
	k.plugins = left
	for socket := range there {
		p, err := k.find(t, registry, socket)
		if err != nil {
			continue // not ready yet; the kubelet also retries
		}
		k.plugins = append(k.plugins, p)
		k.seen = append(k.seen, socket)
	}
}

// find asks a registration socket for its plugin.
func (k *fakeKubelet) find(t *testing.T, registry, socket string) (*instance, error) {
	conn := k.n.dial(t, registry, socket)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return nil, err
	}
	return &instance{socket, k.n.dial(t, filepath.Dir(info.Endpoint), filepath.Base(info.Endpoint))}, nil
}

// plugin returns the one that the kubelet would call.
func (k *fakeKubelet) plugin() (drapb.DRAPluginClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.plugins) == 0 {
		return nil, errors.New("no plugin is registered")
	}
	return drapb.NewDRAPluginClient(k.plugins[len(k.plugins)-1].conn), nil
}

// prepare prepares a claim, without retries: the kubelet retries only after 10 s and more.
func (k *fakeKubelet) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	plugin, err := k.plugin()
	if err != nil {
		return err
	}
	answer, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: wire(claim)})
	if err != nil {
		return err
	}
	result := answer.Claims[string(claim.UID)]
	if result.GetError() != "" || len(result.GetDevices()) != 1 {
		return fmt.Errorf("%s, devices %v", result.GetError(), result.GetDevices())
	}
	return nil
}

// unprepare releases the claim.
func (k *fakeKubelet) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	plugin, err := k.plugin()
	if err != nil {
		return err
	}
	answer, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: wire(claim)})
	if err != nil {
		return err
	}
	if text := answer.Claims[string(claim.UID)].GetError(); text != "" {
		return errors.New(text)
	}
	return nil
}

func wire(claim *resourceapi.ResourceClaim) []*drapb.Claim {
	return []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}
}
