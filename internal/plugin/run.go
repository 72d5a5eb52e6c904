// SPDX-License-Identifier: Apache-2.0

// Package plugin runs the node's part of the driver. It connects the packages below it, and starts and stops them in
// order. Each of them has one task:
//
//	kubelet       registration, sockets, and the calls of the kubelet
//	node          what is known of the GPUs: discoveries, modes, health
//	gpuhealth     sick GPUs, and what follows
//	publish       ResourceSlices, as the API server can store them
//	usage         GPU usage of containers
//	report        events, status of claims, metrics, readiness
//	containers    finding the containers of claims and processes
//	cleanup       releasing claims that the kubelet has forgotten
//	podresources  client of the kubelet's pod resources API
//	dirwatch      changes of files
package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/cleanup"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/containers"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/kubelet"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/node"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/usage"
	"github.com/gpudra/gpu-dra-driver/pkg/cdi"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Config is the configuration of the plugin.
type Config struct {
	DriverName   string
	NodeName     string    // also the name of the pool of the GPUs
	PodUID       types.UID // set: several instances may run side by side, each under the UID of its pod
	PluginDir    string    // for sockets and state; must exist
	RegistryDir  string    // where the kubelet looks for plugins
	CDIDir       string    // where kubeletplugin puts the specs of device metadata
	PodResources string    // socket of the kubelet's pod resources API
	HTTPAddress  string    // for health and metrics; empty: no server
	BootID       string
	SweepPeriod  time.Duration // see cleanup.Cleaner
	// directory with one file per node configuration; empty: every GPU has its default mode
	NodeConfigs  string
	SharedMemory string // see claims.Preparer
	DaemonMemory uint64 // likewise
	PreloadDir   string // see claims.Preparer

	Client   kubernetes.Interface
	Specs    *cdi.Specs
	Records  *checkpoint.Records
	Daemons  mps.Dir
	Hardware claims.Hardware
	Toolkit  claims.Toolkit
	// Observers observe the steps of every call, besides the metrics.
	Observers []steps.Observer

	// Machine are the GPUs.
	Machine Machine
	// RuntimeProblems: see node.Check; nil: the runtime is not checked.
	RuntimeProblems func(version string) []string
	// ContainerUsage lets the plugin look for the programs that use GPUs.
	ContainerUsage bool
	Proc           string // see usage.CollectorConfig
	// GPUManagerNames: see usage.CollectorConfig.
	GPUManagerNames bool
}

// Machine are the GPUs of the node.
type Machine interface {
	node.Machine
	// Processes returns the processes that use a GPU.
	Processes(ctx context.Context, d gpu.Device) ([]gpu.Process, error)
}

// callTimeout is how long a call without a deadline waits for other operations. Calls of the kubelet have one (45 s).
const callTimeout = 30 * time.Second

// firstDiscoveryTimeout is how long the first discovery may delay registration. It is longer than the timeout of a GPU,
// so that claims on working GPUs can be prepared.
const firstDiscoveryTimeout = 40 * time.Second

// flushTimeout is how long the end of the plugin may wait until the status of the last claims is written.
const flushTimeout = 2 * time.Second

// Run serves the kubelet until ctx ends, and then stops everything that it has started. It registers after the first
// discovery, so that during an update the old instance serves until this one can.
func Run(ctx context.Context, c Config) error {
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	sockets := c.sockets()
	c.removeAbandoned(ctx, sockets)
	readiness, metrics := report.NewReadiness(node.LoopTimeout), report.NewMetrics(c.Records)
	http, err := report.Serve(c.HTTPAddress, readiness, metrics.Registry)
	if err != nil {
		return err
	}
	defer http.Close()
	// The reporter runs until calls in flight have drained.
	reports, endReports := context.WithCancel(context.WithoutCancel(ctx))
	defer endReports()
	reporter := report.NewReporter(reports, report.ReporterConfig{Driver: c.DriverName, Node: c.NodeName,
		Client:   c.Client,
		Stopping: ctx.Done()})
	publisher := publish.New(publish.PublisherConfig{Client: c.Client, Driver: c.DriverName, Node: c.NodeName,
		Dir:     c.PluginDir,
		Records: c.Records, Reporter: reporter, Readiness: readiness})
	resumes := make(chan struct{}, 1)
	gpus := node.New(node.Config{NodeName: c.NodeName, Dir: c.PluginDir, BootID: c.BootID, ConfigDir: c.NodeConfigs,
		Client: c.Client, Records: c.Records, Machine: c.Machine, FindUsers: c.ContainerUsage, Alone: sockets.Alone,
		Gates: publisher.Gates, Publisher: publisher, Readiness: readiness, Metrics: metrics, Reporter: reporter,
		Resume: resumes})
	metrics.Registry.MustRegister(c.usage(gpus))
	preparer := c.preparer(ctx, gpus, reporter)
	server := &kubelet.Server{Preparer: preparer, Metrics: metrics, Reporter: reporter, Observers: c.Observers,
		Node: gpus, Fatal: fatal, NodeName: c.NodeName}
	go publisher.Gates.Run(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		gpus.Run(ctx)
	}()
	if c.RuntimeProblems != nil {
		go node.Check(ctx, c.Client, c.NodeName, reporter, c.RuntimeProblems)
	}
	select {
	case <-gpus.Ready():
	case <-time.After(firstDiscoveryTimeout):
	case <-ctx.Done():
	}
	connection, err := kubelet.Serve(ctx, sockets, server)
	if err != nil {
		return err
	}
	readiness.Registration(connection.RegistrationStatus)
	defer publisher.Stop() // last, when no status is being written
	defer reporter.Flush(flushTimeout)
	defer connection.Stop()
	defer connection.Drain(ctx)
	gpus.Serving()
	go publisher.Run(ctx)
	go reporter.Run(reports)
	go resume(ctx, preparer, server, resumes)
	go c.cleaner(sockets, preparer).Run(ctx)
	go (&report.DaemonWatch{Daemons: c.Daemons, Records: c.Records, Reporter: reporter}).Run(ctx)
	<-ctx.Done()
	<-stopped // it saves the health of GPUs, which the last instance removes
	return exitCause(ctx)
}

// sockets returns the configuration of the connection to the kubelet.
func (c Config) sockets() kubelet.Sockets {
	return kubelet.Sockets{DriverName: c.DriverName, NodeName: c.NodeName, PodUID: c.PodUID, PluginDir: c.PluginDir,
		RegistryDir: c.RegistryDir, CDIDir: c.CDIDir, Client: c.Client}
}

// usage returns the collector of what containers use.
func (c Config) usage(gpus *node.Node) *usage.Collector {
	config := usage.CollectorConfig{Kubelet: c.PodResources, Client: c.Client, Node: c.NodeName, Records: c.Records,
		Inventory: gpus.Inventory, Proc: c.Proc, GPUManagerNames: c.GPUManagerNames}
	if c.ContainerUsage {
		config.Processes = c.Machine.Processes
	}
	return usage.NewCollector(config)
}

// preparer returns what prepares claims until ctx ends.
func (c Config) preparer(ctx context.Context, gpus *node.Node, reporter *report.Reporter) *claims.Preparer {
	return &claims.Preparer{
		Driver: c.DriverName, BootID: c.BootID, Devices: gpus.Devices, Hardware: gpus.Hardware(c.Hardware),
		Toolkit: c.Toolkit, Specs: c.Specs, Records: c.Records, Daemons: c.Daemons, SharedMemory: c.SharedMemory,
		DaemonMemory: c.DaemonMemory, PreloadDir: c.PreloadDir,
		Containers: containers.Using(c.Client, c.DriverName),
		Running: (&containers.Running{Proc: c.Proc, MetadataDir: filepath.Join(c.PluginDir, metadataDir),
			Reserved: containers.ReservedFor(c.Client)}).With,
		Timeout: callTimeout, Waiting: reporter.Waiting, Stopping: ctx,
	}
}

// releaser releases claims through the socket of this instance, and ends daemons itself.
type releaser struct {
	kubelet.Sockets
	*claims.Preparer
}

// cleaner returns what releases claims that the kubelet has forgotten.
func (c Config) cleaner(sockets kubelet.Sockets, preparer *claims.Preparer) *cleanup.Cleaner {
	return &cleanup.Cleaner{Driver: c.DriverName, NodeName: c.NodeName, Client: c.Client, Records: c.Records,
		Specs: c.Specs, Kubelet: c.PodResources, Releaser: releaser{sockets, preparer}, Period: c.SweepPeriod}
}

// removeAbandoned removes what killed instances have left.
func (c Config) removeAbandoned(ctx context.Context, sockets kubelet.Sockets) {
	sockets.RemoveDeadSockets(ctx)
	if err := removeTemporary(c.PluginDir, abandonedAfter); err != nil {
		klog.FromContext(ctx).Error(err, "Temporary files of a killed instance are left")
	}
}

// resume calls Resume on request. It blocks no call: Prepare does the same for its own
// claim.
func resume(ctx context.Context, preparer *claims.Preparer, server *kubelet.Server, asked <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
		}
		if err := preparer.Resume(server.Observed(ctx)); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Some claims could not be brought right")
		}
	}
}

// exitCause returns why the context ended; nil if it was canceled normally.
func exitCause(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
