// SPDX-License-Identifier: Apache-2.0

// Package fleet simulates the nodes of a cluster that is larger than this machine. Their GPUs are simulated below NVML.
// The driver's own code discovers, describes and publishes them, and the cluster's scheduler allocates them. There is
// no kubelet: pods on such a node get the status Running, but no container starts.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

// Driver is the driver name of the chart.
const Driver = "gpu.nvidia.com"

// ProfileLabel is the label with a node's profile. It differs from the label that the chart's DaemonSet selects,
// because no kubelet could run its pods.
const ProfileLabel = "gpu.nvidia.com/fleet-profile"

// Default resources of a node: those of a server with eight GPUs.
const (
	DefaultCPU    = "128"
	DefaultMemory = "2Ti"
)

// atOnce limits how many nodes are added or removed in parallel. More is not faster, because the API server is the
// limit.
const atOnce = 32

// Config configures a fleet.
type Config struct {
	Driver string // name of the driver in device classes; empty: gpu.nvidia.com
	Nodes  []Node
	// OnDemand nodes publish possible partitions as with the chart's defaults: more as claims get some, and all when
	// Requests names them. Else a node publishes all, as with partitions: dynamic. A Use that names partitions rules.
	OnDemand bool
	// Requests is the ConfigMap in which the driver's controller names nodes; empty: none does.
	Requests types.NamespacedName
	// Inert nodes renew no leases, and their pods stay as the scheduler bound them. They outlive the program if nothing
	// in the cluster expects leases.
	Inert bool
}

// Node configures one node of a fleet.
type Node struct {
	Name    string
	Profile string            // the name of a built-in profile, or the path (with a "/") of a file with one
	CPU     resource.Quantity // that pods can ask for; zero: DefaultCPU
	Memory  resource.Quantity // likewise; zero: DefaultMemory
	Labels  map[string]string // in addition to those of every node
	Use     gpu.SharingMode   // of all GPUs; zero: the default
}

// Size is the total of all nodes of a fleet.
type Size struct {
	Nodes   int
	GPUs    int // that answer
	Devices int // that are published: GPUs, their partitions, and a monitor device for each node
	Slices  int
}

// Fleet is a set of simulated nodes. Its methods must not be called concurrently.
type Fleet struct {
	driver string
	client kubernetes.Interface
	life   context.Context // of what runs in the background
	end    context.CancelFunc
	wait   sync.WaitGroup

	kubelets kubelets
	offers   offers

	mu    sync.Mutex
	nodes map[string]*member
}

// member is a simulated node. Fields that join sets are read only after it has returned.
type member struct {
	Node
	model     *model
	inventory inventory.Inventory // with all possible partitions
	object    *corev1.Node        // nil: it was not made
	size      Size

	mu      sync.Mutex
	slices  []*resourceapi.ResourceSlice // nil: not all were made, or it leaves
	offered inventory.Offered
	wanted  bool // the controller has named the node
	stale   bool // slices may differ from what is stored
}

// Start adds the nodes and returns when all of them are ready and have published their devices. Their leases are
// renewed until ctx ends; after that the nodes remain without a heartbeat. Stop removes them. If Start fails, no node
// remains.
func Start(ctx context.Context, config *rest.Config, c Config) (*Fleet, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1                  // all nodes share a client; the API server's fairness limits them
	config.DisableCompression = true // slices are large, and the API server returns them
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return start(ctx, client, c)
}

func start(ctx context.Context, client kubernetes.Interface, c Config) (*Fleet, error) {
	f := &Fleet{driver: c.Driver, client: client, nodes: map[string]*member{}}
	if f.driver == "" {
		f.driver = Driver
	}
	f.life, f.end = context.WithCancel(ctx)
	if !c.Inert {
		if err := f.startKubelets(ctx); err != nil {
			return nil, errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
		}
		f.wait.Go(f.renewLeases)
	}
	if c.OnDemand {
		if err := f.startOffers(ctx, c.Requests); err != nil {
			return nil, errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
		}
	}
	if err := f.Add(ctx, c.Nodes...); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // not the error of the request that it interrupted
		}
		return nil, errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
	}
	return f, nil
}

// Add adds nodes and returns when they are ready and have published their devices. If one fails, all of them are
// removed. A node with the same name that another fleet left behind is replaced, but not one of a running fleet.
func (f *Fleet) Add(ctx context.Context, nodes ...Node) error {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("make a folder for simulated GPUs: %w", err)
	}
	defer os.RemoveAll(dir) // the simulated GPUs are read once and do not change
	added, err := f.enroll(nodes, dir)
	if err != nil {
		return err
	}
	all, group := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for _, m := range added {
		all.Go(func() error {
			if err := f.join(group, m); err != nil {
				return fmt.Errorf("node %s: %w", m.Name, err)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return errors.Join(err, f.remove(context.WithoutCancel(ctx), added))
	}
	if f.kubelets.pods != nil {
		f.kubelets.requeue()
	}
	if f.offers.queue != nil {
		for _, m := range added { // claims may have been allocated before the node joined
			f.offers.queue.Add(m.Name)
		}
	}
	return nil
}

// enroll checks the nodes, reports every problem, and adds them to the fleet: pods may be bound to a node as soon as
// the API server has it.
func (f *Fleet) enroll(nodes []Node, dir string) ([]*member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	models := map[string]*model{}
	var added []*member
	var problems []error
	for _, n := range nodes {
		n.Use.OnDemand = f.offers.queue != nil
		if models[n.Profile] == nil {
			var err error
			if models[n.Profile], err = newModel(n.Profile, dir); err != nil {
				return nil, errors.Join(append(problems, err)...)
			}
		}
		m, err := newMember(n, models[n.Profile])
		twice := f.nodes[n.Name] != nil || slices.ContainsFunc(added,
			func(other *member) bool { return other.Name == n.Name })
		switch {
		case err != nil:
			problems = append(problems, err)
		case twice:
			problems = append(problems, fmt.Errorf("node %s: it is in the fleet already", n.Name))
		default:
			added = append(added, m)
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, m := range added {
		f.nodes[m.Name] = m
	}
	return added, nil
}

// join creates the node and returns when all of its devices are published.
func (f *Fleet) join(ctx context.Context, m *member) error {
	var err error
	m.inventory, err = m.model.discover(m.Use)
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	if m.object, err = f.register(ctx, m); err != nil {
		return err
	}
	m.offered.GPUs = m.inventory.OfferAtFirst()
	written, err := f.publish(ctx, m.Name, m.inventory.Only(m.offered.GPUs).Pools(m.Name))
	if err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	m.size = Size{Nodes: 1, GPUs: len(m.inventory.Present()), Slices: len(written)}
	for _, slice := range written {
		m.size.Devices += len(slice.Spec.Devices)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slices = written
	return nil
}

// Remove removes nodes with their slices and pods, as if the machines were sold. Unknown names are no error.
func (f *Fleet) Remove(ctx context.Context, names ...string) error {
	return f.remove(ctx, slices.DeleteFunc(f.members(), func(m *member) bool {
		return !slices.Contains(names, m.Name)
	}))
}

func (f *Fleet) remove(ctx context.Context, members []*member) error {
	var all errgroup.Group // one that fails does not keep the others
	all.SetLimit(atOnce)
	problems := make([]error, len(members))
	for i, m := range members {
		all.Go(func() error {
			if err := f.leave(ctx, m); err != nil {
				problems[i] = fmt.Errorf("remove node %s: %w", m.Name, err)
				return nil
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.nodes, m.Name)
			return nil
		})
	}
	_ = all.Wait()
	return errors.Join(problems...)
}

// Stop removes all nodes and ends the fleet. It may be called after the context of Start has ended.
func (f *Fleet) Stop(ctx context.Context) error {
	err := f.remove(ctx, f.members())
	f.end()
	f.wait.Wait()
	return err
}

// Size returns the total of all nodes.
func (f *Fleet) Size() Size {
	var all Size
	for _, m := range f.members() {
		all.Nodes += m.size.Nodes
		all.GPUs += m.size.GPUs
		all.Devices += m.size.Devices
		all.Slices += m.size.Slices
	}
	return all
}

// has reports whether the node belongs to the fleet.
func (f *Fleet) has(node string) bool { return f.member(node) != nil }

// member returns the node; nil: it is not of the fleet.
func (f *Fleet) member(node string) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[node]
}

// members returns the nodes, sorted by name.
func (f *Fleet) members() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*member
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		all = append(all, f.nodes[name])
	}
	return all
}
