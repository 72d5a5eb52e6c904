// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	metadatav1alpha1 "k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
)

// Config is what a running plugin is made of.
type Config struct {
	DriverName   string
	NodeName     string    // also the name of the pool
	PodUID       types.UID // set: several instances may run side by side, each under the UID of its pod
	PluginDir    string    // for sockets and state; must exist
	RegistryDir  string    // where the kubelet looks for plugins
	CDIDir       string    // where kubeletplugin puts the specs of device metadata
	PodResources string    // socket on which the kubelet tells which containers it runs
	HTTPAddress  string    // for health and metrics; empty: no server
	BootID       string
	SweepPeriod  time.Duration // how often forgotten claims are looked for; twice that long a claim has to be forgotten
	NodeConfigs  string        // directory with one file for each node configuration; empty: every GPU has its default mode

	Client  kubernetes.Interface
	Specs   Specs
	Records claims.Records
	Daemons Daemons
	Paths   claims.Paths
	// Processes are those that use a GPU. nil: what containers use of GPUs is not measured.
	Processes func(gpu.Device) ([]gpu.Process, error)
	// Users name, for people, the programs that use a GPU. nil: who keeps one from being partitioned is met when a claim has it.
	Users func(gpu.Device) ([]string, error)
	// RuntimeProblems are what a container runtime of that version ("containerd://1.7.24") lacks, and what to do about it, for people.
	// nil: it is not looked at.
	RuntimeProblems func(version string) []string
	// Proc is the proc file system of the PID namespace in which Processes has its PIDs.
	Proc string
	// GPUManagerNames gives the metrics of containers also under the names of gpu-manager.
	GPUManagerNames bool
	// Discover reads the machine. Broken GPUs are left out and reported, each in one error. err says what is missing for now.
	Discover func() (node claims.Node, broken []error, err error)
}

// Specs keeps CDI specs, and knows those that belong to nobody.
type Specs interface {
	claims.Specs
	Orphans(known func(claim types.UID) bool) ([]types.UID, error)
}

// Daemons keeps MPS daemons running, and knows how they are.
type Daemons interface {
	claims.Daemons
	State(id string) (mps.State, error)
}

// patience is how long Prepare waits for a device that another claim still holds: more than containers usually take to end (30 s),
// and with daemonPatience less than the 45 s that the kubelet allows for a call.
const patience = 33 * time.Second

// daemonPatience is how long Prepare waits for MPS daemons. A start takes about a second; the kubelet calls again after a failure,
// and in between the claim's events say what it waits for.
const daemonPatience = 8 * time.Second

// headStart is how long the first look at the machine may keep the plugin from registering.
const headStart = 10 * time.Second

// Run serves the kubelet until ctx ends, and then ends what it has begun. It registers when it has looked at the machine once, or
// headStart later, so that claims can be released whatever state the machine is in; devices are published, and claims prepared, as
// soon as Discover succeeds.
func Run(ctx context.Context, c Config) error {
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	removeDeadSockets(ctx, c.PluginDir, c.RegistryDir, c.DriverName)

	status := newStatus()
	metrics := newMetrics(c.Records)
	server, err := serveHTTP(c.HTTPAddress, status, metrics)
	if err != nil {
		return err
	}
	defer server.Close()

	// Claims are reported as long as calls are answered: until after the drain.
	reports, endReports := context.WithCancel(context.WithoutCancel(ctx))
	defer endReports()
	reporter := newReporter(reports, c)
	publisher := &publisher{pool: c.NodeName, first: func(ctx context.Context, pool resourceslice.Pool) error {
		_, err := FirstSlices(ctx, c.Client, c.DriverName, c.NodeName, pool)
		return err
	}}
	machine := &machine{config: c, modes: newConfigSource(c, reporter), status: status, metrics: metrics, reporter: reporter, publish: publisher.set, looked: make(chan struct{}), busy: &busyGPUs{}}
	if c.RuntimeProblems != nil {
		go checkRuntime(ctx, c.Client, c.NodeName, c.RuntimeProblems, reporter.machine)
	}
	metrics.registry.MustRegister(newFigures(c, machine.inventory, metrics))
	preparer := &claims.Preparer{
		Driver:   c.DriverName,
		BootID:   c.BootID,
		Node:     machine.current,
		Specs:    measuredSpecs{c.Specs, metrics},
		Records:  measuredRecords{c.Records, metrics},
		Daemons:  measuredDaemons{c.Daemons, metrics},
		Paths:    c.Paths,
		Patience: patience,

		DaemonPatience: daemonPatience,
		Containers:     containersOf(c.Client),
	}
	plugin := &plugin{
		preparer:  preparer,
		metrics:   metrics,
		reporter:  reporter,
		inventory: machine.inventory,
		looked:    machine.looked,
		uncounted: func() { machine.uncounted.Store(true) },
		fatal:     fatal,
	}
	resumes := make(chan struct{}, 1)
	machine.resume = func() {
		select {
		case resumes <- struct{}{}:
		default: // one is waiting already
		}
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		machine.watch(ctx)
	}()
	// From now on the kubelet calls this instance and no other. During an update the other one should go on until this one can.
	select {
	case <-machine.looked:
	case <-time.After(headStart):
	case <-ctx.Done():
	}
	// The helper cuts calls off when its context ends, so it gets one that does not: Stop comes after drain.
	calls := &calls{}
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), plugin, helperOptions(c, calls)...)
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	status.registered(helper.RegistrationStatus)
	publisher.publish = helper.PublishResources
	defer publisher.resign() // in the end, when nothing is on its way to the API server any more
	defer helper.Stop()
	defer calls.drain(ctx, c)

	go publisher.becomeTheOne(ctx, c.PluginDir)
	go reporter.run(reports)
	go resume(ctx, preparer, resumes)
	go newSweeper(c).run(ctx)
	go (&daemonWatch{daemons: c.Daemons, records: c.Records, restarted: reporter.daemonRestarted}).run(ctx)
	<-ctx.Done()
	select {
	case <-watched:
	case <-time.After(time.Second): // a GPU hangs; the calls of the others are to be answered all the same
	}
	return ended(ctx)
}

// resume puts claims from before right whenever the machine has changed. It keeps nobody waiting: Prepare does the same for its claim.
func resume(ctx context.Context, preparer *claims.Preparer, wanted <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wanted:
		}
		if err := preparer.Resume(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Some claims from before could not be put right")
		}
	}
}

func helperOptions(c Config, calls *calls) []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(c.DriverName),
		kubeletplugin.NodeName(c.NodeName),
		kubeletplugin.KubeClient(c.Client),
		kubeletplugin.PluginDataDirectoryPath(c.PluginDir),
		kubeletplugin.PluginSocket(serviceSocket(c)),
		kubeletplugin.RegistrarDirectoryPath(c.RegistryDir),
		kubeletplugin.CDIDirectory(c.CDIDir),
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion, metadatav1alpha1.SchemeGroupVersion}),
		kubeletplugin.MetadataFileOps(metadataFiles),
		kubeletplugin.Serialize(false), // the records have locks, one per device
		kubeletplugin.HealthService(false),
		kubeletplugin.GRPCInterceptor(calls.count),
		kubeletplugin.GRPCInterceptor(eachClaim),
	}
	if c.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(c.PodUID))
	}
	return options
}

// maxSocketPath is the longest path that a socket can have (unix(7): sun_path has 108 bytes, the last is zero).
const maxSocketPath = 107

// serviceSocket is the name of the socket on which this instance prepares claims: with its pod's UID, or with a digest of it where the
// kubelet's directory leaves no room.
func serviceSocket(c Config) string {
	if c.PodUID == "" {
		return "dra.sock"
	}
	name := "dra-" + string(c.PodUID) + ".sock"
	if len(filepath.Join(c.PluginDir, name)) > maxSocketPath {
		digest := sha256.Sum256([]byte(c.PodUID))
		name = "dra-" + hex.EncodeToString(digest[:6]) + ".sock"
	}
	return name
}

// ended is why the context ended: nil when it was asked to.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
