// SPDX-License-Identifier: Apache-2.0

// Package node manages the inventory of the node's GPUs: it discovers them and assigns their modes. It changes no GPU
// and prepares no claim. Of its sibling packages, it may import only dirwatch, gpuhealth, publish and report.
package node

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/dirwatch"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

const (
	// retryPeriod is the time between attempts while discovery fails.
	retryPeriod = 2 * time.Second
	// lookPeriod is the time between two discoveries.
	lookPeriod = 10 * time.Second
	// tolerated is how many discoveries in a row may fail before new claims are kept away.
	tolerated = 2
	// LoopTimeout is how long one iteration of the discovery loop may take.
	LoopTimeout = time.Minute
)

// Look is the result of a discovery.
type Look struct {
	// Devices are the GPUs. Those that cannot be read are included as lost.
	Devices []gpu.Device
	// Broken has an error for each GPU that cannot be read.
	Broken []error
	// Answered is when each GPU last answered.
	Answered map[gpu.UUID]time.Time
	// Health is what each GPU that answers says about itself.
	Health map[gpu.UUID]gpu.Health
	// Unwatched says of each GPU whose events are not watched why not.
	Unwatched map[gpu.UUID]string
	// Persistent reports whether the GPUs keep their settings while NVML is closed.
	Persistent bool
}

// Health knows what is wrong with GPUs: see package gpuhealth.
type Health interface {
	// Paused takes why the driver is about to be replaced; empty: it is not.
	Paused(ctx context.Context, why string)
	// Unread takes why several discoveries have failed, one after the other.
	Unread(why string)
	// Looked takes the result of a discovery.
	Looked(ctx context.Context, look gpuhealth.Look)
	// Annotate returns the devices with the taints of their health.
	Annotate(inv inventory.Inventory) inventory.Inventory
}

// Config is the configuration of a Node.
type Config struct {
	DriverName string
	NodeName   string // also the name of the pool of the GPUs
	Dir        string // of the plugin; the last inventory is saved there
	BootID     string // of the current boot of the machine
	ConfigDir  string // with one file per node configuration; empty: every GPU has its default mode
	Client     kubernetes.Interface
	Records    report.Lister
	// Discover reads the GPUs of the machine. The error says what is missing.
	Discover func(ctx context.Context) (Look, error)
	// DriverChanged reports whether the driver on disk has changed since the last discovery. nil: never.
	DriverChanged func() bool
	// LibraryDir returns the directory in which a change of the driver shows. It is set if DriverChanged is.
	LibraryDir func() string
	// Users returns the names of programs that use a GPU. nil: programs that block MIG mode are found only when a claim
	// needs the change.
	Users func(context.Context, gpu.Device) ([]string, error)
	// RuntimeProblems returns what a container runtime of that version ("containerd://1.7.24") lacks, and how to fix
	// it. nil: the runtime is not checked.
	RuntimeProblems func(version string) []string

	// Gates are those of the API server, which limit what it can describe; nil: nothing does.
	Gates     *publish.Gates
	Readiness *report.Readiness
	Metrics   *report.Metrics
	Reporter  *report.Reporter
	// Health is told of every discovery.
	Health Health
	// Publish is called with the devices after every discovery, and when their taints change. It must not block.
	Publish func(inv inventory.Inventory)
	// Resume is called when the hardware state of claims may have to be restored. It must not block.
	Resume func()
}

// Node is an up-to-date inventory of the node's GPUs.
type Node struct {
	Config
	config *configSource
	// Looked is closed after the first discovery, even if it fails.
	Looked chan struct{}

	devices   atomic.Pointer[inventory.Inventory] // available to claims; nil: nothing is known yet
	former    atomic.Pointer[inventory.Inventory] // of the previous instance, published while nothing can be read
	publish   sync.Mutex                          // held while Publish is called
	published inventory.Inventory                 // the last argument of Publish
	now       chan struct{}                       // asks for a discovery at once
	known     inventory.Inventory                 // all GPUs of the last discovery, and the available partitions
	failed    int                                 // discoveries in a row
	blocked   blockedGPUs
	used      map[gpu.UUID]bool // by programs that belong to no claim, at the last discovery; nil: there was none
	pending   []report.PendingChange
	resumed   time.Time         // when Resume was last called
	logged    map[string]string // the last problem logged of each kind, so that it is logged once
}

// New returns a Node without an inventory.
func New(c Config) *Node {
	return &Node{Config: c, config: newConfigSource(c), Looked: make(chan struct{}), now: make(chan struct{}, 1)}
}

// DiscoverNow makes Run discover the GPUs at once.
func (n *Node) DiscoverNow() {
	select {
	case n.now <- struct{}{}:
	default: // it is about to
	}
}

// Republish publishes the devices with their current taints.
func (n *Node) Republish() {
	n.publish.Lock()
	defer n.publish.Unlock()
	devices := cmp.Or(n.devices.Load(), n.former.Load())
	if devices == nil {
		return
	}
	if annotated := n.Health.Annotate(*devices); !reflect.DeepEqual(annotated, n.published) {
		n.Metrics.Published(annotated.Pools(n.NodeName))
		n.published = annotated
	}
	n.Publish(n.published) // the same one as before is known to be equal, without a look at the devices
}

// Devices returns the devices available to claims. The error says what the node waits for.
func (n *Node) Devices() (inventory.Inventory, error) {
	if devices := n.devices.Load(); devices != nil {
		return *devices, nil
	}
	return nil, fmt.Errorf("not ready: %w", n.Readiness.WaitingFor())
}

// Inventory returns the last known inventory, also while discovery fails.
func (n *Node) Inventory() inventory.Inventory {
	if devices := n.devices.Load(); devices != nil {
		return *devices
	}
	return n.saved()
}

// Run discovers the GPUs periodically until ctx ends.
func (n *Node) Run(ctx context.Context) {
	if n.RuntimeProblems != nil {
		go wait.UntilWithContext(ctx, n.checkNode, nodeCheckPeriod)
	}
	var driver *dirwatch.Watcher
	if n.DriverChanged != nil {
		driver = dirwatch.New(ctx, nil)
	}
	for first := true; ; first = false {
		n.Readiness.Beat()
		period := n.discover(ctx)
		if first {
			close(n.Looked)
		}
		if !n.pause(ctx, period, driver) {
			return
		}
	}
}

// discover runs one discovery, and returns the time until the next one.
func (n *Node) discover(ctx context.Context) time.Duration {
	err := n.look(ctx)
	if err == nil {
		n.failed = 0
		return lookPeriod
	}
	n.logOnce(ctx, "Machine cannot be read", err)
	if n.failed++; n.failed >= tolerated {
		n.unread(err)
	}
	if n.devices.Load() != nil {
		return lookPeriod
	}
	n.Readiness.Wait(err)
	return retryPeriod
}

// unread keeps new claims away from the GPUs, of which nothing is known. The slices of a previous instance may still
// offer them.
func (n *Node) unread(err error) {
	n.Health.Unread(err.Error())
	if n.devices.Load() != nil || n.former.Load() != nil {
		return
	}
	if former := n.saved(); len(former) > 0 {
		n.former.Store(&former)
		n.Republish()
	}
}

// pause waits until the next discovery is due: after the period, or when the driver has changed. It returns false when
// ctx ends.
func (n *Node) pause(ctx context.Context, period time.Duration, driver *dirwatch.Watcher) bool {
	due := time.After(period)
	if driver != nil {
		if dir := n.LibraryDir(); dir != "" {
			driver.Keep(dir)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due:
			return true
		case <-n.now:
			return true
		case <-n.Gates.Changed():
			return true
		case <-driver.Changed():
			if n.DriverChanged() {
				return true
			}
		}
	}
}

// logOnce logs a problem unless it is the last one logged of its kind.
func (n *Node) logOnce(ctx context.Context, what string, err error) {
	if n.logged == nil {
		n.logged = map[string]string{}
	}
	if text := err.Error(); text != n.logged[what] {
		n.logged[what] = text
		klog.FromContext(ctx).Error(err, what)
	}
}

// What is checked of the Node object: when, and how long the API server may take.
const (
	nodeCheckPeriod  = time.Hour
	nodeCheckTimeout = 10 * time.Second
)

// checkNode reports what the container runtime lacks, judging by its version, before the first container starts without
// its GPU; and a device plugin that gives out the same GPUs.
func (n *Node) checkNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, nodeCheckTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	found, err := n.Client.CoreV1().Nodes().Get(ctx, n.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		logger.Info("This node cannot be read: neither its container runtime nor its device plugins are known", "err",
			err)
		return
	}
	version := found.Status.NodeInfo.ContainerRuntimeVersion
	if all := n.RuntimeProblems(version); len(all) > 0 {
		logger.Info("Container runtime may not give containers their GPUs", "runtime", version, "problems", all)
		n.Reporter.Node(report.Events.RuntimeWithoutCDI, strings.Join(all, "; "))
	}
	if offered := devicePluginResources(found.Status.Allocatable); len(offered) > 0 {
		logger.Info("A device plugin offers GPUs of this node", "resources", offered)
		n.Reporter.Node(report.Events.DevicePluginPresent, fmt.Sprintf("a device plugin offers %s: keep NVIDIA's "+
			"device plugin off the nodes of this driver", strings.Join(offered, ", ")))
	}
}

// devicePluginResources returns the resources of NVIDIA's device plugin that pods can have, sorted.
func devicePluginResources(allocatable corev1.ResourceList) []string {
	var names []string
	for name, amount := range allocatable {
		if strings.HasPrefix(string(name), "nvidia.com/") && !amount.IsZero() {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}
