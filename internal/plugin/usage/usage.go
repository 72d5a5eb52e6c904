// SPDX-License-Identifier: Apache-2.0

// Package usage exports metrics of what the node's containers have requested of GPUs and what they use. Of its sibling
// packages, it may import only containers, podresources and report.
package usage

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/containers"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/podresources"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// maxAge is how long results are cached for other scrapes.
	maxAge = 5 * time.Second
	// timeout is the timeout of one collection. By default Prometheus waits 10 s for all metrics together.
	timeout = 5 * time.Second
)

// Sources of data: the values of the label "source".
const (
	sourceKubelet = "kubelet" // containers and their devices
	sourceRecords = "records" // of claims
	sourcePods    = "pods"    // in the API server
	sourceNVML    = "nvml"    // processes on a GPU
	sourceProc    = "proc"    // containers of processes
)

// containerDevice identifies a container and a GPU.
type containerDevice struct {
	namespace, pod, container string
	device                    string // its name
}

// usage is what a container has and uses of a GPU.
type usage struct {
	containerDevice
	gpu       gpu.Device
	requested *requested // nil: nothing; the container may monitor the GPU
	used      *used      // nil: unknown
}

type requested struct {
	memory uint64
	cores  int // percent
}

// used is what processes use. Memory or utilization is gpu.Unmeasured if that of one process is.
type used struct {
	memory      int64
	utilization int // percent
	peak        activity
}

// activity is how busy processes were in the last minute.
type activity struct {
	processes  int
	percent    int  // of the busiest one
	unmeasured bool // of one of them, or of ended ones
	others     int  // percent, of the busiest process that may be of this container
}

func (u *used) add(p gpu.Process) {
	u.peak.processes++
	u.peak.percent = max(u.peak.percent, p.Peak)
	u.peak.unmeasured = u.peak.unmeasured || p.Peak == gpu.Unmeasured
	if u.memory == gpu.Unmeasured || p.Memory == gpu.Unmeasured {
		u.memory = gpu.Unmeasured
	} else {
		u.memory += p.Memory
	}
	if u.utilization == gpu.Unmeasured || p.Utilization == gpu.Unmeasured {
		u.utilization = gpu.Unmeasured
	} else {
		u.utilization += p.Utilization
	}
}

// CollectorConfig is the configuration of a Collector.
type CollectorConfig struct {
	Kubelet string // socket of the kubelet's pod resources API
	Client  kubernetes.Interface
	Node    string
	Records report.Lister
	// Inventory returns the last known inventory.
	Inventory func() inventory.Inventory
	// Processes returns the processes that use a GPU. nil: usage is not measured.
	Processes func(context.Context, gpu.Device) (gpu.Processes, error)
	// Proc is the proc file system for the PIDs of Processes.
	Proc string
	// IdleBelow is how busy the busiest process of a used GPU is at least, in percent.
	IdleBelow int
	// GPUManagerNames exports the metrics also under the names of gpu-manager.
	GPUManagerNames bool
}

// Collector collects, on each scrape, what the node's containers have requested of GPUs and what they use. It exports
// only containers that the kubelet still lists.
type Collector struct {
	CollectorConfig
	pods      podCache
	processes *processes             // nil: usage is not measured
	failures  *prometheus.CounterVec // source

	mu     sync.Mutex
	at     time.Time
	last   []usage
	claims []ClaimUse        // nil: they are not known
	logged map[string]string // the last problem logged of each source, so that it is logged once
}

// NewCollector returns a collector to register.
func NewCollector(c CollectorConfig) *Collector {
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: report.Prefix +
		"container_metrics_failures_total",
		Help: "Times that metrics of containers were missing, by who had not answered: the kubelet, the API server " +
			"(pods), the records of claims, NVML, the proc file system."}, []string{"source"})
	for _, source := range []string{sourceKubelet, sourceRecords, sourcePods, sourceNVML, sourceProc} {
		failures.WithLabelValues(source)
	}
	collector := &Collector{CollectorConfig: c, pods: podCache{client: c.Client}, failures: failures,
		logged: map[string]string{}}
	if c.Processes != nil {
		collector.processes = &processes{c}
	}
	return collector
}

// current returns the current usage, at most maxAge old.
func (c *Collector) current() []usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh(maxAge)
	return c.last
}

// refresh collects the usage again if it is that old. The caller holds c.mu.
func (c *Collector) refresh(age time.Duration) {
	if time.Since(c.at) >= age {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		c.last, c.claims = c.collectUsage(ctx)
		c.at = time.Now()
	}
}

// collectUsage collects the usage of all containers, and of all claims. It leaves out what is not known: a missing
// metric is better than a wrong one.
func (c *Collector) collectUsage(ctx context.Context) ([]usage, []ClaimUse) {
	pods, complete, err := c.list(ctx)
	if err != nil {
		c.failed(sourceKubelet, err)
		return nil, nil
	}
	c.pods.keep(pods)
	inv := c.Inventory()
	found := table{}
	for _, pod := range pods {
		for _, container := range pod.containers {
			held, err := c.held(ctx, pod, container)
			if err != nil {
				c.failed(sourcePods, err)
				continue
			}
			for _, h := range held {
				found.request(containerDevice{pod.namespace, pod.name, container.name, h.Device}, h.Assignment, inv)
			}
		}
	}
	if c.processes != nil && len(pods) > 0 {
		c.measure(ctx, found.users(inv), pods, found)
	}
	if !complete {
		return found.sorted(), nil
	}
	return found.sorted(), c.usesOfClaims(pods, found, inv)
}

// table is the usage that is being collected.
type table map[containerDevice]*usage

func (t table) at(p containerDevice, d gpu.Device) *usage {
	if t[p] == nil {
		t[p] = &usage{containerDevice: p, gpu: d}
	}
	return t[p]
}

// request adds an allocated device. A container may have several shares of a GPU.
func (t table) request(p containerDevice, a sharing.Assignment, inv inventory.Inventory) {
	d, known := inv.Find(a.Device)
	memory, cores, ok := a.Part(d)
	if a.AdminAccess || !known || !ok {
		return
	}
	if a.Partition != nil {
		d.UUID = a.Partition.UUID // the inventory has only its placement
	}
	one := t.at(p, d)
	if one.requested == nil {
		one.requested = &requested{}
	}
	one.requested.memory += memory
	one.requested.cores += cores
}

// users returns the devices whose processes are to be listed: the partitions of containers, and all GPUs without such
// partitions. NVML lists the processes of partitions also for their GPU.
func (t table) users(inv inventory.Inventory) inventory.Inventory {
	var partitions inventory.Inventory
	partitioned := map[string]bool{}
	for _, one := range t {
		if _, known := partitions.Find(one.device); one.gpu.Partition != nil && !known {
			partitions = append(partitions, one.gpu)
			partitioned[gpu.ParentName(one.device)] = true
		}
	}
	whole := slices.DeleteFunc(inv.Present(), func(d gpu.Device) bool { return partitioned[d.Name] })
	return append(whole, partitions...)
}

// use sets what containers use of the GPU. A container that has it but no process on it uses nothing.
func (t table) use(d gpu.Device, uses map[containerDevice]*used) {
	for p, one := range t {
		if p.device == d.Name {
			one.used = &used{}
		}
	}
	for p, u := range uses {
		t.at(p, d).used = u
	}
}

// others adds the peak of processes of nobody knows whom to a pod that has the GPU alone. Otherwise it may be that of
// each of them.
func (t table) others(d gpu.Device, peak int) {
	pods := map[[2]string]bool{}
	for p := range t {
		if p.device == d.Name {
			pods[[2]string{p.namespace, p.pod}] = true
		}
	}
	for p, one := range t {
		switch {
		case p.device != d.Name:
		case len(pods) == 1:
			one.used.peak.percent = max(one.used.peak.percent, peak)
		default:
			one.used.peak.others = peak
		}
	}
}

// unmeasured notes that a process may have used the GPU and ended, and nobody knows.
func (t table) unmeasured(d gpu.Device) {
	for p, one := range t {
		if p.device == d.Name {
			one.used.peak.unmeasured = true
		}
	}
}

func (t table) sorted() []usage {
	var all []usage
	for _, one := range t {
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b usage) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.pod, b.pod),
			strings.Compare(a.container, b.container), strings.Compare(a.device, b.device))
	})
	return all
}

// measure adds what containers use.
func (c *Collector) measure(ctx context.Context, gpus inventory.Inventory, pods []listedPod, found table) {
	for i, answer := range c.processes.listAll(ctx, gpus) {
		switch {
		case errors.Is(answer.err, gpu.ErrUnmeasured):
			continue
		case answer.err != nil:
			c.failed(sourceNVML, answer.err)
			continue
		}
		if uses, others, ok := c.attribute(ctx, gpus[i], answer.processes.All, pods); ok {
			found.use(gpus[i], uses)
			found.others(gpus[i], others)
			if !answer.processes.Sampled {
				found.unmeasured(gpus[i])
			}
		}
	}
}

// attribute sums the processes on a GPU by container of these pods. others is the peak of the busiest process of nobody
// knows whom. ok is false if the container of a process could not be determined.
func (c *Collector) attribute(ctx context.Context, d gpu.Device, processes []gpu.Process,
	pods []listedPod) (uses map[containerDevice]*used, others int, ok bool) {
	uses = map[containerDevice]*used{}
	for _, p := range processes {
		if p.Ended {
			others = max(others, p.Peak)
			continue
		}
		uid, container, contained, err := containers.OfProcess(c.Proc, p.PID)
		if err != nil {
			c.failed(sourceProc, err)
			return nil, 0, false
		}
		if !contained {
			others = max(others, p.Peak)
			continue // not in a pod, or it has ended
		}
		pod, ours, err := c.pods.find(ctx, uid, pods)
		if err != nil {
			c.failed(sourcePods, err)
			return nil, 0, false
		}
		if !ours {
			others = max(others, p.Peak)
			continue // not of a pod that has a claim of this driver
		}
		at := containerDevice{pod.namespace, pod.name, container, d.Name}
		if uses[at] == nil {
			uses[at] = &used{}
		}
		uses[at].add(p)
	}
	return uses, others, true
}

// listedPod is a pod in the kubelet's list with containers that have devices of this driver.
type listedPod struct {
	podKey
	containers []listedContainer
}

type listedContainer struct {
	name string
	held []holding // by all claims that it uses
}

// holding is a claim and one of its devices.
type holding struct {
	claim sharing.Claim
	// several is set if the claim has several requests: a container may use only some of them.
	several bool
	sharing.Assignment
}

// list joins the kubelet's list with the records, by CDI device names, which are never reused.
// complete is unset if some records cannot be read.
func (c *Collector) list(ctx context.Context) (pods []listedPod, complete bool, err error) {
	listed, err := podresources.List(ctx, c.Kubelet)
	if err != nil {
		return nil, false, err
	}
	records, unread := c.Records.List()
	if unread != nil {
		c.failed(sourceRecords, unread)
	}
	holdings := byCDIName(records)
	for _, p := range listed {
		pod := listedPod{podKey: podKey{namespace: p.Namespace, name: p.Name}}
		var uids []string
		for _, listed := range p.Containers {
			container := listedContainer{name: listed.Name, held: heldBy(listed, holdings)}
			if len(container.held) == 0 {
				continue
			}
			pod.containers = append(pod.containers, container)
			for _, h := range container.held {
				uids = append(uids, string(h.claim.UID))
			}
		}
		if len(pod.containers) > 0 {
			slices.Sort(uids)
			pod.claims = strings.Join(slices.Compact(uids), " ")
			pods = append(pods, pod)
		}
	}
	return pods, unread == nil, nil
}

func heldBy(c *podresourcesapi.ContainerResources, holdings map[string][]holding) []holding {
	var held []holding
	for _, name := range podresources.CDINames(c) {
		held = append(held, holdings[name]...)
	}
	return held
}

// byCDIName returns what claims hold, by CDI device name. It leaves out the CDI devices that all claims share.
func byCDIName(records []checkpoint.PreparedClaim) map[string][]holding {
	found := map[string][]holding{}
	for _, rec := range records {
		several := slices.ContainsFunc(rec.Plan.Assignments, func(a sharing.Assignment) bool {
			return resourceclaim.BaseRequestRef(a.Request) != resourceclaim.BaseRequestRef(
				rec.Plan.Assignments[0].Request)
		})
		for _, a := range rec.Plan.Assignments {
			for _, name := range a.CDI {
				if strings.Contains(name, string(rec.Claim.UID)) {
					found[name] = append(found[name], holding{rec.Claim, several, a})
				}
			}
		}
	}
	return found
}

// held returns what the container holds. It may use only some requests of a claim.
func (c *Collector) held(ctx context.Context, p listedPod, container listedContainer) ([]holding, error) {
	var held []holding
	for _, h := range container.held {
		if h.several {
			pod, err := c.pods.get(ctx, p)
			if err != nil {
				return nil, err
			}
			if !pod.uses(container.name, h) {
				continue
			}
		}
		held = append(held, h)
	}
	return held, nil
}

// failed counts an error, and logs it unless it is the last one of its source.
func (c *Collector) failed(source string, err error) {
	c.failures.WithLabelValues(source).Inc()
	if text := err.Error(); text != c.logged[source] {
		c.logged[source] = text
		klog.Background().Error(err, "Some metrics of containers are missing", "source", source)
	}
}
