// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// index is a snapshot with indexes.
type index struct {
	*cluster.Snapshot
	Options
	classes fit.Classes
	nodes   []*corev1.Node // by name
	onNode  map[string][]*resourceapi.ResourceSlice
	shared  []*resourceapi.ResourceSlice // those of no single node
	pools   map[cluster.PoolID][]*resourceapi.ResourceSlice
	holders map[cluster.PoolID][]*resourceapi.ResourceClaim
	used    map[string]corev1.ResourceList // of each node, by pods
	kinds   *cluster.View                  // see view
	planned map[string]bool                // claims that do not exist yet, by namespace/name
	answers map[string]*Answer             // about anonymous workloads
	// repeated counts answers that were known from an equal workload.
	repeated int
	// compiled are the expressions of this cluster. They are forgotten with it: users choose them, and those of 1,000
	// large claims would need hundreds of MiB.
	compiled *cel.Cache
}

func newIndex(s *cluster.Snapshot) *index {
	c := &index{Snapshot: s, classes: fit.Classes{}, onNode: map[string][]*resourceapi.ResourceSlice{},
		pools:   map[cluster.PoolID][]*resourceapi.ResourceSlice{},
		holders: map[cluster.PoolID][]*resourceapi.ResourceClaim{},
		used:    map[string]corev1.ResourceList{}, planned: map[string]bool{},
		answers: map[string]*Answer{}, compiled: selectors.NewCache()}
	for _, class := range s.Classes {
		c.classes[class.Name] = class
	}
	known := map[string]*corev1.Node{}
	for _, n := range s.Nodes {
		known[n.Name] = n
	}
	for _, slice := range s.Slices {
		c.pools[cluster.PoolOf(slice)] = append(c.pools[cluster.PoolOf(slice)], slice)
		name := ptr.Deref(slice.Spec.NodeName, "")
		if name == "" {
			c.shared = append(c.shared, slice)
			continue
		}
		c.onNode[name] = append(c.onNode[name], slice)
		if known[name] == nil && s.Unread[cluster.Nodes] != nil {
			known[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{corev1.LabelHostname: name}}}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		c.nodes = append(c.nodes, known[name])
	}
	for _, claim := range s.Claims {
		for _, pool := range poolsHeldBy(claim) {
			c.holders[pool] = append(c.holders[pool], claim)
		}
	}
	for _, pod := range s.Pods {
		if pod.Spec.NodeName != "" && !cluster.Finished(pod) {
			c.used[pod.Spec.NodeName] = add(c.used[pod.Spec.NodeName], requestsOf(pod))
		}
	}
	return c
}

// poolsHeldBy returns the pools of the claim's devices, other than those with admin access.
func poolsHeldBy(claim *resourceapi.ResourceClaim) []cluster.PoolID {
	var all []cluster.PoolID
	for _, r := range cluster.Results(claim) {
		if id := cluster.PoolOfResult(r); !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// requestsOf returns the resources that the pod requests, and itself. While it is resized in place, that is the most of
// what it has and what it is to get.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	all := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true})
	return add(all, corev1.ResourceList{corev1.ResourcePods: *newQuantity(1)})
}

func add(a, b corev1.ResourceList) corev1.ResourceList {
	sum := maps.Clone(a)
	if sum == nil {
		sum = corev1.ResourceList{}
	}
	for name, q := range b {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
	return sum
}

// nodeGroup is a group of nodes with equal devices and equal use that the pod treats alike. The first of them is asked.
type nodeGroup struct {
	node    *corev1.Node
	names   []string
	slices  []*resourceapi.ResourceSlice
	holders []*resourceapi.ResourceClaim
	held    fit.Held // by all holders
}

// nodeGroups groups the nodes for that workload. When ctx has ended, there are none.
func (c *index) nodeGroups(ctx context.Context, w *workload) []*nodeGroup {
	names := c.namesIn(w)
	each, prints := make([]*nodeGroup, len(c.nodes)), make([]string, len(c.nodes))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(c.nodes)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				each[i] = c.groupOf(c.nodes[i])
				prints[i] = w.nodePrint(c, c.nodes[i]) + "\n" + each[i].print(names)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil // not every node has its print
	}
	groups := map[string]*nodeGroup{}
	var all []*nodeGroup
	for i, s := range each {
		if known := groups[prints[i]]; known != nil {
			known.names = append(known.names, s.names...)
			continue
		}
		s.held = fit.HeldBy(s.holders, nil)
		groups[prints[i]] = s
		all = append(all, s)
	}
	return all
}

// groupOf returns a group of one node, without its state.
func (c *index) groupOf(node *corev1.Node) *nodeGroup {
	s := &nodeGroup{node: node, names: []string{node.Name}, slices: c.slicesFor(node)}
	seen := map[types.UID]bool{}
	pools := map[cluster.PoolID]bool{}
	for _, slice := range s.slices {
		id := cluster.PoolOf(slice)
		if pools[id] {
			continue
		}
		pools[id] = true
		for _, claim := range c.holders[id] {
			if !seen[claim.UID] {
				seen[claim.UID] = true
				s.holders = append(s.holders, claim)
			}
		}
	}
	return s
}

// slicesFor returns the slices that the allocator needs for the node: its own, those of no single node, and the rest of
// the pools that they belong to.
func (c *index) slicesFor(node *corev1.Node) []*resourceapi.ResourceSlice {
	all := slices.Concat(c.onNode[node.Name], c.shared)
	for _, s := range c.onNode[node.Name] {
		for _, other := range c.pools[cluster.PoolOf(s)] {
			if name := ptr.Deref(other.Spec.NodeName, ""); name != "" && name != node.Name {
				all = append(all, other)
			}
		}
	}
	return all
}

// namesIn returns the names of the attributes that the workload may read, or nil if it may read any.
func (c *index) namesIn(w *workload) map[string]bool {
	all := map[string]bool{"sharing": true, "isolation": true} // for a dry run
	var expressions []string
	for _, claim := range w.claims {
		for _, part := range cluster.Subrequests(&claim.Spec) {
			for _, s := range *part.Selectors {
				expressions = append(expressions, expressionOf(s))
			}
			classes := c.Classes // each is tried instead of one that does not exist
			if class := c.classes[*part.Class]; class != nil {
				classes = []*resourceapi.DeviceClass{class}
			}
			for _, class := range classes {
				for _, s := range class.Spec.Selectors {
					expressions = append(expressions, expressionOf(s))
				}
			}
		}
		for _, constraint := range claim.Spec.Devices.Constraints {
			for _, name := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute,
				constraint.DistinctAttribute} {
				_, id, _ := strings.Cut(string(ptr.Deref(name, "")), "/")
				all[id] = true
			}
		}
	}
	slices.Sort(expressions)
	parsed := 0
	for _, expression := range slices.Compact(expressions) {
		if parsed += len(expression); parsed > maxParsed {
			return nil
		}
		names, known := selectors.NamesIn(expression)
		if !known {
			return nil
		}
		maps.Copy(all, names)
	}
	selectors.AddLikely(all)
	return all
}

func expressionOf(s resourceapi.DeviceSelector) string {
	if s.CEL == nil {
		return ""
	}
	return s.CEL.Expression
}

// askedOf returns the amounts that a request asks for of a device that it gets as a whole, because that has no shares.
// "": it asks for none, or the device is none that could have shares.
func (c *index) askedOf(claim *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) string {
	d := c.device(r)
	if d == nil || ptr.Deref(d.Attributes["type"].StringValue, "gpu") != "gpu" ||
		ptr.Deref(d.AllowMultipleAllocations, false) {
		return ""
	}
	return cluster.Share(&claim.Spec, r.Request, d)
}
