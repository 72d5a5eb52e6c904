// SPDX-License-Identifier: Apache-2.0

// Package metrics exports how many GPUs the cluster has, and how much of them each namespace holds.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/guard"
)

// prefix is the prefix of all metric names. Names and labels are an API for users.
const prefix = "gpu_dra_cluster_"

// The values of the label "state". Each GPU, and each part of its memory and multiprocessors, is in one state, so the
// states add up to what is published.
const (
	free      = "free"
	allocated = "allocated"
	tainted   = "tainted"
	waiting   = "waiting" // of claims
)

var (
	ofNode      = []string{"node", "model", "state"}
	ofNamespace = []string{"namespace", "node", "model"}

	gpusDesc = prometheus.NewDesc(prefix+"gpus",
		"GPUs of which something is published, each in one state: allocated while a claim holds something of it, "+
			"else tainted or free.", ofNode, nil)
	memoryDesc = prometheus.NewDesc(prefix+"memory_bytes",
		"Memory of these GPUs: allocated to claims; of the rest, tainted where the GPU is, and free elsewhere.", ofNode,
		nil)
	coresDesc = prometheus.NewDesc(prefix+"cores",
		"Multiprocessors of these GPUs, 100 for each GPU, in the same states as memory. A share of memory alone has "+
			"no limit of cores and counts 0.", ofNode, nil)
	taintedDesc = prometheus.NewDesc(prefix+"tainted_gpus",
		"GPUs with a taint that keeps new pods away, held or not. Taints of a DeviceTaintRule count (Kubernetes "+
			"1.37), but for those of kubectl gpu reserve.",
		[]string{"node", "model"}, nil)
	namespaceGPUsDesc = prometheus.NewDesc(prefix+"namespace_gpus",
		"GPUs of which claims of the namespace hold something. One that several namespaces share counts in each.",
		ofNamespace, nil)
	namespaceMemoryDesc = prometheus.NewDesc(prefix+"namespace_memory_bytes",
		"Memory of GPUs that is allocated to claims of the namespace.", ofNamespace, nil)
	namespaceCoresDesc = prometheus.NewDesc(prefix+"namespace_cores",
		"Multiprocessors that are allocated to claims of the namespace, 100 for each GPU.", ofNamespace, nil)
	claimsDesc = prometheus.NewDesc(prefix+"claims",
		"Claims that hold devices of the driver (allocated), or have none yet and ask for some of its classes "+
			"(waiting), also those that no pod uses yet.",
		[]string{"namespace", "state"}, nil)
)

// Collector computes the metrics of a view on each scrape.
type Collector struct {
	View *cluster.View
	// Active reports whether this replica exports metrics. Only one replica may.
	Active func() bool
}

// NewUnrankedClaims returns the counter of claims for the strongest GPU that were not ranked.
func NewUnrankedClaims() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "unranked_claims_total",
		Help: "Claims for the strongest GPU that were not ranked when they were created, such as while the " +
			"controller did not answer; each has an event NotRanked."})
}

// NewEvictedPods returns the counter of pods that the controller has evicted.
func NewEvictedPods() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "evicted_pods_total",
		Help: "Pods with extended resources that were evicted from a GPU with a NoExecute taint; each has an event " +
			"DeviceTaintEviction."})
}

// NewEvictedIdlePods returns the counter of pods that were evicted because they did not use their GPUs.
func NewEvictedIdlePods() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "evicted_idle_pods_total",
		Help: "Pods that were evicted because they did not use their GPUs; each has an event IdleGPUEviction."})
}

// NewRetries returns the counter of retries: how often the controller made the scheduler try waiting pods again.
func NewRetries() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "scheduler_retries_total",
		Help: "How often the controller made the scheduler try waiting pods again, because one waited although a GPU " +
			"has room for its share. Many in a row: it waits for something else."})
}

// NewPreemptions returns the counter of pods for which others were evicted.
func NewPreemptions() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "preemptions_total",
		Help: "Pods that waited for devices and for which others were evicted; each has an event PreemptsForDevices."})
}

// NewPreemptedPods returns the counter of pods that were evicted for others.
func NewPreemptedPods() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "preempted_pods_total",
		Help: "Pods that were evicted for a pod of higher priority that waited for devices; each has an event " +
			"PreemptedForDevices."})
}

// NewQuotas returns what GPUQuotas allow (hard), and what claims use of that (used).
func NewQuotas() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "quota",
		Help: "What a GPUQuota allows (hard) of a resource, and what the claims of its namespace use of that (used)."},
		[]string{"namespace", "quota", "resource", "type"})
}

// NewRemoteGPUs returns how many GPUs over the network are published.
func NewRemoteGPUs() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "remote_gpus",
		Help: "GPUs over the network, by the node of their server: allocated while a claim holds something of it, " +
			"lost while the server of such a GPU does not answer, else free. They count among the GPUs of that " +
			"node, too."},
		ofNode)
}

// NewPanics returns the counter of panics that did not end the controller. The label is what it did.
func NewPanics() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "panics_total",
		Help: "Panics about single objects that the controller has recovered from, in its own loops; the log has the " +
			"stack. Those of webhooks are in controller_runtime_webhook_panics_total."}, []string{"in"})
}

// NewRefusedCalls returns the counter of calls whose caller is neither an API server nor a scheduler.
func NewRefusedCalls() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "refused_calls_total",
		Help: "Calls of webhooks and for scores that were refused unread, because the caller is not known as an API " +
			"server or a scheduler. reason is what was wrong: path, address or certificate."}, []string{"reason"})
}

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{gpusDesc, memoryDesc, coresDesc, taintedDesc, namespaceGPUsDesc,
		namespaceMemoryDesc, namespaceCoresDesc, claimsDesc} {
		ch <- desc
	}
}

// model is all GPUs of one model on one node.
type model struct{ node, name string }

func (m model) send(ch chan<- prometheus.Metric, a amount, state string) {
	send(ch, gpusDesc, a.gpus, m.node, m.name, state)
	send(ch, memoryDesc, a.memory, m.node, m.name, state)
	send(ch, coresDesc, a.cores, m.node, m.name, state)
}

// amount counts GPUs, bytes of memory, and percent of the multiprocessors of one GPU.
type amount struct{ gpus, memory, cores int64 }

func (a *amount) add(b amount) {
	a.gpus += b.gpus
	a.memory += b.memory
	a.cores += b.cores
}

// states is the amount of a model in each state.
type states struct {
	free, allocated, tainted amount
	taintedGPUs              int64
}

// account adds a GPU with what claims hold of it.
func (s *states) account(g *cluster.GPU, holdings []cluster.Holding) {
	whole, held := amount{1, g.Memory(), 100}, amount{gpus: int64(min(len(holdings), 1))}
	held.memory, held.cores = g.Used(holdings)
	s.allocated.add(held)
	rest := &s.free
	if !g.Admits(nil) {
		rest = &s.tainted
		if !g.Kept() {
			s.taintedGPUs++
		}
	}
	rest.add(amount{whole.gpus - held.gpus, whole.memory - held.memory, whole.cores - held.cores})
}

// use identifies what a namespace holds of a model.
type use struct {
	namespace string
	model
}

// Collect implements prometheus.Collector. It sends nothing unless Active.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	if !c.Active() {
		return
	}
	// A panic here would end the program at the next scrape of each leader.
	_ = guard.Do("collect metrics", func() error {
		c.gpus(ch)
		c.claims(ch)
		return nil
	})
}

func (c Collector) gpus(ch chan<- prometheus.Metric) {
	models, uses := map[model]*states{}, map[use]*amount{}
	for g, holdings := range c.View.GPUs {
		m := model{g.Node, g.Product()}
		for i, h := range holdings {
			of := entry(uses, use{h.Claim.Namespace, m})
			of.memory += h.Memory
			of.cores += h.Cores
			if firstOfItsNamespace(holdings, i) {
				of.gpus++
			}
		}
		entry(models, m).account(g, holdings)
	}
	for m, s := range models {
		m.send(ch, s.free, free)
		m.send(ch, s.allocated, allocated)
		m.send(ch, s.tainted, tainted)
		send(ch, taintedDesc, s.taintedGPUs, m.node, m.name)
	}
	for u, a := range uses {
		send(ch, namespaceGPUsDesc, a.gpus, u.namespace, u.node, u.name)
		send(ch, namespaceMemoryDesc, a.memory, u.namespace, u.node, u.name)
		send(ch, namespaceCoresDesc, a.cores, u.namespace, u.node, u.name)
	}
}

// firstOfItsNamespace reports whether no earlier holder is of the same namespace. A GPU has few holders.
func firstOfItsNamespace(held []cluster.Holding, i int) bool {
	for _, before := range held[:i] {
		if before.Claim.Namespace == held[i].Claim.Namespace {
			return false
		}
	}
	return true
}

func (c Collector) claims(ch chan<- prometheus.Metric) {
	namespaces := map[string]*struct{ holds, waits int64 }{}
	for claim, waits := range c.View.Claims {
		count := entry(namespaces, claim.Namespace)
		if waits {
			count.waits++
		} else {
			count.holds++
		}
	}
	for namespace, count := range namespaces {
		send(ch, claimsDesc, count.holds, namespace, allocated)
		send(ch, claimsDesc, count.waits, namespace, waiting)
	}
}

// entry returns the value of the key, and adds a zero value if there is none.
func entry[K comparable, V any](of map[K]*V, key K) *V {
	if of[key] == nil {
		of[key] = new(V)
	}
	return of[key]
}

func send(ch chan<- prometheus.Metric, desc *prometheus.Desc, value int64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
}
