// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/offer"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/selectors"
)

// Limits bound questions.
type Limits struct {
	// Ask ends a single question: the allocator's search can be exponential. It is that of the scheduler.
	Ask time.Duration
	// Change ends a single question of a search for changes. The answer then counts as no.
	Change time.Duration
	// Candidates is how many devices are compared with all subrequests of a workload. They are kept in memory.
	Candidates int
}

// DefaultLimits are those of a new Cluster. Tests change them.
var DefaultLimits = Limits{Ask: 10 * time.Second, Change: time.Second, Candidates: 500_000}

// Cluster is a snapshot with indexes.
type Cluster struct {
	*cluster.Snapshot
	Limits Limits
	// HideOthers leaves out what readers with fewer rights must not learn of other namespaces.
	HideOthers bool

	ClassByName   allocator.Classes
	ClaimNamed    Named[*resourceapi.ResourceClaim]
	TemplateNamed Named[*resourceapi.ResourceClaimTemplate]
	PodNamed      Named[*corev1.Pod]
	// AllNodes are the nodes, by name; those of slices if nodes cannot be read.
	AllNodes []*corev1.Node
	Pools    map[cluster.PoolID][]*resourceapi.ResourceSlice
	Used     map[string]corev1.ResourceList // of each node, by pods
	Planned  map[string]bool                // claims that do not exist yet, by namespace/name

	published []*resourceapi.ResourceSlice // those that were read
	onNode    map[string][]*resourceapi.ResourceSlice
	shared    []*resourceapi.ResourceSlice // those of no single node
	holders   map[cluster.PoolID][]*resourceapi.ResourceClaim
	kinds     *cluster.View // see view
	// compiled are the expressions of this cluster. They are forgotten with it: users choose them, and those of 1,000
	// large claims would need hundreds of MiB.
	compiled *cel.Cache
}

// New prepares the snapshot, which must not change any more. Its slices have what nodes would publish, too: see package
// offer.
func New(read *cluster.Snapshot) *Cluster {
	with := *read
	with.Slices = offer.All(read.Slices, read.TaintRules)
	return prepare(&with, read.Slices)
}

// AsPublished returns the cluster without what nodes would publish; nil: that is the same.
func (c *Cluster) AsPublished() *Cluster {
	if len(c.published) == len(c.Slices) {
		return nil
	}
	s := *c.Snapshot
	s.Slices = c.published
	now := prepare(&s, c.published)
	now.Limits, now.HideOthers, now.Planned = c.Limits, c.HideOthers, c.Planned
	return now
}

func prepare(s *cluster.Snapshot, published []*resourceapi.ResourceSlice) *Cluster {
	c := &Cluster{Snapshot: s, ClaimNamed: ByName(s.Claims), TemplateNamed: ByName(s.Templates),
		PodNamed:    ByName(s.Pods),
		ClassByName: allocator.ClassesOf(s.Classes), onNode: map[string][]*resourceapi.ResourceSlice{},
		Pools:   map[cluster.PoolID][]*resourceapi.ResourceSlice{},
		holders: map[cluster.PoolID][]*resourceapi.ResourceClaim{},
		Used:    map[string]corev1.ResourceList{}, Planned: map[string]bool{},
		compiled: selectors.NewCache(), Limits: DefaultLimits, published: published}
	known := map[string]*corev1.Node{}
	for _, n := range s.Nodes {
		known[n.Name] = n
	}
	for _, slice := range s.Slices {
		c.Pools[cluster.PoolOf(slice)] = append(c.Pools[cluster.PoolOf(slice)], slice)
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
		c.AllNodes = append(c.AllNodes, known[name])
	}
	for _, claim := range s.Claims {
		for _, pool := range PoolsHeldBy(claim) {
			c.holders[pool] = append(c.holders[pool], claim)
		}
	}
	for _, pod := range s.Pods {
		if pod.Spec.NodeName != "" && !cluster.Finished(pod) {
			c.Used[pod.Spec.NodeName] = Sum(c.Used[pod.Spec.NodeName], RequestsOf(pod))
		}
	}
	return c
}

// Named are objects by namespace and name.
type Named[T metav1.Object] map[types.NamespacedName]T

// ByName returns the objects by name.
func ByName[T metav1.Object](all []T) Named[T] {
	named := make(Named[T], len(all))
	for _, o := range all {
		named[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = o
	}
	return named
}

// Find returns the object of that name.
func (n Named[T]) Find(namespace, name string) (T, bool) {
	o, ok := n[types.NamespacedName{Namespace: namespace, Name: name}]
	return o, ok
}

// PoolsHeldBy returns the pools of the claim's devices, other than those with admin access.
func PoolsHeldBy(claim *resourceapi.ResourceClaim) []cluster.PoolID {
	var all []cluster.PoolID
	for _, r := range cluster.Results(claim) {
		if id := cluster.PoolOfResult(r); !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// RequestsOf returns the resources that the pod requests, and itself. While it is resized in place, that is the most of
// what it has and what it is to get.
func RequestsOf(pod *corev1.Pod) corev1.ResourceList {
	all := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true})
	return Sum(all, corev1.ResourceList{corev1.ResourcePods: *NewQuantity(1)})
}

// Sum returns the sums of both by resource.
func Sum(a, b corev1.ResourceList) corev1.ResourceList {
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

// Group is a group of nodes with equal devices and equal use that the pod treats alike. The first of them is asked.
type Group struct {
	Node    *corev1.Node
	Names   []string
	Slices  []*resourceapi.ResourceSlice
	Holders []*resourceapi.ResourceClaim
	Held    allocator.Held // by all holders
}

// nodeGroups groups the nodes for that workload. When ctx has ended, there are none.
func (c *Cluster) nodeGroups(ctx context.Context, w *Workload) []*Group {
	names := c.namesIn(w)
	each, prints := make([]*Group, len(c.AllNodes)), make([]string, len(c.AllNodes))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(c.AllNodes)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				each[i] = c.GroupOf(c.AllNodes[i])
				prints[i] = w.nodePrint(c, c.AllNodes[i]) + "\n" + each[i].print(names)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil // not every node has its print
	}
	groups := map[string]*Group{}
	var all []*Group
	for i, s := range each {
		if known := groups[prints[i]]; known != nil {
			known.Names = append(known.Names, s.Names...)
			continue
		}
		s.Held = allocator.HeldBy(s.Holders, nil)
		groups[prints[i]] = s
		all = append(all, s)
	}
	return all
}

// GroupOf returns a group of one node. Held is to be filled in.
func (c *Cluster) GroupOf(node *corev1.Node) *Group {
	s := &Group{Node: node, Names: []string{node.Name}, Slices: c.slicesFor(node)}
	seen := map[types.UID]bool{}
	pools := map[cluster.PoolID]bool{}
	for _, slice := range s.Slices {
		id := cluster.PoolOf(slice)
		if pools[id] {
			continue
		}
		pools[id] = true
		for _, claim := range c.holders[id] {
			if !seen[claim.UID] {
				seen[claim.UID] = true
				s.Holders = append(s.Holders, claim)
			}
		}
	}
	return s
}

// slicesFor returns the slices that the allocator needs for the node: its own, those of no single node, and the rest of
// the pools that they belong to.
func (c *Cluster) slicesFor(node *corev1.Node) []*resourceapi.ResourceSlice {
	all := slices.Concat(c.onNode[node.Name], c.shared)
	for _, s := range c.onNode[node.Name] {
		for _, other := range c.Pools[cluster.PoolOf(s)] {
			if name := ptr.Deref(other.Spec.NodeName, ""); name != "" && name != node.Name {
				all = append(all, other)
			}
		}
	}
	return all
}

// namesIn returns the names of the attributes that the workload may read, or nil if it may read any.
func (c *Cluster) namesIn(w *Workload) map[string]bool {
	all := map[string]bool{"sharing": true, "isolation": true} // for a dry run
	var expressions []string
	for _, claim := range w.Claims {
		for _, part := range cluster.Subrequests(&claim.Spec) {
			for _, s := range *part.Selectors {
				expressions = append(expressions, expressionOf(s))
			}
			classes := c.Classes // each is tried instead of one that does not exist
			if class := c.ClassByName[*part.Class]; class != nil {
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
