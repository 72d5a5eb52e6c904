// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// board is what the page shows. It follows the cluster by watching.
type board struct {
	filter    filter
	namespace string // is watched if the user may not watch all
	// podNamespace is the namespace whose pending pods are watched; empty: all.
	podNamespace string

	mu       sync.Mutex
	state    *boardState
	failures map[string]failure // of watches, by resource
}

// failure is the last error of a watch.
type failure struct {
	err error
	at  time.Time
}

// boardState is one state of the page. It does not change.
type boardState struct {
	old     chan struct{}              // is closed when there is a newer state
	nodes   map[string]json.RawMessage // pageNode
	pending []pendingObject
	unread  []string
}

// pageNode is a node of the page.
type pageNode struct {
	Problem string `json:"problem,omitempty"`
	GPUs    []*GPU `json:"gpus"`
}

// pageMessage tells the page what has changed.
type pageMessage struct {
	Full    bool                       `json:"full"`  // forget everything else
	Nodes   map[string]json.RawMessage `json:"nodes"` // null: the node is gone
	Pending []pendingObject            `json:"pending"`
	Unread  []string                   `json:"unread"`
}

const (
	// updateInterval is the minimum time between two states.
	updateInterval = 500 * time.Millisecond
	// failureAge is how long the failure of a watch is shown. It is tried again more often.
	failureAge = time.Minute
)

func newBoard(f filter, namespace string) *board {
	return &board{filter: f, namespace: namespace, state: &boardState{old: make(chan struct{})},
		failures: map[string]failure{}}
}

// update makes the snapshot the state.
func (b *board) update(s *cluster.Snapshot) error {
	all, err := b.filter.candidates(s)
	if err != nil {
		return err
	}
	nodes := map[string]*pageNode{}
	for _, g := range all {
		n := nodes[g.place()]
		if n == nil {
			n = &pageNode{Problem: g.NodeProblem}
			nodes[g.place()] = n
		}
		n.GPUs = append(n.GPUs, g)
	}
	next := &boardState{nodes: map[string]json.RawMessage{}, pending: pending(s), unread: b.unread(s)}
	for name, n := range nodes {
		if next.nodes[name], err = json.Marshal(n); err != nil {
			return err
		}
	}
	b.publish(next)
	return nil
}

func (b *board) fail(resource string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures[resource] = failure{err, time.Now()}
}

// publish replaces the state.
func (b *board) publish(next *boardState) {
	next.old = make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.state.old)
	b.state = next
}

// unread says what could not be read, which watches fail, and which pools are incomplete.
func (b *board) unread(s *cluster.Snapshot) []string {
	all := []string{}
	if err := s.Err(); err != nil {
		all = strings.Split(err.Error(), "\n")
	}
	all = append(all, incomplete(s.Slices)...)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(b.failures)) {
		if f := b.failures[resource]; time.Since(f.at) < failureAge {
			all = append(all, fmt.Sprintf("watch %s: what is shown may be old: %v", resource, f.err))
		} else {
			delete(b.failures, resource)
		}
	}
	return all
}

func (b *board) current() *boardState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// messageSince returns what has changed since a state; all if that is nil.
func (s *boardState) messageSince(before *boardState) pageMessage {
	m := pageMessage{Full: before == nil, Nodes: map[string]json.RawMessage{}, Pending: s.pending, Unread: s.unread}
	if before == nil {
		before = &boardState{}
	}
	for name, node := range s.nodes {
		if !bytes.Equal(node, before.nodes[name]) {
			m.Nodes[name] = node
		}
	}
	for name := range before.nodes {
		if s.nodes[name] == nil {
			m.Nodes[name] = json.RawMessage("null")
		}
	}
	return m
}

// follow watches what the user could read at first, and updates the state until ctx ends.
func (b *board) follow(ctx context.Context, client kubernetes.Interface, first *cluster.Snapshot) {
	changed := make(chan struct{}, 1)
	signal := func() {
		select {
		case changed <- struct{}{}:
		default: // the last signal has not been seen yet
		}
	}
	claims := metav1.NamespaceAll
	var partial *cluster.PartialError
	if errors.As(first.Unread[cluster.Claims], &partial) {
		claims = partial.Namespace
	}
	slim := informers.WithTransform(func(o any) (any, error) { // saves memory
		if object, ok := o.(metav1.Object); ok {
			object.SetManagedFields(nil)
		}
		return o, nil
	})
	all := informers.NewSharedInformerFactoryWithOptions(client, 0, slim)
	inNamespace := informers.NewSharedInformerFactoryWithOptions(client, 0, slim, informers.WithNamespace(claims))
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, slim, informers.WithNamespace(b.podNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = pendingPhase }))
	watched := map[string]cache.SharedIndexInformer{}
	for resource, of := range map[string]struct {
		readable bool
		informer func() cache.SharedIndexInformer
	}{
		cluster.Slices:     {true, all.Resource().V1().ResourceSlices().Informer},
		cluster.Nodes:      {first.Unread[cluster.Nodes] == nil, all.Core().V1().Nodes().Informer},
		cluster.TaintRules: {first.TaintRules != nil, all.Resource().V1().DeviceTaintRules().Informer},
		cluster.Claims: {first.Unread[cluster.Claims] == nil || partial != nil,
			inNamespace.Resource().V1().ResourceClaims().Informer},
		cluster.Pods: {first.Unread[cluster.Pods] == nil, pods.Core().V1().Pods().Informer},
	} {
		if of.readable {
			watched[resource] = of.informer()
			b.watch(watched[resource], resource, signal)
		}
	}
	// Informers do not tell that the API server refuses connections: they try again for ever.
	go wait.UntilWithContext(ctx, func(context.Context) {
		if _, err := client.Discovery().ServerVersion(); err != nil {
			b.fail("the API server", err)
			signal()
		}
	}, failureAge/4)
	for _, factory := range []informers.SharedInformerFactory{all, inNamespace, pods} {
		factory.Start(ctx.Done())
	}
	b.run(ctx, changed, func() *cluster.Snapshot {
		published := first.Slices
		if of := watched[cluster.Slices]; of.HasSynced() {
			published = cluster.Tainted(stored(of, published), stored(watched[cluster.TaintRules], first.TaintRules))
		}
		return &cluster.Snapshot{Unread: first.Unread,
			Slices: published,
			Claims: stored(watched[cluster.Claims], first.Claims),
			Pods:   stored(watched[cluster.Pods], first.Pods),
			Nodes:  stored(watched[cluster.Nodes], first.Nodes)}
	})
}

// watch signals the changes and failures of an informer, which has not started.
func (b *board) watch(informer cache.SharedIndexInformer, resource string, signal func()) {
	// Both fail only for an informer that has been stopped or started.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { signal() },
		UpdateFunc: func(any, any) { signal() }, DeleteFunc: func(any) { signal() }})
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		b.fail(resource, err)
		signal()
	})
}

// run updates the state after changes, and when the failure of a watch is over.
func (b *board) run(ctx context.Context, changed <-chan struct{}, read func() *cluster.Snapshot) {
	check := time.NewTicker(failureAge / 4)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-check.C:
			b.mu.Lock()
			failing := len(b.failures) > 0
			b.mu.Unlock()
			if !failing {
				continue
			}
		}
		if err := b.update(read()); err != nil { // such as that the driver has no slices any more
			b.fail(cluster.Slices, err)
			b.publish(&boardState{pending: []pendingObject{}, unread: b.unread(&cluster.Snapshot{})})
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(updateInterval):
		}
	}
}

// stored returns the objects of an informer, sorted by name; the first ones as long as it has not read all, or if there
// is no informer.
func stored[T metav1.Object](informer cache.SharedIndexInformer, first []T) (all []T) {
	if informer == nil || !informer.HasSynced() {
		return first
	}
	for _, o := range informer.GetStore().List() {
		all = append(all, o.(T))
	}
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}
