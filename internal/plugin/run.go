// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
)

// Config is what a running plugin is made of.
type Config struct {
	DriverName  string
	NodeName    string // also the name of the pool
	PluginDir   string // for sockets; must exist
	RegistryDir string // where the kubelet looks for plugins
	HTTPAddress string // for health; empty: no server
	BootID      string

	Client  kubernetes.Interface
	Specs   claims.Specs
	Records claims.Records
	// Discover reads the machine. Broken GPUs are left out and reported, each in one error. err says what is missing for now.
	Discover func() (node claims.Node, broken []error, err error)
}

// discoverPeriod is how often a machine that is not ready is looked at again.
const discoverPeriod = 2 * time.Second

// Run serves the kubelet until ctx ends. It registers at once, so that claims can be released whatever state the machine is in;
// devices are published, and claims prepared, as soon as Discover succeeds.
func Run(ctx context.Context, c Config) error {
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)

	status := newStatus()
	server, err := serveHealth(c.HTTPAddress, status)
	if err != nil {
		return err
	}
	defer server.Close()

	var machine atomic.Pointer[claims.Node]
	preparer := &claims.Preparer{
		Driver:  c.DriverName,
		BootID:  c.BootID,
		Specs:   c.Specs,
		Records: c.Records,
		Node: func() (claims.Node, error) {
			if node := machine.Load(); node != nil {
				return *node, nil
			}
			return claims.Node{}, fmt.Errorf("not ready: %w", status.waitingFor())
		},
	}
	helper, err := kubeletplugin.Start(ctx, &plugin{preparer: preparer, fatal: fatal},
		kubeletplugin.DriverName(c.DriverName),
		kubeletplugin.NodeName(c.NodeName),
		kubeletplugin.KubeClient(c.Client),
		kubeletplugin.PluginDataDirectoryPath(c.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(c.RegistryDir),
		kubeletplugin.Serialize(false), // the records have locks, one per device
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	defer helper.Stop()
	status.registration = helper.RegistrationStatus

	node, ok := waitForMachine(ctx, c, status)
	if !ok {
		return ended(ctx)
	}
	machine.Store(&node)
	if err := preparer.Resume(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Some claims from before could not be put right")
	}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{c.NodeName: node.Inventory.Pool()}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	klog.FromContext(ctx).Info("Devices published", "pool", c.NodeName, "devices", len(node.Inventory))
	status.wait(nil)

	<-ctx.Done()
	return ended(ctx)
}

// waitForMachine looks at the machine until it is ready, and says each thing it waits for once.
func waitForMachine(ctx context.Context, c Config, status *status) (claims.Node, bool) {
	logger := klog.FromContext(ctx)
	said := ""
	for {
		node, broken, err := c.Discover()
		if err == nil {
			for _, b := range broken {
				logger.Error(b, "GPU left out: it cannot be read")
			}
			return node, true
		}
		status.wait(err)
		if err.Error() != said {
			said = err.Error()
			logger.Info("Waiting", "for", said)
		}
		select {
		case <-ctx.Done():
			return claims.Node{}, false
		case <-time.After(discoverPeriod):
		}
	}
}

// ended is why the context ended: nil when it was asked to.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
