// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
)

const (
	// unregisterDelay gives the kubelet time to notice that a registration socket is gone: its plugin manager looks once a second.
	unregisterDelay = 1500 * time.Millisecond
	// drainTimeout bounds the wait for calls in flight: the pod has 30 s to end.
	drainTimeout = 25 * time.Second
)

// drain makes the kubelet turn to another instance, if there is one, and waits until every call that reached this one is answered.
func (p *plugin) drain(ctx context.Context, c Config) {
	if c.PodUID != "" {
		name := kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, c.DriverName, c.PodUID)
		if err := os.Remove(filepath.Join(c.RegistryDir, name)); err == nil {
			time.Sleep(unregisterDelay)
		}
	}
	for deadline := time.Now().Add(drainTimeout); p.calls.Load() > 0; {
		if time.Now().After(deadline) {
			klog.FromContext(ctx).Info("Calls cut off at the end", "calls", p.calls.Load())
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// removeDeadSockets removes what instances that were killed have left: the kubelet would try to reach each of them again and again.
func removeDeadSockets(ctx context.Context, pluginDir, registryDir, driver string) {
	registrations, _ := filepath.Glob(filepath.Join(registryDir, driver+"-*reg.sock"))
	services, _ := filepath.Glob(filepath.Join(pluginDir, "dra*.sock"))
	for _, socket := range append(registrations, services...) {
		conn, err := net.DialTimeout("unix", socket, time.Second)
		if err == nil {
			_ = conn.Close()
			continue
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			klog.FromContext(ctx).Info("Removing a socket that nobody serves", "socket", socket, "result", os.Remove(socket))
		}
	}
}
