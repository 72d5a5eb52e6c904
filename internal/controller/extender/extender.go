// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/placement"
)

// Path is where the scheduler asks: the urlPrefix of its configuration ends with the first part, and the last part is
// the prioritizeVerb.
const Path = "/placement/prioritize"

// MaxScore is the score of the best node. The scheduler multiplies it by ten and by the weight of its configuration:
// with weight 1, it counts as much as ten of the scheduler's own scores.
const MaxScore = 100

// maxNodes is how many nodes a request may name beside twice as many as there are.
const maxNodes = 100

// Extender answers a scheduler.
type Extender struct {
	view    *cluster.View
	known   func() error
	policy  placement.Policy
	usage   *usage
	metrics Metrics

	// begin starts to follow pods and nodes. Until the first request, that would cost memory for nothing.
	begin    func() (complete func() bool)
	once     sync.Once
	complete atomic.Pointer[func() bool]

	mu      sync.Mutex // one pod after the other: the next one must know of the proposal
	scratch node

	scraping sync.Mutex // one scrape after the other
}

// Add serves scores with that policy.
func Add(ctx context.Context, c *feature.Controller, policy string) error {
	reads, err := c.Reads()
	if err != nil {
		return err
	}
	x := newExtender(c.View, c.Known, Policies[policy], time.Now)
	x.begin = func() func() bool { return x.usage.follow(ctx, reads, c.Guard) }
	for _, m := range []prometheus.Collector{x.metrics.requests, x.metrics.duration, x.metrics.proposals,
		stranded{x}} {
		if err := ctrlmetrics.Registry.Register(m); err != nil {
			return fmt.Errorf("register the metrics of placement: %w", err)
		}
	}
	c.ServeSchedulers(Path, x)
	c.Short = x.short
	go x.tell(ctx, c.Direct, c.Guard)
	return nil
}

func newExtender(v *cluster.View, known func() error, policy placement.Policy, now func() time.Time) *Extender {
	x := &Extender{view: v, known: known, policy: policy, metrics: NewMetrics()}
	x.usage = newUsage(v, now, func(outcome string) { x.metrics.proposals.WithLabelValues(outcome).Inc() })
	return x
}

// ServeHTTP answers a request for the scores of nodes.
func (x *Extender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, status, err := x.serve(w, r)
	x.metrics.requests.WithLabelValues(result).Inc()
	if err != nil {
		log.FromContext(r.Context()).V(2).Info("No scores of nodes", "reason", err.Error())
		http.Error(w, err.Error(), status)
	}
}

func (x *Extender) serve(w http.ResponseWriter, r *http.Request) (result string, status int, err error) {
	if r.Method != http.MethodPost {
		return resultInvalid, http.StatusMethodNotAllowed, fmt.Errorf("method %s: want POST", r.Method)
	}
	if err := x.ready(); err != nil {
		return resultNotReady, http.StatusServiceUnavailable, err
	}
	var args extenderv1.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		return resultInvalid, http.StatusBadRequest, fmt.Errorf("decode the request: %w", err)
	}
	if args.Pod == nil || args.NodeNames == nil {
		return resultInvalid, http.StatusBadRequest,
			errors.New("the request has no Pod or no NodeNames: the scheduler's extender needs nodeCacheCapable: true")
	}
	began := time.Now()
	scores := x.Prioritize(r.Context(), args.Pod, *args.NodeNames)
	x.metrics.duration.Observe(time.Since(began).Seconds())
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(scores); err != nil {
		log.FromContext(r.Context()).V(2).Info("Scores not sent", "error", err.Error())
	}
	return resultScored, 0, nil
}

// ready returns an error until pods, nodes, claims and slices are known. The first call begins to read pods and nodes.
func (x *Extender) ready() error {
	if err := x.known(); err != nil {
		return err
	}
	x.once.Do(func() {
		complete := x.begin()
		x.complete.Store(&complete)
	})
	if complete := x.complete.Load(); complete == nil || !(*complete)() {
		return errors.New("pods and nodes are still being read")
	}
	return nil
}

// short returns what a node lacks for pods with GPUs. It is known once a scheduler has asked this replica.
func (x *Extender) short(node string) string {
	if complete := x.complete.Load(); complete == nil || !(*complete)() {
		return ""
	}
	return x.usage.short(node)
}

// Prioritize scores the nodes for the pod from 0 to MaxScore, in their order. It remembers the best one for the next
// pods.
func (x *Extender) Prioritize(ctx context.Context, pod *corev1.Pod, nodes []string) extenderv1.HostPriorityList {
	wants := ask(ctx, x.view, pod)
	policy, _, _ := policyOf(pod.Annotations, x.policy)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.usage.mu.Lock()
	defer x.usage.mu.Unlock()
	if len(nodes) > maxNodes+2*len(x.usage.nodes) || ctx.Err() != nil {
		return nil // no scheduler names so many, or nobody waits for the answer
	}
	ahead := x.usage.ahead(pod.UID)
	demand := x.usage.demand.now(x.usage.now(), x.usage.nodes)
	all := make([]scored, len(nodes))
	best := -1
	var takes []fit.Take
	var shape placement.Shape // of the takes
	x.view.Nodes(nodes, func(i int, devices *cluster.NodeDevices) {
		s := &all[i]
		s.node = nodes[i]
		coming := ahead[nodes[i]]
		if coming == nil {
			coming = &proposal{}
		}
		x.scratch.reset(devices, coming.takes, wants.Tolerations)
		of := x.usage.nodes[nodes[i]]
		idle := of.host.minus(x.usage.used[nodes[i]]).minus(coming.host)
		if s.rank, s.fits = x.scratch.predict(&wants.Demand); !s.fits {
			return
		}
		if len(x.scratch.gpus) == 0 { // a pod without devices leaves those of others their CPU, too
			others := slices.Repeat([]placement.GPU{{Idle: placement.Whole}}, x.usage.others(nodes[i]))
			x.scratch.gpus = append(x.scratch.gpus, others...)
		}
		s.cost = policy.Cost(placement.Node{CPU: idle.cpu, Memory: idle.memory, GPUs: x.scratch.gpus},
			placement.Pod{CPU: wants.host.cpu, Memory: wants.host.memory, Takes: x.scratch.scores}, demand)
		s.score = s.cost.Score()
		if best < 0 || s.better(all[best]) {
			best = i
			takes = append(takes[:0], x.scratch.Takes...)
			shape = placement.ShapeOf(placement.Pod{Takes: x.scratch.scores})
		}
	})
	if best >= 0 {
		p := &proposal{node: nodes[best], host: wants.host, takes: takes, claims: wants.claims,
			request: placement.Request{GPUs: shape.GPUs, Models: wants.models(x.usage.demand.gpus)}, shape: shape}
		for _, t := range takes {
			p.request.Amount += t.Amount
		}
		x.usage.propose(pod.UID, p)
		x.usage.learn(pod.UID, p)
	}
	scale(all, best)
	if l := log.FromContext(ctx).V(4); l.Enabled() && best >= 0 {
		l.Info("Nodes scored", "pod", klog.KObj(pod), "policy", policy, "best", explain(all))
	}
	list := make(extenderv1.HostPriorityList, len(nodes))
	for i, s := range all {
		list[i] = extenderv1.HostPriority{Host: nodes[i], Score: s.points}
	}
	return list
}
