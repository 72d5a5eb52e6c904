// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
)

// Restart starts what publishes the devices in the plugins of all nodes, at the same time and with the same devices, as
// when all plugins are restarted at once. Each has a connection of its own. They run until stop is called, which
// returns when they have ended.
func (f *Fleet) Restart(ctx context.Context, config *rest.Config) (stop func(), err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the plugins: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	stop = func() {
		cancel()
		wait.Wait()
		_ = os.RemoveAll(dir) // only empty lock files
	}
	for _, m := range f.members() {
		own := rest.CopyConfig(config)
		own.Dial = (&net.Dialer{}).DialContext // clients with the same one would share their connections
		client, err := kubernetes.NewForConfig(own)
		folder := filepath.Join(dir, m.Name)
		if err == nil {
			err = os.Mkdir(folder, 0o700)
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("start the plugin of node %s: %w", m.Name, err)
		}
		p := publish.New(publish.PublisherConfig{Client: client, Driver: f.driver, Node: m.Name, Dir: folder,
			Readiness: report.NewReadiness(time.Hour)})
		m.mu.Lock()
		p.Set(m.inventory.Only(m.offered.GPUs))
		m.mu.Unlock()
		wait.Go(func() { p.Gates.Run(ctx) })
		wait.Go(func() {
			p.Run(ctx)
			p.Stop()
		})
	}
	return stop, nil
}
