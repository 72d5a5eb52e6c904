// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/claims"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const (
	// figuresAge is how old figures may be: whoever asks more often gets those of before.
	figuresAge = 5 * time.Second
	// figuresTimeout is how long figures may take. Prometheus waits 10 s for all metrics together, unless told otherwise.
	figuresTimeout = 5 * time.Second
)

// Who is asked for figures: the values of the label "source".
const (
	sourceKubelet = "kubelet" // which containers there are and what they have
	sourceRecords = "records" // of claims
	sourcePods    = "pods"    // of the API server
	sourceNVML    = "nvml"    // which processes use a GPU
	sourceProc    = "proc"    // whose processes they are
)

// place is one container and one GPU.
type place struct {
	namespace, pod, container string
	device                    string // its name
}

// figure is what a container has of a GPU.
type figure struct {
	place
	gpu       gpu.Device
	requested *requested // nil: nothing, it may be there to look after the GPU
	used      *used      // nil: nobody knows
}

type requested struct {
	memory uint64
	cores  int // percent
}

// used is what processes use; a figure is gpu.Unmeasured when that of one of them is.
type used struct {
	memory      int64
	utilization int // percent
}

func (u *used) add(p gpu.Process) {
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

// figures finds out, when somebody asks for metrics, what the containers of the node have asked for of GPUs, and what they use. A
// container that the kubelet does not list any more has no figures.
type figures struct {
	kubelet   string // socket of the kubelet's pod resources
	records   claims.Records
	inventory func() inventory.Inventory
	pods      podCache
	usage     *usage // nil: what containers use is not measured
	node      string
	// gpuManagerNames adds the metrics of gpu-manager.
	gpuManagerNames bool
	failures        *prometheus.CounterVec // source

	mu   sync.Mutex
	at   time.Time
	last []figure
	said map[string]string // the last problem of each source that was logged, so that it is logged once
}

func newFigures(c Config, inv func() inventory.Inventory, m *metrics) *figures {
	f := &figures{
		kubelet:         c.PodResources,
		records:         c.Records,
		inventory:       inv,
		pods:            podCache{client: c.Client},
		node:            c.NodeName,
		gpuManagerNames: c.GPUManagerNames,
		failures:        m.figureFailures,
		said:            map[string]string{},
	}
	if c.Processes != nil {
		f.usage = &usage{processes: c.Processes, proc: c.Proc, asking: map[gpu.UUID]bool{}}
	}
	return f
}

// current are the figures of now, or those that somebody else has just got.
func (f *figures) current() []figure {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) >= figuresAge {
		ctx, cancel := context.WithTimeout(context.Background(), figuresTimeout)
		defer cancel()
		f.last = f.look(ctx)
		f.at = time.Now()
	}
	return f.last
}

// look leaves out what it cannot find out: no figure is better than a wrong one.
func (f *figures) look(ctx context.Context) []figure {
	pods, err := f.list(ctx)
	if err != nil {
		f.failed(sourceKubelet, err)
		return nil
	}
	f.pods.keep(pods)
	inv := f.inventory()
	found := figureTable{}
	for _, pod := range pods {
		for _, c := range pod.containers {
			held, err := f.held(ctx, pod, c)
			if err != nil {
				f.failed(sourcePods, err)
				continue
			}
			for _, h := range held {
				found.request(place{pod.namespace, pod.name, c.name, h.Device}, h.Assignment, inv)
			}
		}
	}
	if f.usage != nil && len(pods) > 0 {
		f.measure(ctx, found.users(inv), pods, found)
	}
	return found.sorted()
}

// figureTable is figures that are being put together.
type figureTable map[place]*figure

func (t figureTable) at(p place, d gpu.Device) *figure {
	if t[p] == nil {
		t[p] = &figure{place: p, gpu: d}
	}
	return t[p]
}

// request adds what is held at the place. A container may hold several shares of a GPU.
func (t figureTable) request(p place, a sharing.Assignment, inv inventory.Inventory) {
	d, known := inv.Find(a.Device)
	memory, cores, ok := a.Part(d)
	if a.AdminAccess || !known || !ok {
		return
	}
	if a.Partition != nil {
		d.UUID = a.Partition.UUID // the place for it has its name there
	}
	one := t.at(p, d)
	if one.requested == nil {
		one.requested = &requested{}
	}
	one.requested.memory += memory
	one.requested.cores += cores
}

// users are the devices whose processes are to be asked for: partitions that containers have, and all GPUs without such. A GPU lists
// the processes of its partitions, too.
func (t figureTable) users(inv inventory.Inventory) inventory.Inventory {
	var partitions inventory.Inventory
	divided := map[string]bool{}
	for _, one := range t {
		if _, known := partitions.Find(one.device); one.gpu.Partition != nil && !known {
			partitions = append(partitions, one.gpu)
			divided[gpu.ParentName(one.device)] = true
		}
	}
	whole := slices.DeleteFunc(inv.Present(), func(d gpu.Device) bool { return divided[d.Name] })
	return append(whole, partitions...)
}

// use sets what containers use of the GPU. One that has it and no process on it uses nothing.
func (t figureTable) use(d gpu.Device, uses map[place]*used) {
	for p, one := range t {
		if p.device == d.Name {
			one.used = &used{}
		}
	}
	for p, u := range uses {
		t.at(p, d).used = u
	}
}

func (t figureTable) sorted() []figure {
	var all []figure
	for _, one := range t {
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b figure) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.pod, b.pod),
			strings.Compare(a.container, b.container), strings.Compare(a.device, b.device))
	})
	return all
}

// measure adds what is used.
func (f *figures) measure(ctx context.Context, gpus inventory.Inventory, pods []listedPod, found figureTable) {
	for i, answer := range f.usage.ask(ctx, gpus) {
		switch {
		case errors.Is(answer.err, gpu.ErrUnmeasured):
			continue
		case answer.err != nil:
			f.failed(sourceNVML, answer.err)
			continue
		}
		if uses, ok := f.attribute(ctx, gpus[i], answer.processes, pods); ok {
			found.use(gpus[i], uses)
		}
	}
}

// attribute sums what the containers of these pods use of a GPU. ok is false when whose a process is could not be found out.
func (f *figures) attribute(ctx context.Context, d gpu.Device, processes []gpu.Process, pods []listedPod) (uses map[place]*used, ok bool) {
	uses = map[place]*used{}
	for _, p := range processes {
		uid, container, contained, err := f.usage.containerOf(p.PID)
		if err != nil {
			f.failed(sourceProc, err)
			return nil, false
		}
		if !contained {
			continue // not of a pod, or it has ended
		}
		pod, ours, err := f.pods.find(ctx, uid, pods)
		if err != nil {
			f.failed(sourcePods, err)
			return nil, false
		}
		if !ours {
			continue // not of a pod that has a claim of this driver
		}
		at := place{pod.namespace, pod.name, container, d.Name}
		if uses[at] == nil {
			uses[at] = &used{}
		}
		uses[at].add(p)
	}
	return uses, true
}

// listedPod is a pod of the kubelet's list with containers that have devices of this driver.
type listedPod struct {
	podKey
	containers []listedContainer
}

type listedContainer struct {
	name string
	held []holding // of all claims that it uses
}

// holding is a claim and one of its devices.
type holding struct {
	claim sharing.Claim
	// several is true when the claim has several requests: a container may use some of them.
	several bool
	sharing.Assignment
}

// list joins what the kubelet lists with the records, by the names of CDI devices, which are unique for ever.
func (f *figures) list(ctx context.Context) ([]listedPod, error) {
	listed, err := podResources(ctx, f.kubelet)
	if err != nil {
		return nil, err
	}
	records, err := f.records.List()
	if err != nil {
		f.failed(sourceRecords, err)
	}
	holdings := byCDIName(records)
	var pods []listedPod
	for _, p := range listed {
		pod := listedPod{podKey: podKey{namespace: p.Namespace, name: p.Name}}
		var uids []string
		for _, c := range p.Containers {
			container := listedContainer{name: c.Name, held: heldBy(c, holdings)}
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
	return pods, nil
}

func heldBy(c *podresources.ContainerResources, holdings map[string][]holding) []holding {
	var held []holding
	for _, name := range cdiNames(c) {
		held = append(held, holdings[name]...)
	}
	return held
}

// byCDIName is what claims hold, by the name of the CDI device that stands for it. What all claims have in common is left out.
func byCDIName(records []checkpoint.Record) map[string][]holding {
	found := map[string][]holding{}
	for _, rec := range records {
		if len(rec.Grants) != len(rec.Plan.Assignments) {
			continue // not granted yet
		}
		several := slices.ContainsFunc(rec.Plan.Assignments, func(a sharing.Assignment) bool {
			return mainRequest(a.Request) != mainRequest(rec.Plan.Assignments[0].Request)
		})
		for i, g := range rec.Grants {
			for _, name := range g.CDI {
				if strings.Contains(name, string(rec.Claim.UID)) {
					found[name] = append(found[name], holding{rec.Claim, several, rec.Plan.Assignments[i]})
				}
			}
		}
	}
	return found
}

// held is what the container holds: of a claim with several requests it may have named some.
func (f *figures) held(ctx context.Context, p listedPod, c listedContainer) ([]holding, error) {
	var held []holding
	for _, h := range c.held {
		if h.several {
			pod, err := f.pods.get(ctx, p)
			if err != nil {
				return nil, err
			}
			if !pod.uses(c.name, h) {
				continue
			}
		}
		held = append(held, h)
	}
	return held, nil
}

// mainRequest is the request of which the given one may be an alternative.
func mainRequest(name string) string {
	main, _, _ := strings.Cut(name, "/")
	return main
}

// failed counts, and logs what lasts once.
func (f *figures) failed(source string, err error) {
	f.failures.WithLabelValues(source).Inc()
	if text := err.Error(); text != f.said[source] {
		f.said[source] = text
		klog.Background().Error(err, "Some metrics of containers are missing", "source", source)
	}
}
