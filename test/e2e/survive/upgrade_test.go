//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// every is the period of claims during the upgrade, and within is the maximum duration of each call: the kubelet's
	// timeout. The benchmark measures the speed, which depends on the disk: beside two programs that write,
	// the slowest call took 0.9 s.
	every  = 100 * time.Millisecond
	within = 45 * time.Second
	// slow is a call that is certainly in progress when the old plugin is told to stop.
	slow = 1500 * time.Millisecond
)

// testUpgrade prepares a claim every 100 ms while helm replaces the plugins, which have the old image: with a fake
// kubelet on node-3, and with pods on the other nodes.
func (s *suite) testUpgrade(t *testing.T, image string) {
	ns := s.adminNamespace(t, "upgrade")
	n := s.node("node-3")
	keeper := n.pod(t, ns, "keeper", "")
	s.running(t, keeper)
	sharer := n.share(t, ns, "sharer", "1Gi", runs("gpu-demo", "alloc", "1Gi", "--stay"))
	s.running(t, sharer)
	var clients string
	eventually(t, soon, "a client of MPS", func() string {
		if clients = n.clients(t); clients == "" {
			return "none"
		}
		return ""
	})
	part := n.partition(t, ns, "partition", "")
	s.running(t, part)
	made := n.made(t, part)
	monitor := n.monitor(t, ns, "monitor")
	s.running(t, monitor)
	other := s.node("node-1") // its GPUs can be given to virtual machines
	machine := other.machine(t, ns, "machine")
	s.running(t, machine)
	eventually(t, soon, "the taint of the virtual machine's GPU", func() string {
		for _, name := range other.inPool(t, other.name) {
			if strings.HasPrefix(name, other.device(t, machine)+" ") {
				return ""
			}
		}
		return "it has none"
	})
	goOn := []func(){n.stillRuns(t, keeper), n.stillRuns(t, part), n.stillRuns(t, monitor), other.stillRuns(t, machine)}
	old := n.plugin(t)
	if got := old.Spec.Containers[0].Image; got != image {
		t.Fatalf("got a plugin with image %s before the upgrade, want %s", got, image)
	}
	published := s.keptSlices(t, n.name)
	kubelet := n.fakeKubelet(t)
	defer kubelet.end()

	ctx, finish := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var free []string
	for gpu := range strings.SplitSeq(n.gpus(t), "\n") {
		if gpu != n.device(t, keeper) && gpu != n.device(t, sharer) && gpu != n.parent(t, part) {
			free = append(free, gpu)
		}
	}
	load := &load{kubelet: kubelet}
	for _, gpu := range free[1:] {
		load.idle = append(load.idle, s.allocatedClaim(t, ns, n.name, gpu))
	}
	work.Go(func() { load.run(ctx) })
	n.simctl(t, "slow", free[0], "GetMinorNumber", slow.String())
	slowly := s.allocatedClaim(t, ns, n.name, free[0])
	var slowCalls int
	var slowErr error
	work.Go(func() { slowCalls, slowErr = repeat(ctx, kubelet, slowly) })
	var pods [2]shortPods
	for i := range pods {
		pods[i].name = "short"
		work.Go(func() { pods[i].run(ctx, t, s.node(nodeName(i)), ns) })
	}

	s.install(t)
	s.gone(t, client.ObjectKeyFromObject(old))
	if got := n.plugin(t); got.UID == old.UID || got.Spec.Containers[0].Image == image {
		t.Fatalf("got plugin %s with image %s, want another than %s, with another image", got.UID,
			got.Spec.Containers[0].Image, old.UID)
	}
	finish()
	work.Wait()
	n.simctl(t, "heal", free[0])

	t.Logf("%d claims prepared and released, the slowest call took %s; %d slow ones; %d and %d pods", load.count,
		load.slowest.Round(time.Millisecond), slowCalls, pods[0].count, pods[1].count)
	if len(load.failed) > 0 || load.slowest > within {
		t.Errorf("%d of %d calls failed, the slowest took %s (want at most %s):\n%v", len(load.failed), load.count,
			load.slowest, within, errors.Join(load.failed...))
	}
	if slowErr != nil {
		t.Errorf("a call was cut off after %d: %v", slowCalls, slowErr)
	}
	if len(kubelet.seen) != 2 {
		t.Errorf("registered plugins: got %v, want the old one and the new one", kubelet.seen)
	}
	if got := s.keptSlices(t, n.name); published == "" || got != published {
		t.Errorf("slices were written although no device changed: %s", is(got, published))
	}
	for _, check := range goOn {
		check()
	}
	if got := n.made(t, part); got != made {
		t.Errorf("the partition: %s", is(got, made))
	}
	if got := n.clients(t); got != clients {
		t.Errorf("the client of MPS: %s", is(got, clients))
	}
	s.remove(t, keeper, sharer, part, monitor, machine)
	for i := range pods {
		if err := pods[i].err; err != nil {
			t.Errorf("pods on node-%d: %v", i+1, err)
		}
	}
	for i := range s.profiles {
		s.node(nodeName(i)).clean(t)
	}
}

// keptSlices describes the slices that an upgrade leaves. Since 0.1.0 the slice of the monitor device has another name,
// and there is a counter of memory where GPUs are partitioned: those slices of the node are written, and not replaced.
func (s *suite) keptSlices(t *testing.T, partitioned string) string {
	t.Helper()
	list, err := s.Slices(t.Context(), driver)
	must(t, err)
	var b strings.Builder
	for _, slice := range list {
		switch pool := slice.Spec.Pool; {
		case strings.HasSuffix(pool.Name, "/monitor"):
		case pool.Name == partitioned:
			fmt.Fprintf(&b, "%s %s\n", slice.Name, slice.UID)
		default:
			fmt.Fprintf(&b, "%s %s generation %d resourceVersion %s\n", slice.Name, slice.UID, pool.Generation,
				slice.ResourceVersion)
		}
	}
	return b.String()
}

// stillRuns returns a function that checks that the pod still runs, in the same container and with the same record.
func (n node) stillRuns(t *testing.T, pod client.ObjectKey) func() {
	t.Helper()
	started := n.running(t, pod).Status.ContainerStatuses[0].ContainerID
	record := func() string {
		text, err := json.Marshal(n.record(t, pod))
		must(t, err)
		return string(text)
	}
	before := record()
	return func() {
		t.Helper()
		if got := record(); got != before {
			t.Errorf("the record of %s, which goes on: %s", pod.Name, is(got, before))
		}
		if got := n.running(t, pod).Status.ContainerStatuses[0]; got.ContainerID != started || got.RestartCount != 0 {
			t.Errorf("%s, which goes on: got container %s after %d restarts", pod.Name, got.ContainerID,
				got.RestartCount)
		}
	}
}

// clients returns the MPS clients on the node, each with its PID and its usage, and the supervisors of their daemons.
func (n node) clients(t *testing.T) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(n.simctl(t, "print")) {
		if strings.Contains(line, " process ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n" + n.sh(t, "cat "+pluginDir+"/mps/*/state.json")
}

// allocatedClaim creates a claim with the GPU allocated, as the scheduler would.
func (s *suite) allocatedClaim(t *testing.T, namespace, node, gpu string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "load-" + gpu},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver}}}}},
	}
	must(t, s.Create(t.Context(), claim))
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: node,
				Device: gpu}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn,
				Values: []string{node}}}}}},
	}
	must(t, s.Status().Update(t.Context(), claim))
	return claim
}

// load prepares and releases claims at a constant rate.
type load struct {
	kubelet *fakeKubelet
	idle    []*resourceapi.ResourceClaim

	mu      sync.Mutex
	count   int
	slowest time.Duration
	failed  []error
}

// run starts one claim in each period until ctx ends, and completes those that it has started. A claim that is not
// released in time delays its next start. That does not count: a slow machine serves fewer claims.
func (l *load) run(ctx context.Context) {
	free := make(chan *resourceapi.ResourceClaim, len(l.idle))
	for _, claim := range l.idle {
		free <- claim
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			all.Go(func() {
				claim := <-free
				defer func() { free <- claim }()
				l.cycle(context.WithoutCancel(ctx), claim)
			})
		}
	}
}

// cycle prepares a claim, holds it briefly and releases it.
func (l *load) cycle(ctx context.Context, claim *resourceapi.ResourceClaim) {
	begin := time.Now()
	err := l.kubelet.prepare(ctx, claim)
	l.note("prepare", begin, err)
	time.Sleep(2 * every)
	begin = time.Now()
	err = l.kubelet.unprepare(ctx, claim)
	l.note("unprepare", begin, err)
}

func (l *load) note(what string, begin time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	l.slowest = max(l.slowest, time.Since(begin))
	if err != nil {
		l.failed = append(l.failed, fmt.Errorf("%s %s: %w", time.Now().Format("15:04:05.000"), what, err))
	}
}

// touchDriver makes the plugin read the driver's files and query NVML again, as after a driver update.
func (n node) touchDriver() error {
	return os.Chtimes(n.disk(simDir+"/root/usr/bin"), time.Time{}, time.Now())
}

// repeat prepares and releases one slow claim until ctx ends or a call fails.
func repeat(ctx context.Context, kubelet *fakeKubelet, claim *resourceapi.ResourceClaim) (count int, err error) {
	for ctx.Err() == nil {
		if err := kubelet.n.touchDriver(); err != nil {
			return count, err
		}
		begin := time.Now()
		if err := kubelet.prepare(context.WithoutCancel(ctx), claim); err != nil {
			return count, fmt.Errorf("prepare: %w", err)
		}
		if took := time.Since(begin); took < slow {
			return count, fmt.Errorf("prepare was not slow: it took %s", took)
		}
		if err := kubelet.unprepare(context.WithoutCancel(ctx), claim); err != nil {
			return count, fmt.Errorf("unprepare: %w", err)
		}
		count++
	}
	return count, nil
}

// shortPods are consecutive short-lived pods on the real kubelet.
type shortPods struct {
	name  string // the prefix of their names
	count int
	err   error
}

// run creates pods until ctx ends. No pod may need a retry.
func (p *shortPods) run(ctx context.Context, t *testing.T, n node, namespace string) {
	for ctx.Err() == nil && p.err == nil {
		pod := n.pod(t, namespace, fmt.Sprintf("%s-%s-%d", p.name, n.name, p.count), "", runs("gpu-demo", "show"), once)
		_, err := n.WaitPod(context.WithoutCancel(ctx), soon, pod, "finished",
			func(got *corev1.Pod) bool { return got.Status.Phase == "Succeeded" })
		events, listErr := n.Events(context.WithoutCancel(ctx), pod)
		for _, e := range events {
			if strings.HasPrefix(e, "FailedPrepareDynamicResources") {
				err = errors.Join(err, errors.New(e))
			}
		}
		p.err = errors.Join(err, listErr)
		n.remove(t, pod)
		p.count++
	}
}
