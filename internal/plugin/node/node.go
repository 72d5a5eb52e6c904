// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/dirwatch"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// LoopTimeout is how long a discovery may take, with the pause before it.
const LoopTimeout = time.Minute

// Machine are the GPUs of the machine: see package nvml.
type Machine interface {
	// Discover reads all GPUs. The error says what is missing.
	Discover(ctx context.Context) (gpu.Discovery, error)
	// Users returns the names of programs that use a GPU.
	Users(ctx context.Context, d gpu.Device) ([]string, error)
	// Openers returns the names of programs that keep a GPU from being given to a virtual machine.
	Openers(ctx context.Context, d gpu.Device) ([]string, error)
	// Removed reports whether the GPU is no longer on the PCI bus.
	Removed(d gpu.Device) bool
	// DriverChanged reports whether the driver on disk has changed since the last discovery.
	DriverChanged() bool
	// LibraryDir returns the directory in which a change of the driver shows; empty: there is none.
	LibraryDir() string
	// Watch calls found for each event until ctx ends.
	Watch(ctx context.Context, found func(gpu.Event))
	// Recheck makes the next discovery ask the GPU for its health.
	Recheck(id gpu.UUID)
	// Release closes NVML and keeps it closed. why is the reason; "" opens it again.
	Release(why string)
	// StopWatching stops watching events, so that NVML can be closed between discoveries. "" continues.
	StopWatching(why string)
}

// Publisher publishes devices: see package publish. Its methods do not block.
type Publisher interface {
	// Set replaces the devices to publish.
	Set(inv inventory.Inventory)
	// Stale makes the next devices be published even if they are the same.
	Stale()
}

// Options are what a Node needs.
type Options struct {
	NodeName  string // also the name of the pool of the GPUs
	Dir       string // of the plugin; the last inventory and the health are saved there
	BootID    string // of the current boot of the machine
	ConfigDir string // with one file per node configuration; empty: every GPU has its default mode
	Client    kubernetes.Interface
	Records   report.Lister
	Machine   Machine
	// FindUsers looks for programs that block MIG mode or virtual machines. Otherwise they are found when a claim needs
	// the change.
	FindUsers bool
	// VirtualMachines offers GPUs to virtual machines, unless the node configuration says otherwise.
	VirtualMachines bool
	WithoutMonitor  bool // see publish.PublisherConfig
	// PartitionRequests is the ConfigMap in which the controller names nodes that pods wait for partitions of: see
	// inventory.RequestedNodes. With it possible partitions are published on demand, unless the node configuration says
	// otherwise. Empty: nobody asks.
	PartitionRequests types.NamespacedName
	// Alone reports whether no other instance of the plugin serves the kubelet.
	Alone     func() bool
	Gates     *publish.Gates // of the API server, which limit what it can describe
	Publisher Publisher
	Readiness *report.Readiness
	Metrics   *report.Metrics
	Reporter  *report.Reporter
	// HotPlug has a value when a GPU has come or gone; nil: nobody tells.
	HotPlug <-chan struct{}
	// Resume has room for one value, and gets it when the hardware state of claims may have to be restored.
	Resume chan<- struct{}
}

// Node is an up-to-date inventory of the node's GPUs.
type Node struct {
	Options
	state    *state        // of the loop
	config   *configSource // of the discovery under way
	snapshot atomic.Pointer[snapshot]
	ready    chan struct{} // closed after the first discovery
	events   chan any
	release  chan string   // why NVML is to be closed; holds only the latest
	ended    chan struct{} // closed when Run has ended
	wake     time.Time     // the next tick; zero: none
	requests *dirwatch.Watcher
	driver   *dirwatch.Watcher
}

// snapshot is what other goroutines see of the state. It never changes.
type snapshot struct {
	devices *inventory.Inventory // available to claims; nil: nothing is known yet
	tainted inventory.Inventory  // devices with their taints
	reports []health.DeviceReport
	changed chan struct{} // closed when there are other reports
}

// eventQueue is the number of events that wait without blocking their senders.
const eventQueue = 64

// New returns a Node without an inventory. It is ready for calls from any goroutine.
func New(o Options) *Node {
	n := &Node{Options: o, state: newState(o), ready: make(chan struct{}),
		config: &configSource{Options: o, reported: map[string]string{}},
		events: make(chan any, eventQueue), release: make(chan string, 1), ended: make(chan struct{})}
	n.snapshot.Store(n.state.snapshot())
	return n
}

// Ready is closed after the first discovery, even if it fails.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Devices returns the devices available to claims. The error says what the node waits for.
func (n *Node) Devices() (inventory.Inventory, error) {
	if devices := n.snapshot.Load().devices; devices != nil {
		return *devices, nil
	}
	return nil, fmt.Errorf("not ready: %w", n.Readiness.WaitingFor())
}

// Inventory returns the last known inventory, also while discovery fails.
func (n *Node) Inventory() inventory.Inventory {
	if devices := n.snapshot.Load().devices; devices != nil {
		return *devices
	}
	return saved(n.Dir)
}

// Registered notes that a kubelet has registered the plugin, also one that was restarted.
func (n *Node) Registered() { n.send(registered{}) }

// Prepared notes that a claim has these devices.
func (n *Node) Prepared(devices []string) { n.send(prepared(devices)) }

// Released notes that a claim has ended.
func (n *Node) Released() { n.send(released{}) }

// Serving notes that this instance serves the kubelet. From now on it watches events and requests of people, and saves
// the health of the GPUs.
func (n *Node) Serving() { n.send(serving{}) }

// Unfit says why a device cannot be given to a claim that tolerates these taints: its GPU is sick. The pod of the claim
// does not start, so nothing keeps it on the GPU: see gpuhealth.Manager.Refused.
func (n *Node) Unfit(device string, tolerated []resourceapi.DeviceToleration) error {
	d, _ := n.snapshot.Load().tainted.Find(device)
	for _, taint := range d.Taints {
		if taint.Key != inventory.TaintUnhealthy && taint.Key != inventory.TaintXID {
			continue
		}
		t := resourceapi.DeviceTaint{Key: taint.Key, Value: taint.Value,
			Effect: resourceapi.DeviceTaintEffect(taint.Effect)}
		if !slices.ContainsFunc(tolerated, func(by resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(by, t)
		}) {
			n.send(refused(d.Physical()))
			return fmt.Errorf("%s has become sick since it was allocated: it has the taint %s=%s", device, t.Key,
				t.Value)
		}
	}
	return nil
}

// NotRestored notes that what an ended claim has changed on the GPU cannot be undone.
func (n *Node) NotRestored(id gpu.UUID) { n.send(notRestored(id)) }

// send gives an event to the loop.
func (n *Node) send(event any) {
	select {
	case n.events <- event:
	case <-n.ended:
	}
}

// Hardware wraps h, so that the Node learns of changes of the MIG mode and of partitions that fail.
func (n *Node) Hardware(h claims.Hardware) claims.Hardware { return observedHardware{h, n} }

type observedHardware struct {
	claims.Hardware
	node *Node
}

func (h observedHardware) Set(ctx context.Context, id gpu.UUID, s gpu.DesiredState) error {
	err := h.Hardware.Set(ctx, id, s)
	if err != nil && (s.MIG == gpu.MIGOn || s.MIG == gpu.MIGOff) {
		h.node.send(modeNotSet{id, err})
	}
	return err
}

func (h observedHardware) CreatePartition(ctx context.Context, at gpu.Placement, known gpu.UUID) (gpu.UUID, error) {
	id, err := h.Hardware.CreatePartition(ctx, at, known)
	if err != nil && ctx.Err() == nil && known == "" { // not one that a claim has already: its GPU may be lost
		h.node.send(partitionRefused{at, err})
	}
	return id, err
}

// endTimeout is how long Run waits for a discovery at its end: a GPU may hang.
const endTimeout = time.Second

// Run discovers the GPUs periodically until ctx ends, and does what follows from events.
func (n *Node) Run(ctx context.Context) {
	go n.releaseNVML(ctx)
	n.driver = dirwatch.New(ctx, nil)
	discovering := make(chan struct{})
	close(discovering) // none is
	start := func(d *discovery) {
		if d == nil {
			return
		}
		done := make(chan struct{})
		discovering = done
		go func() { // a GPU may hang
			defer close(done)
			n.send(n.discover(ctx, d))
		}()
	}
	start(n.turn(ctx, tick{}))
	for {
		var timer <-chan time.Time
		if !n.wake.IsZero() {
			timer = time.After(time.Until(n.wake))
		}
		driver := n.driver.Changed()
		if n.state.discovering { // the driver is compared with that of the last discovery
			driver = nil
		}
		var event any
		select {
		case <-ctx.Done():
			if n.state.serving {
				n.state.health.Save(context.WithoutCancel(ctx), n.now())
			}
			close(n.ended)
			select {
			case <-discovering:
			case <-time.After(endTimeout):
			}
			return
		case event = <-n.events:
		case <-timer:
			event = tick{}
		case <-n.Gates.Changed():
			event = n.Gates.Lacking()
		case <-n.requests.Changed():
			event = requested{}
		case <-n.HotPlug:
			event = discoverNow{}
		case <-driver:
			if !n.Machine.DriverChanged() {
				continue
			}
			event = discoverNow{}
		}
		start(n.turn(ctx, event))
	}
}

func (n *Node) now() gpuhealth.Moment { return gpuhealth.Moment{Now: time.Now(), Alone: n.Alone()} }

// turn does what follows from an event. It returns the discovery to start, if any.
func (n *Node) turn(ctx context.Context, event any) *discovery {
	at := gpuhealth.Moment{Now: time.Now()}
	if e, ok := event.(gpu.Event); !ok {
		at.Alone = n.Alone()
	} else if e.Kind == gpu.EventXID {
		n.Metrics.XID(e.GPU, e.XID)
	}
	if _, begins := event.(serving); begins {
		n.requests = dirwatch.New(ctx, health.IsRequest)
		n.requests.Keep(n.Dir) // before requests are read, so that none is missed
		go n.Machine.Watch(ctx, func(e gpu.Event) { n.send(e) })
		if n.PartitionRequests.Name != "" {
			go n.followRequests(ctx, func() { n.send(wanted{}) })
		}
	}
	a := n.state.step(ctx, at, event)
	n.do(ctx, a)
	if _, ended := event.(*found); ended {
		select {
		case <-n.ready:
		default:
			close(n.ready)
		}
		if dir := n.Machine.LibraryDir(); dir != "" {
			n.driver.Keep(dir)
		}
	}
	n.wake = a.Wake
	if a.Discover != nil {
		n.Readiness.Beat()
		n.requests.Keep(n.Dir)
	}
	if !a.Health.Save {
		return a.Discover
	}
	n.state.health.Save(ctx, at)
	return cmp.Or(a.Discover, n.turn(ctx, tick{})) // it may have learned from another instance
}

// do does the actions, in the order of their fields.
func (n *Node) do(ctx context.Context, a actions) {
	if a.Snapshot != nil {
		if before := n.snapshot.Swap(a.Snapshot); before.changed != a.Snapshot.changed {
			close(before.changed)
		}
	}
	if a.Save != nil {
		err := save(n.Dir, *a.Save)
		n.state.unsaved = err != nil
		n.state.logOnce(ctx, "Inventory not saved, will be tried again: until then, a GPU that is lost will be "+
			"forgotten at the next start", err)
	}
	if a.Waiting != nil || a.Ready {
		n.Readiness.Wait(a.Waiting)
	}
	if a.Stale {
		n.Publisher.Stale()
	}
	if a.Publish != nil {
		n.Publisher.Set(*a.Publish)
	}
	for _, id := range a.Health.Recheck {
		n.Machine.Recheck(id)
	}
	n.Machine.StopWatching(a.Health.StopWatching)
	if a.Health.Release != nil {
		select {
		case <-n.release: // drop the older one
		default:
		}
		n.release <- *a.Health.Release
	}
	a.Metrics.set(n.Metrics, n.Options)
	for _, notice := range append(a.Notices, a.Health.Notices...) {
		n.Reporter.Write(notice)
	}
	for _, p := range a.Removed {
		n.Reporter.PartitionLost(p.claim, p.device, p.partition)
	}
	if a.Resume {
		select {
		case n.Resume <- struct{}{}:
		default: // one is already pending
		}
	}
}

// releaseNVML closes and opens NVML, which waits for calls in flight, until ctx ends.
func (n *Node) releaseNVML(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case why := <-n.release:
			n.Machine.Release(why)
			if why == "" {
				n.send(discoverNow{})
			}
		}
	}
}

// The kubelet forgets the health of a device after 30 s, and that of all devices of the driver when the stream of one
// of its instances ends.
const (
	// resendPeriod is how often the health of all devices is sent.
	resendPeriod = 10 * time.Second
	// resendBesideOther is how often it is sent while another instance runs, and once more after its end.
	resendBesideOther = 5 * time.Second
)

// ServeHealth calls send with the health of all devices, at once, when it changes, and often enough for the kubelet,
// until ctx ends or send returns false.
func (n *Node) ServeHealth(ctx context.Context, send func([]health.DeviceReport) bool) {
	for wasAlone := true; ; {
		now := n.snapshot.Load()
		if !send(now.reports) {
			return
		}
		period, alone := resendPeriod, n.Alone()
		if !alone || !wasAlone {
			period = resendBesideOther
		}
		wasAlone = alone
		select {
		case <-ctx.Done():
			return
		case <-now.changed:
		case <-time.After(period):
		}
	}
}
