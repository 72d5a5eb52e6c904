// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
)

const (
	// unregisterDelay gives the kubelet time to notice that a registration socket is gone: its plugin manager looks once a second.
	unregisterDelay = 1500 * time.Millisecond
	// drainTimeout bounds the wait for calls in flight: the pod has 30 s to end.
	drainTimeout = 25 * time.Second
)

// calls counts those of the kubelet that are in flight, from its request to our answer.
type calls struct{ inFlight atomic.Int64 }

func (c *calls) count(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	return handle(ctx, request)
}

// wait returns when no call is in flight, or at the deadline.
func (c *calls) wait(deadline time.Time) {
	for c.inFlight.Load() > 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
}

// drain answers every call that has reached this instance, then makes the kubelet forget it. In this order: with the registration
// socket goes the kubelet's connection, and every call on it. New calls go to the instance that registered last anyway.
func (c *calls) drain(ctx context.Context, config Config) {
	deadline := time.Now().Add(drainTimeout)
	c.wait(deadline)
	if config.PodUID != "" {
		name := kubeletplugin.RollingUpdateRegistrarSocketFile(config.RegistryDir, config.DriverName, config.PodUID)
		if err := os.Remove(filepath.Join(config.RegistryDir, name)); err == nil {
			time.Sleep(unregisterDelay)
		}
		c.wait(deadline)
	}
	if n := c.inFlight.Load(); n > 0 {
		klog.FromContext(ctx).Info("Calls cut off at the end", "calls", n)
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
