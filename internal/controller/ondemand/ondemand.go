// SPDX-License-Identifier: Apache-2.0

// Package ondemand asks nodes for possible partitions that pods wait for.
//
// A node publishes the possible partitions of few unused GPUs (inventory.Offer). A pod that names another GPU, or needs
// partitions of several unused ones, is refused although it would fit; so are pods that are scheduled together. Why a
// scheduler refuses a pod is not known here: it may want another zone, or wait for a volume. So the package asks nodes
// that have enough for the pod, but not in what they publish: at first one, and twice as many each time while the pod
// waits. It names them in a ConfigMap, which the plugins watch. The plugin of a named node publishes all possible
// partitions of its unused GPUs. At worst all nodes publish all, as with partitions: dynamic.
package ondemand

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
)

const (
	// period is the time between two rounds.
	period = time.Second
	// pause is how long pods are refused until nodes are asked for them, and between two requests: as claims get
	// partitions, nodes publish more by themselves.
	pause = 2 * time.Second
	// most is how many nodes a request names.
	most = 64
	// maxShapes is how many kinds of pods are remembered, and maxBytes the size of what they ask for: users choose it.
	maxShapes, maxBytes = 1000, 8 << 20
)

// asker asks for partitions. It is not safe for concurrent use.
type asker struct {
	*feature.Controller
	requests types.NamespacedName // the ConfigMap
	waiting  map[string]*shape    // by what the pods ask for
	node     fit.Node             // scratch
}

// shape is what refused pods ask for: those with equal claims have the same one.
type shape struct {
	*feature.Shape
	pod   string    // one of them
	many  bool      // they may be scheduled together: what is published for one may not do
	next  time.Time // no request earlier
	tries int
}

// Add makes the leader name nodes in the ConfigMap.
func Add(c *feature.Controller, requests types.NamespacedName) error {
	return c.Manager.Add(newAsker(c, requests))
}

func newAsker(c *feature.Controller, requests types.NamespacedName) *asker {
	return &asker{Controller: c, requests: requests, waiting: map[string]*shape{}}
}

// Start asks for partitions until ctx ends.
func (a *asker) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("ondemand"))
	list := a.Waiting.Follow(ctx)
	a.Rounds(ctx, period, "ask for partitions", "Pods wait for partitions that are not published",
		func(started time.Time) error { return a.round(ctx, list(), started) })
	return nil
}

// round asks nodes for the pods that were refused for a while.
func (a *asker) round(ctx context.Context, pods []*corev1.Pod, now time.Time) error {
	withheld := a.withheld()
	if len(withheld) == 0 {
		clear(a.waiting)
		return nil
	}
	if err := a.note(pods, now); err != nil {
		return err
	}
	nodes, names := map[string]bool{}, []string(nil)
	for _, key := range slices.Sorted(maps.Keys(a.waiting)) {
		s := a.waiting[key]
		if now.Before(s.next) || len(nodes) >= most {
			continue
		}
		s.next = now.Add(pause)
		found := a.nodesFor(ctx, s, withheld)
		for _, node := range found[:min(len(found), 1<<min(s.tries, 10), most-len(nodes))] {
			nodes[node] = true
		}
		if len(found) > 0 {
			s.tries++
			names = append(names, s.pod)
		}
	}
	if len(nodes) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	return a.ask(ctx, slices.Sorted(maps.Keys(nodes)), names, now)
}

// withheld returns the models of unused GPUs of which no possible partition is published, by node.
func (a *asker) withheld() map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for g, held := range a.View.GPUs {
		if len(held) > 0 || g.Whole == nil || !g.Whole.Kind.OnDemand() || fit.PublishesPossible(g) {
			continue
		}
		if all[g.Node] == nil {
			all[g.Node] = map[string]bool{}
		}
		all[g.Node][g.Product()] = true
	}
	return all
}

// note remembers what refused pods ask for, and forgets what none does.
func (a *asker) note(pods []*corev1.Pod, now time.Time) error {
	known, bytes := map[string]*shape{}, 0
	for _, pod := range pods {
		if !waiting.IsRefused(pod) {
			continue
		}
		claims, ok := a.Lacks(pod)
		if !ok {
			continue // a claim is not there yet
		}
		lacks, err := a.ShapeOf(pod, claims)
		if err != nil {
			return err
		}
		if lacks == nil {
			continue
		}
		s := known[lacks.Text]
		if s == nil {
			if len(known) == maxShapes || bytes+len(lacks.Text) > maxBytes {
				continue
			}
			bytes += len(lacks.Text)
			s = cmp.Or(a.waiting[lacks.Text], &shape{Shape: lacks, next: now.Add(pause)})
			s.pod, s.many = pod.Namespace+"/"+pod.Name, false
			known[lacks.Text] = s
		}
		s.many = s.many || pod.Spec.SchedulingGroup != nil || pod.Spec.SchedulerName != corev1.DefaultSchedulerName
	}
	a.waiting = known
	return nil
}

// nodesFor returns the nodes, by name, that have enough for the shape, but not in what they publish, and withhold
// possible partitions of a model that may be for it.
func (a *asker) nodesFor(ctx context.Context, s *shape, withheld map[string]map[string]bool) (found []string) {
	d := a.Demand(ctx, s.Shape)
	models := map[string]bool{}
	for _, request := range d.Requests {
		for _, of := range request {
			for kind := range of.Takes {
				if kind.Type() == gpu.TypeMIG {
					models[kind.Product()] = true
				}
			}
		}
	}
	var nodes []string
	for name, withholds := range withheld {
		for model := range withholds {
			if models[model] {
				nodes = append(nodes, name)
				break
			}
		}
	}
	slices.Sort(nodes)
	inDoubt := s.many || slices.ContainsFunc(s.Specs, a.namesGPU)
	a.View.Nodes(nodes, func(i int, devices *cluster.NodeDevices) {
		a.node.Reset(devices, nil)
		a.node.Published = true
		if _, fits := a.node.Estimate(d); fits && !a.node.Unsure && !inDoubt {
			return
		}
		a.node.Reset(devices, nil)
		a.node.Published = false
		if _, fits := a.node.Estimate(d); fits || a.node.Unsure {
			found = append(found, nodes[i])
		}
	})
	return found
}

// namesGPU reports whether a claim may accept some of the devices of a kind only: Estimate takes any.
func (a *asker) namesGPU(spec resourceapi.ResourceClaimSpec) bool {
	return slices.ContainsFunc(cluster.Subrequests(&spec), func(s cluster.Subrequest) bool {
		class, ok := a.View.Class(*s.Class)
		return cluster.ByIdentity(*s.Selectors) || ok && cluster.ByIdentity(class.Spec.Selectors)
	})
}

// ask names the nodes in the ConfigMap.
func (a *asker) ask(ctx context.Context, nodes, pods []string, now time.Time) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{
		inventory.RequestedNodes: strings.Join(nodes, " "),
		inventory.RequestedAt:    now.UTC().Format(time.RFC3339Nano),
	}})
	if err != nil {
		return err
	}
	if err := a.Direct.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: a.requests.Namespace,
		Name: a.requests.Name}}, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("name nodes in ConfigMap %s: %w", a.requests, err)
	}
	log.FromContext(ctx).Info("Nodes are asked for all possible partitions of unused GPUs", "nodes", len(nodes),
		"first", nodes[0], "pods", pods[0])
	return nil
}
