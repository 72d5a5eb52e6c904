// SPDX-License-Identifier: Apache-2.0

// Package plugin runs the node's part of the driver. It connects the packages below it, and starts and stops them in
// order. Each of them has one task:
//
//	kubelet       registration, sockets, and the calls of the kubelet
//	gpuhealth     noticing sick GPUs, and what follows
//	node          discovering GPUs, assigning their modes
//	publish       ResourceSlices, as the API server can store them
//	usage         GPU usage of containers
//	report        events, status of claims, metrics, readiness
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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/cleanup"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
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

	// Events are the GPUs as the source of events; nil: none are watched.
	Events gpuhealth.Hardware

	// Discover, DriverChanged, LibraryDir, Users and RuntimeProblems: see node.Config.
	Discover        func(context.Context) (node.Look, error)
	DriverChanged   func() bool
	LibraryDir      func() string
	Users           func(context.Context, gpu.Device) ([]string, error)
	RuntimeProblems func(version string) []string
	// Processes, Proc and GPUManagerNames: see usage.Config.
	Processes       func(context.Context, gpu.Device) ([]gpu.Process, error)
	Proc            string
	GPUManagerNames bool
}

// callTimeout is how long a call without a deadline waits for other operations. Calls of the kubelet have one (45 s).
const callTimeout = 30 * time.Second

// firstLookTimeout is how long the first discovery may delay registration. It is longer than the timeout of a GPU, so
// that claims on working GPUs can be prepared.
const firstLookTimeout = 40 * time.Second

// flushTimeout is how long the end of the plugin may wait until the status of the last claims is written.
const flushTimeout = 2 * time.Second

// Run serves the kubelet until ctx ends, and then stops everything that it has started. It registers after the first
// discovery, so that during an update the old instance serves until this one can.
func Run(ctx context.Context, c Config) error {
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	sockets := kubelet.Config{DriverName: c.DriverName, NodeName: c.NodeName, PodUID: c.PodUID, PluginDir: c.PluginDir,
		RegistryDir: c.RegistryDir, CDIDir: c.CDIDir, Client: c.Client}
	c.removeAbandoned(ctx, sockets)

	readiness := report.NewReadiness(node.LoopTimeout)
	metrics := report.NewMetrics(c.Records)
	http, err := report.Serve(c.HTTPAddress, readiness, metrics.Registry)
	if err != nil {
		return err
	}
	defer http.Close()

	// The reporter runs until calls in flight have drained.
	reports, endReports := context.WithCancel(context.WithoutCancel(ctx))
	defer endReports()
	reporter := report.NewReporter(reports, report.Config{Driver: c.DriverName, Node: c.NodeName, Client: c.Client,
		Stopping: ctx.Done()})

	var (
		gpus    *node.Node
		resumes = make(chan struct{}, 1)
	)
	publisher := publish.New(publish.Config{Client: c.Client, Driver: c.DriverName, Node: c.NodeName, Dir: c.PluginDir,
		Records: c.Records, Reporter: reporter, Readiness: readiness})
	sick := gpuhealth.New(gpuhealth.Config{
		Dir: c.PluginDir, BootID: c.BootID, Hardware: c.Events, Records: c.Records, Reporter: reporter,
		Metrics: metrics, Changed: func() { gpus.Republish() }, Discover: func() { gpus.DiscoverNow() },
		Alone: sockets.Alone,
	})
	gpus = node.New(node.Config{
		DriverName: c.DriverName, NodeName: c.NodeName, Dir: c.PluginDir, BootID: c.BootID, ConfigDir: c.NodeConfigs,
		Client: c.Client, Records: c.Records, Discover: c.Discover, DriverChanged: c.DriverChanged,
		LibraryDir: c.LibraryDir, Users: c.Users,
		RuntimeProblems: c.RuntimeProblems, Readiness: readiness, Metrics: metrics, Reporter: reporter,
		Publish: publisher.Set, Health: sick, Gates: publisher.Gates,
		Resume: func() {
			select {
			case resumes <- struct{}{}:
			default: // one is already pending
			}
		},
	})
	metrics.Registry.MustRegister(usage.NewCollector(usage.Config{
		Kubelet: c.PodResources, Client: c.Client, Node: c.NodeName, Records: c.Records, Inventory: gpus.Inventory,
		Processes: c.Processes, Proc: c.Proc, GPUManagerNames: c.GPUManagerNames,
	}))
	preparer := &claims.Preparer{
		Driver: c.DriverName, BootID: c.BootID, Devices: gpus.Devices, Hardware: gpus.Hardware(c.Hardware),
		Toolkit: c.Toolkit,
		Specs:   c.Specs, Records: c.Records, Daemons: c.Daemons, SharedMemory: c.SharedMemory,
		DaemonMemory: c.DaemonMemory, PreloadDir: c.PreloadDir,
		Containers: usage.Containers(c.Client, c.DriverName),
		Running: (&usage.Running{Proc: c.Proc, MetadataDir: filepath.Join(c.PluginDir, metadataDir),
			Reserved: usage.ReservedFor(c.Client)}).With,
		Timeout: callTimeout, Waiting: reporter.Waiting, Stopping: ctx,
	}
	server := &kubelet.Server{
		Preparer: preparer, Metrics: metrics, Reporter: reporter, Observers: c.Observers, Inventory: gpus.Inventory,
		Ready: gpus.Looked, Fatal: fatal, ServeHealth: sick.Serve,
		NodeName: c.NodeName,
		Registered: func() {
			publisher.Stale()
			gpus.Republish()
		},
	}
	go publisher.Gates.Run(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		gpus.Run(ctx)
	}()
	select {
	case <-gpus.Looked:
	case <-time.After(firstLookTimeout):
	case <-ctx.Done():
	}
	connection, err := kubelet.Serve(ctx, sockets, server)
	if err != nil {
		return err
	}
	readiness.Registration(connection.RegistrationStatus)
	defer publisher.Stop()
	defer reporter.Flush(flushTimeout)
	defer connection.Stop()
	defer connection.Drain(ctx)

	go publisher.Run(ctx)
	sickEnded := make(chan struct{})
	go func() {
		defer close(sickEnded)
		sick.Run(ctx)
	}()
	defer func() { <-sickEnded }() // it saves its state, which the last instance removes
	go reporter.Run(reports)
	go resume(ctx, preparer, server, resumes)
	go (&cleanup.Cleaner{
		Driver: c.DriverName, NodeName: c.NodeName, Client: c.Client, Records: c.Records, Specs: c.Specs,
		Kubelet: c.PodResources, Release: sockets.Release, Period: c.SweepPeriod,
		EndUnusedDaemons: preparer.EndUnusedDaemons,
	}).Run(ctx)
	go (&report.DaemonWatch{Daemons: c.Daemons, Records: c.Records, Restarted: reporter.DaemonRestarted,
		ServerFailed: reporter.ServerFailed, SingleUser: reporter.SingleUser}).Run(ctx)
	<-ctx.Done()
	select {
	case <-stopped:
	case <-time.After(time.Second): // a GPU hangs; calls for the others are still answered
	}
	return exitCause(ctx)
}

// removeAbandoned removes what killed instances have left.
func (c Config) removeAbandoned(ctx context.Context, sockets kubelet.Config) {
	sockets.RemoveDeadSockets(ctx)
	if err := removeTemporary(c.PluginDir, abandonedAfter); err != nil {
		klog.FromContext(ctx).Error(err, "Temporary files of a killed instance are left")
	}
}

// ExampleMetrics returns the metrics of a new plugin, with an example of each metric that has no value then. It is used
// for the docs.
func ExampleMetrics(records report.Lister) *prometheus.Registry {
	m := report.NewMetrics(records)
	m.Example()
	m.Registry.MustRegister(usage.Example{})
	return m.Registry
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
