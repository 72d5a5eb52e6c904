// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
)

// Config is what a running plugin is made of.
type Config struct {
	DriverName  string
	NodeName    string    // also the name of the pool
	PodUID      types.UID // set: several instances may run side by side, each under the UID of its pod
	PluginDir   string    // for sockets and state; must exist
	RegistryDir string    // where the kubelet looks for plugins
	HTTPAddress string    // for health; empty: no server
	BootID      string

	Client  kubernetes.Interface
	Specs   claims.Specs
	Records claims.Records
	// Discover reads the machine. Broken GPUs are left out and reported, each in one error. err says what is missing for now.
	Discover func() (node claims.Node, broken []error, err error)
}

// patience is how long Prepare waits for a device that another claim still holds: less than the 45 s that the kubelet allows for a
// call, and more than containers usually take to end (30 s).
const patience = 35 * time.Second

// Run serves the kubelet until ctx ends, and then ends what it has begun. It registers at once, so that claims can be released
// whatever state the machine is in; devices are published, and claims prepared, as soon as Discover succeeds.
func Run(ctx context.Context, c Config) error {
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)

	status := newStatus()
	server, err := serveHealth(c.HTTPAddress, status)
	if err != nil {
		return err
	}
	defer server.Close()

	removeDeadSockets(ctx, c.PluginDir, c.RegistryDir, c.DriverName)
	machine := &machine{config: c, status: status}
	preparer := &claims.Preparer{
		Driver:   c.DriverName,
		BootID:   c.BootID,
		Node:     machine.current,
		Specs:    c.Specs,
		Records:  c.Records,
		Patience: patience,
	}
	plugin := &plugin{preparer: preparer, fatal: fatal}
	// The helper cuts calls off when its context ends, so it gets one that does not: Stop comes after drain.
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), plugin, helperOptions(c)...)
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	status.registration = helper.RegistrationStatus
	publisher := &publisher{pool: c.NodeName, publish: helper.PublishResources}
	defer publisher.resign() // in the end, when nothing is on its way to the API server any more
	defer helper.Stop()
	defer plugin.drain(ctx, c)

	go publisher.becomeTheOne(ctx, c.PluginDir)
	machine.changed = publisher.set
	machine.ready = preparer.Resume
	machine.watch(ctx)
	return ended(ctx)
}

func helperOptions(c Config) []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(c.DriverName),
		kubeletplugin.NodeName(c.NodeName),
		kubeletplugin.KubeClient(c.Client),
		kubeletplugin.PluginDataDirectoryPath(c.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(c.RegistryDir),
		kubeletplugin.Serialize(false), // the records have locks, one per device
		kubeletplugin.HealthService(false),
	}
	if c.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(c.PodUID))
	}
	return options
}

// ended is why the context ended: nil when it was asked to.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
