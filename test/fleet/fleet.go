// SPDX-License-Identifier: Apache-2.0

// Package fleet plays the nodes of a cluster that is larger than this machine. Their GPUs are simulated below NVML; what finds,
// describes and publishes them is the driver's own code, and the scheduler that gives them to claims is the cluster's. There is no
// kubelet: pods that are bound to such a node are said to run, and nothing of them does.
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
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Driver is the name under which the driver's chart installs it.
const Driver = "gpu.nvidia.com"

// ProfileLabel names the profile of a node. It is not the label of simulated nodes that the chart's DaemonSet looks for: nothing could
// run its pods.
const ProfileLabel = "gpu.nvidia.com/fleet-profile"

// sweepLabel of a node, with the value "off", says that no pod of the plugin publishes its GPUs: where the driver is installed, too, its
// controller leaves them alone.
const sweepLabel = "gpu.nvidia.com/sweep"

// What a node has for pods where nothing else is said: as a server with eight GPUs.
const (
	DefaultCPU    = "128"
	DefaultMemory = "2Ti"
)

// atOnce is how many nodes are made or removed side by side. More would not be faster: the API server works through what there is.
const atOnce = 32

// Config is what a fleet is made of.
type Config struct {
	Driver string // as in device classes; empty: gpu.nvidia.com
	Nodes  []Node
}

// Node is one node of a fleet.
type Node struct {
	Name    string
	Profile string            // the name of a built-in profile, or the path (with a "/") of a file with one
	CPU     resource.Quantity // that pods can ask for; zero: DefaultCPU
	Memory  resource.Quantity // likewise; zero: DefaultMemory
	Labels  map[string]string // beside those that every node has
}

// Size is how much a fleet has, over all nodes.
type Size struct {
	Nodes   int
	GPUs    int // that answer
	Devices int // that are published: GPUs, their partitions, and a monitor device for each node
	Slices  int
}

// Fleet is nodes that are being played. Its methods are for one goroutine at a time.
type Fleet struct {
	driver string
	client kubernetes.Interface
	life   context.Context // of what runs in the background
	end    context.CancelFunc
	wait   sync.WaitGroup

	kubelets kubelets

	mu    sync.Mutex
	nodes map[string]*member
}

// member is a node that is played. What join sets is read only when it has returned.
type member struct {
	Node
	model  *model
	object *corev1.Node // nil: it was not made
	slices []string     // the names of all of them; nil: not all were made
	size   Size
}

// Start plays nodes and returns when all of them are ready and have published all that they have. They are kept alive until ctx ends;
// then they stay where they are, without a heartbeat. Stop takes them away. A start that fails leaves nothing.
func Start(ctx context.Context, config *rest.Config, c Config) (*Fleet, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1                  // one client for all: the server's own fairness is the limit
	config.DisableCompression = true // of slices that the API server repeats
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
	if err := f.playPods(ctx); err != nil {
		return nil, errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
	}
	f.wait.Go(f.beat)
	if err := f.Add(ctx, c.Nodes...); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // which request it has cut off is of no interest
		}
		return nil, errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
	}
	return f, nil
}

// Add plays further nodes, and returns when they are ready and have published all that they have. When one of them fails, none is left.
// A node that another fleet has left under such a name is replaced, one that another fleet plays is not.
func (f *Fleet) Add(ctx context.Context, nodes ...Node) error {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("make a folder for simulated GPUs: %w", err)
	}
	defer os.RemoveAll(dir) // GPUs of a fleet do not change: once they are read, nobody needs them
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
	f.kubelets.lookAgain()
	return nil
}

// enroll checks the nodes, reporting every problem, and counts them among ours: as soon as the API server knows one, pods may be bound
// to it.
func (f *Fleet) enroll(nodes []Node, dir string) ([]*member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	models := map[string]*model{}
	var added []*member
	var problems []error
	for _, n := range nodes {
		if models[n.Profile] == nil {
			var err error
			if models[n.Profile], err = newModel(n.Profile, dir); err != nil {
				return nil, errors.Join(append(problems, err)...)
			}
		}
		m, err := newMember(n, models[n.Profile])
		twice := f.nodes[n.Name] != nil || slices.ContainsFunc(added, func(other *member) bool { return other.Name == n.Name })
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

// join makes the node, and returns when all that it has is published.
func (f *Fleet) join(ctx context.Context, m *member) error {
	inv, err := m.model.discover()
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	if m.object, err = f.register(ctx, m); err != nil {
		return err
	}
	pool := inv.Pool(m.Name)
	if m.slices, err = f.publish(ctx, m.Name, pool); err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	m.size = Size{Nodes: 1, GPUs: len(inv.Present()), Slices: len(pool.Slices)}
	for _, slice := range pool.Slices {
		m.size.Devices += len(slice.Devices)
	}
	return nil
}

// Remove takes nodes away, with their slices and with the pods that are bound to them, as if the machines had been sold. Names that are
// not of the fleet are no error.
func (f *Fleet) Remove(ctx context.Context, names ...string) error {
	return f.remove(ctx, slices.DeleteFunc(f.members(), func(m *member) bool { return !slices.Contains(names, m.Name) }))
}

func (f *Fleet) remove(ctx context.Context, members []*member) error {
	var all errgroup.Group // one that fails does not keep the others
	all.SetLimit(atOnce)
	problems := make([]error, len(members))
	for i, m := range members {
		all.Go(func() error {
			if err := f.withdraw(ctx, m); err != nil {
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

// Stop removes all nodes, and ends. It may be called after the context of Start has ended.
func (f *Fleet) Stop(ctx context.Context) error {
	err := f.remove(ctx, f.members())
	f.end()
	f.wait.Wait()
	return err
}

// Size is how much the fleet has.
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

// plays says whether the node is one of ours.
func (f *Fleet) plays(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[node] != nil
}

// members are the nodes, ordered by name.
func (f *Fleet) members() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*member
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		all = append(all, f.nodes[name])
	}
	return all
}
