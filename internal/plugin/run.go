// SPDX-License-Identifier: Apache-2.0

// Package plugin runs the node's part of the driver. It connects the packages below it, and starts and stops them in
// order. Each of them has one task:
//
//	kubelet       registration, sockets, and the calls of the kubelet
//	node          what is known of the GPUs: discoveries, modes, health
//	gpuhealth     sick GPUs, and what follows
//	publish       ResourceSlices, as the API server can store them
//	usage         GPU usage of containers
//	idle          claims whose GPUs are not used
//	report        events, status of claims, metrics, readiness
//	containers    finding the containers of claims and processes
//	cleanup       releasing claims that the kubelet has forgotten
//	podresources  client of the kubelet's pod resources API
//	dirwatch      changes of files
//	uevent        GPUs that the kernel adds and removes
package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/cleanup"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/containers"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/idle"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/kubelet"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/node"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/podresources"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/uevent"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/usage"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/steps"
)

// Plugin is the node's part of the driver, with what it needs from outside.
type Plugin struct {
	kubelet.Sockets
	PodResources string        // socket of the kubelet's pod resources API
	HTTPAddress  string        // for health and metrics; empty: no server
	SweepPeriod  time.Duration // see cleanup.Cleaner
	NodeConfigs  string        // see node.Options
	// Preparer prepares claims. Run sets Driver and what its own packages know.
	Preparer claims.Preparer
	// Observers observe the steps of every call, besides the metrics.
	Observers []steps.Observer

	// Machine are the GPUs.
	Machine Machine
	// RuntimeProblems: see node.Check; nil: the runtime is not checked.
	RuntimeProblems func(version string) []string
	// ContainerUsage lets the plugin look for the programs that use GPUs.
	ContainerUsage bool
	// VirtualMachines: see node.Options.
	VirtualMachines bool
	WithoutMonitor  bool // see publish.PublisherConfig
	// PartitionRequests: see node.Options.
	PartitionRequests types.NamespacedName
	Proc              string // see usage.CollectorConfig
	// GPUManagerNames: see usage.CollectorConfig.
	GPUManagerNames bool
	// IdleAfter: see idle.Options; 0: claims are not marked. It needs ContainerUsage.
	IdleAfter time.Duration
	IdleBelow int // see usage.CollectorConfig
}

// Machine are the GPUs of the node.
type Machine interface {
	node.Machine
	// Processes returns the processes that use a GPU.
	Processes(ctx context.Context, d gpu.Device) (gpu.Processes, error)
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
func (p *Plugin) Run(ctx context.Context) error {
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	p.removeAbandoned(ctx)
	records := p.Preparer.Records
	readiness, metrics := report.NewReadiness(node.LoopTimeout), report.NewMetrics(records)
	http, err := report.Serve(p.HTTPAddress, readiness, metrics.Registry)
	if err != nil {
		return err
	}
	defer http.Close()
	// The reporter runs until calls in flight have drained.
	reports, endReports := context.WithCancel(context.WithoutCancel(ctx))
	defer endReports()
	reporter := report.NewReporter(reports, report.ReporterConfig{Driver: p.DriverName, Node: p.NodeName,
		Client: p.Client, Stopping: ctx.Done()})
	publisher := publish.New(publish.PublisherConfig{Client: p.Client, Driver: p.DriverName, Node: p.NodeName,
		Dir: p.PluginDir, Records: records, Reporter: reporter, Readiness: readiness,
		WithoutMonitor: p.WithoutMonitor})
	hotPlug, err := uevent.Watch(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("GPUs that come and go are noticed late", "why", err)
	}
	resumes := make(chan struct{}, 1)
	gpus := node.New(node.Options{NodeName: p.NodeName, Dir: p.PluginDir, BootID: p.Preparer.BootID,
		ConfigDir: p.NodeConfigs, Client: p.Client, Records: records, Machine: p.Machine, FindUsers: p.ContainerUsage,
		VirtualMachines: p.VirtualMachines, WithoutMonitor: p.WithoutMonitor, PartitionRequests: p.PartitionRequests,
		Alone: p.Alone, Gates: publisher.Gates, Publisher: publisher, Readiness: readiness, Metrics: metrics,
		Reporter: reporter, HotPlug: hotPlug, Resume: resumes})
	containerUsage := p.usage(gpus)
	watcher := idle.New(idle.Options{After: p.IdleAfter, Dir: p.PluginDir, Claims: containerUsage.Claims,
		Reporter: reporter})
	metrics.Registry.MustRegister(containerUsage, watcher)
	metadata := &containers.Metadata{Dir: filepath.Join(p.PluginDir, metadataDir), Prepared: func(uid types.UID) bool {
		rec, err := records.Get(uid)
		return !errors.Is(err, checkpoint.ErrNotFound) && rec.Phase != checkpoint.Releasing
	}}
	defer metadata.Close()
	preparer := p.preparer(ctx, gpus, reporter, metadata)
	server := &kubelet.Server{Preparer: preparer, Metrics: metrics, Reporter: reporter, Observers: p.Observers,
		Node: gpus, Fatal: fatal, NodeName: p.NodeName, Metadata: metadata.Operations()}
	go publisher.Gates.Run(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		gpus.Run(ctx)
	}()
	if p.RuntimeProblems != nil {
		go node.Check(ctx, p.Client, p.NodeName, reporter, p.RuntimeProblems)
	}
	select {
	case <-gpus.Ready():
	case <-time.After(firstDiscoveryTimeout):
	case <-ctx.Done():
	}
	connection, err := kubelet.Serve(ctx, p.Sockets, server)
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
	go p.cleaner(preparer).Run(ctx)
	go watcher.Run(ctx)
	go (&report.DaemonWatch{Daemons: preparer.Daemons, Records: records, Reporter: reporter}).Run(ctx)
	<-ctx.Done()
	<-stopped // it saves the health of GPUs, which the last instance removes
	return exitCause(ctx)
}

// usage returns the collector of what containers use.
func (p *Plugin) usage(gpus *node.Node) *usage.Collector {
	config := usage.CollectorConfig{Kubelet: p.PodResources, Client: p.Client, Node: p.NodeName,
		Records: p.Preparer.Records, Inventory: gpus.Inventory, Proc: p.Proc, GPUManagerNames: p.GPUManagerNames,
		IdleBelow: p.IdleBelow}
	if p.ContainerUsage {
		config.Processes = p.Machine.Processes
	}
	return usage.NewCollector(config)
}

// preparer returns what prepares claims until ctx ends.
func (p *Plugin) preparer(ctx context.Context, gpus *node.Node, reporter *report.Reporter,
	metadata *containers.Metadata) *claims.Preparer {
	preparer := p.Preparer
	preparer.Driver, preparer.Devices, preparer.Hardware = p.DriverName, gpus.Devices, gpus.Hardware(preparer.Hardware)
	preparer.Passthrough = gpus.Passthrough(preparer.Passthrough)
	preparer.Containers = containers.Using(p.Client, p.DriverName, p.pods)
	preparer.Running = (&containers.Running{Proc: p.Proc, Metadata: metadata,
		Reserved: containers.ReservedFor(p.Client, p.pods)}).With
	preparer.Timeout, preparer.Waiting, preparer.Stopping = callTimeout, reporter.Waiting, ctx
	preparer.Unfit, preparer.NotRestored = gpus.Unfit, gpus.NotRestored
	return &preparer
}

// pods returns the names of the pods of the namespace that the kubelet has.
func (p *Plugin) pods(ctx context.Context, namespace string) ([]string, error) {
	listed, err := podresources.List(ctx, p.PodResources)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, pod := range listed {
		if pod.Namespace == namespace {
			names = append(names, pod.Name)
		}
	}
	return names, nil
}

// releaser releases claims through the socket of this instance, and ends daemons itself.
type releaser struct {
	kubelet.Sockets
	*claims.Preparer
}

// cleaner returns what releases claims that the kubelet has forgotten.
func (p *Plugin) cleaner(preparer *claims.Preparer) *cleanup.Cleaner {
	return &cleanup.Cleaner{Driver: p.DriverName, NodeName: p.NodeName, Client: p.Client, Records: preparer.Records,
		Specs: preparer.Specs, Kubelet: p.PodResources, Releaser: releaser{p.Sockets, preparer}, Period: p.SweepPeriod}
}

// removeAbandoned removes what killed instances have left.
func (p *Plugin) removeAbandoned(ctx context.Context) {
	p.RemoveDeadSockets(ctx)
	if err := removeTemporary(p.PluginDir, abandonedAfter); err != nil {
		klog.FromContext(ctx).Error(err, "Temporary files of a killed instance are left")
	}
}

// resume calls Resume on request, and after the first one, when GPUs were found, askToolkit. It blocks no call: Prepare
// does the same for its own claim.
func resume(ctx context.Context, preparer *claims.Preparer, server *kubelet.Server, asked <-chan struct{}) {
	ask := sync.OnceFunc(func() { go askToolkit(ctx, preparer) }) // which waits for a GPU that hangs
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
		}
		if err := preparer.Resume(server.Observed(ctx)); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Some claims could not be brought right")
		}
		ask()
	}
}

// askToolkit asks what containers will need of the GPUs, so that the first claims do not wait for that: the toolkit
// keeps its answers. What it does not answer is left to those claims, which tell their users.
func askToolkit(ctx context.Context, p *claims.Preparer) {
	devices, err := p.Devices()
	if err != nil {
		return // claims wait for the devices, too
	}
	_, _ = p.Toolkit.DriverAccess(ctx)
	for _, d := range devices.Present() {
		_, _ = p.Toolkit.Access(ctx, d)
	}
}

// exitCause returns why the context ended; nil if it was canceled normally.
func exitCause(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
