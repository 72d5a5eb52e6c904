// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const (
	// manualXID stays until a person clears the GPU. evictingXID has the effect NoExecute in demo/values.yaml.
	manualXID   = 142
	evictingXID = 79

	taintRounds = 5 // on each GPU
	evictions   = 7
	worker      = "worker" // the Deployment whose pod is evicted

	stormRate  = 1000 // XIDs a second
	stormTime  = time.Minute
	stormBatch = 50 * time.Millisecond // the time between two batches of a storm
	// stormEnd is how long writes are counted after a storm.
	stormEnd = 5 * time.Second

	pluginPort = 8081 // of its metrics
)

// sickness makes simulated GPUs sick and watches the slices for what follows.
type sickness struct {
	*bench
	machine *node.Node
	slices  *sliceWatch
}

// measureHealth times taints and evictions after an XID, and counts what a storm of XIDs writes.
func measureHealth(ctx context.Context, b *bench) (failure error) {
	machine, err := node.Attach(b.process.path(filepath.Dir(driverRoot)))
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	published, err := b.watchSlices(watching)
	if err != nil {
		return err
	}
	s := &sickness{b, machine, published}
	defer func() { failure = errors.Join(failure, s.heal(context.WithoutCancel(ctx))) }()
	for _, measure := range []func(context.Context) error{s.taints, s.evictions, s.storm} {
		if err := errors.Join(b.quiet(ctx), measure(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// emit lets the GPU report an XID, and returns the time just before.
func (s *sickness) emit(device string, xid uint64) (time.Time, error) {
	event, err := s.machine.NewEvent(device, node.EventXID, xid)
	if err != nil {
		return time.Time{}, err
	}
	begin := time.Now()
	return begin, s.machine.Emit(event)
}

// change changes what NVML reports to be wrong with a GPU, written as for "simctl health".
func (s *sickness) change(device, setting string) error {
	change, err := node.ParseHealth([]string{setting})
	if err != nil {
		return err
	}
	return s.machine.ChangeHealth(device, change)
}

// heal makes all GPUs healthy and waits until none has a taint of its health, and no request to clear one is left.
func (s *sickness) heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for _, device := range s.gpus {
		if err := s.change(device, "recovery-action=none"); err != nil {
			return err
		}
	}
	for {
		for _, device := range s.gpus {
			if err := health.RequestClear(s.process.path(pluginDir), device); err != nil {
				return err
			}
		}
		// A discovery that has begun before may still find what was wrong. Then it is cleared again.
		attempt, end := context.WithTimeout(ctx, 3*time.Second)
		_, err := s.slices.until(attempt, "healthy GPUs", func(w *sliceWatch) bool { return w.count(sick) == 0 })
		late := attempt.Err() != nil
		end()
		if err == nil {
			break
		}
		if ctx.Err() != nil || !late {
			return err
		}
	}
	return until(ctx, "the plugin to clear all GPUs", func() (bool, error) {
		return !slices.ContainsFunc(s.gpus, func(device string) bool {
			return health.ClearRequested(s.process.path(pluginDir), device)
		}), nil
	})
}

// taints times taints of GPUs that no claim holds, each GPU in turn.
func (s *sickness) taints(ctx context.Context) error {
	var first, all samples
	for range taintRounds {
		for _, device := range s.gpus {
			// Not in step with the plugin's clock, which ticks every second.
			if err := sleep(ctx, 300*time.Millisecond+rand.N(time.Second)); err != nil {
				return err
			}
			one, every, err := s.taint(ctx, device)
			if err != nil {
				return err
			}
			first, all = append(first, one), append(all, every)
		}
		if err := s.heal(ctx); err != nil {
			return err
		}
	}
	s.results["taint"] = []float64{first.p50(), first.at(0.99)}
	s.results["taintparts"] = []float64{all.p50(), all.at(0.99)}
	return nil
}

// taint returns the times from an XID until the watch shows the taint on the GPU, and on it and all of its partitions.
func (s *sickness) taint(ctx context.Context, device string) (first, all time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if err := s.slices.drain(); err != nil {
		return 0, 0, err
	}
	begin, err := s.emit(device, manualXID)
	if err != nil {
		return 0, 0, err
	}
	one, err := s.slices.until(ctx, "the taint of "+device, func(w *sliceWatch) bool { return w.tainted(device) })
	if err != nil {
		return 0, 0, err
	}
	every, err := s.slices.until(ctx, "the taints of the partitions of "+device, func(w *sliceWatch) bool {
		return w.count(func(d resourceapi.Device) bool {
			return gpu.ParentName(d.Name) == device && !hasTaint(d, inventory.TaintXID)
		}) == 0
	})
	return one.Sub(begin), every.Sub(begin), err
}

// evictions times the replacement of the pod of a Deployment, whose GPU gets an XID that evicts.
func (s *sickness) evictions(ctx context.Context) error {
	if err := s.template(ctx); err != nil {
		return err
	}
	pod, err := s.deploy(ctx)
	if err != nil {
		return err
	}
	var whole, own, taint, evict, bind, run samples
	for range evictions {
		e, err := s.evict(ctx, pod)
		if err != nil {
			return err
		}
		whole, own = append(whole, e.running.Sub(e.begin)), append(own, e.tainted.Sub(e.begin)+e.prepare)
		taint, evict = append(taint, e.tainted.Sub(e.begin)), append(evict, e.deleted.Sub(e.tainted))
		bind, run = append(bind, e.bound.Sub(e.deleted)), append(run, e.running.Sub(e.bound))
		pod = e.next
		if err := errors.Join(s.heal(ctx), s.oneClaim(ctx), s.quiet(ctx)); err != nil {
			return err
		}
	}
	s.results["evict"], s.results["evictown"] = []float64{whole.p50()}, []float64{own.p50()}
	s.results["evictparts"] = []float64{taint.p50(), evict.p50(), bind.p50(), run.p50()}
	deployments := s.client.AppsV1().Deployments(s.ns)
	background := metav1.DeletePropagationBackground
	if err := deployments.Delete(ctx, worker, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	return s.empty(ctx)
}

// deploy creates a Deployment of one pod with a GPU, and returns the pod when it runs.
func (s *sickness) deploy(ctx context.Context) (*corev1.Pod, error) {
	spec := withClaim(s.pod()).Spec
	spec.RestartPolicy, spec.TerminationGracePeriodSeconds = corev1.RestartPolicyAlways, ptr.To(int64(0))
	labels := map[string]string{"app": worker}
	if _, err := s.client.AppsV1().Deployments(s.ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: worker},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	var running *corev1.Pod
	err := until(ctx, "the pod of the Deployment", func() (bool, error) {
		pods, err := s.client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + worker})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return false, err
		}
		running = &pods.Items[0]
		return true, nil
	})
	return running, errors.Join(err, s.quiet(ctx))
}

// oneClaim waits until only the claim of the current pod is left.
func (s *sickness) oneClaim(ctx context.Context) error {
	return until(ctx, "the claim of the evicted pod to be gone", func() (bool, error) {
		claims, err := s.claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(claims.Items) == 1, err
	})
}

// eviction is what was seen of one: when the XID was reported, when the taint was seen, the pods, and how long the
// plugin took to prepare the next pod's claim, without the claim's GET.
type eviction struct {
	begin, tainted time.Time
	replacement
	prepare time.Duration
}

// evict lets the GPU of the pod report an XID, and waits for a pod on another GPU.
func (s *sickness) evict(ctx context.Context, pod *corev1.Pod) (e eviction, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	device, err := s.deviceOf(ctx, pod)
	if err != nil {
		return e, err
	}
	// Otherwise the XID ends as soon as NVML is asked which recovery the GPU needs.
	if err := s.change(device, "recovery-action=reboot"); err != nil {
		return e, err
	}
	if _, err := s.slices.until(ctx, "the taint of the recovery action", func(w *sliceWatch) bool {
		return w.count(sick) > 0
	}); err != nil {
		return e, err
	}
	_, pods, err := watchNew(ctx, s.client.CoreV1().Pods(s.ns).List, s.client.CoreV1().Pods(s.ns).Watch,
		metav1.ListOptions{LabelSelector: "app=" + worker})
	if err != nil {
		return e, err
	}
	defer pods.Stop()
	before, err := s.prepares(ctx)
	if err := errors.Join(err, s.quiet(ctx), s.slices.drain()); err != nil {
		return e, err
	}
	if e.begin, err = s.emit(device, evictingXID); err != nil {
		return e, err
	}
	tainted := make(chan error, 1)
	go func() {
		var err error
		e.tainted, err = s.slices.until(ctx, "the taint of "+device, func(w *sliceWatch) bool {
			return w.tainted(device)
		})
		tainted <- err
	}()
	seen, err := replaced(ctx, pods.ResultChan(), pod.Name)
	if err := errors.Join(err, <-tainted); err != nil {
		return e, err
	}
	e.replacement = seen
	after, err := s.prepares(ctx)
	if err != nil {
		return e, err
	}
	if after.count == before.count {
		return e, errors.New("the plugin has counted no Prepare during an eviction")
	}
	e.prepare = time.Duration((after.seconds - before.seconds) * float64(time.Second))
	next, err := s.deviceOf(ctx, e.next)
	if err == nil && next == device {
		err = fmt.Errorf("the replacement of the evicted pod is on %s, as before", next)
	}
	return e, err
}

// deviceOf returns the device of the pod's only claim.
func (s *sickness) deviceOf(ctx context.Context, pod *corev1.Pod) (string, error) {
	current, err := s.client.CoreV1().Pods(s.ns).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	statuses := current.Status.ResourceClaimStatuses
	if len(statuses) != 1 || statuses[0].ResourceClaimName == nil {
		return "", fmt.Errorf("pod %s has %d claims, want 1 with a name", pod.Name, len(statuses))
	}
	claim, err := s.claims.Get(ctx, *statuses[0].ResourceClaimName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if claim.Status.Allocation == nil || len(claim.Status.Allocation.Devices.Results) != 1 {
		return "", fmt.Errorf("claim %s of pod %s does not have one device", claim.Name, pod.Name)
	}
	return claim.Status.Allocation.Devices.Results[0].Device, nil
}

// replacement is when a watch showed that a pod was deleted, or was about to be, and that the next one was bound to a
// node and ran.
type replacement struct {
	deleted, bound, running time.Time
	next                    *corev1.Pod
}

// replaced waits until the named pod is deleted and another one runs.
func replaced(ctx context.Context, events <-chan watch.Event, name string) (r replacement, err error) {
	for r.deleted.IsZero() || r.running.IsZero() {
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("wait for the replacement of pod %s: %w", name, ctx.Err())
		case event, open := <-events:
			now := time.Now()
			if !open {
				return r, errors.New("wait for pods: the watch ended")
			}
			pod, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok:
				return r, fmt.Errorf("wait for pods: %w", apierrors.FromObject(event.Object))
			case pod.Name == name:
				if r.deleted.IsZero() && (event.Type == watch.Deleted || pod.DeletionTimestamp != nil) {
					r.deleted = now
				}
				continue
			}
			if r.bound.IsZero() && pod.Spec.NodeName != "" {
				r.bound = now
			}
			if r.running.IsZero() && pod.Status.Phase == corev1.PodRunning {
				r.running, r.next = now, pod
			}
		}
	}
	return r, nil
}

// storm lets a GPU with a prepared claim report the same XID for a minute, and counts what the plugin writes.
func (s *sickness) storm(ctx context.Context) error {
	claims, err := s.allocated(ctx, s.gpu(0))
	if err != nil {
		return err
	}
	err = s.withPrepared(ctx, claims, func() error {
		if err := errors.Join(s.settled(ctx, claims...), s.quiet(ctx)); err != nil {
			return err
		}
		before, err := s.process.memory()
		if err != nil {
			return err
		}
		xids, err := s.metric(ctx, "gpu_dra_gpu_xids_total{")
		if err != nil {
			return err
		}
		written, err := s.written(ctx, func() error {
			return errors.Join(s.emitMany(ctx, s.gpus[0]), sleep(ctx, stormEnd))
		})
		if err != nil {
			return err
		}
		after, err := s.process.memory()
		if err != nil {
			return err
		}
		now, err := s.metric(ctx, "gpu_dra_gpu_xids_total{")
		s.results["storm"] = []float64{written[0] + written[1] + written[2]}
		s.results["stormkinds"] = written[:]
		s.results["stormxids"] = []float64{now - xids}
		s.results["stormrss"] = []float64{before.rss, after.rss}
		return err
	})
	return errors.Join(err, s.deleteClaims(ctx))
}

// emitMany lets the GPU report XIDs at the rate of a storm.
func (s *sickness) emitMany(ctx context.Context, device string) error {
	event, err := s.machine.NewEvent(device, node.EventXID, manualXID)
	if err != nil {
		return err
	}
	begin := time.Now()
	for done, all := 0, int(stormRate*stormTime.Seconds()); done < all; {
		if err := sleep(ctx, stormBatch); err != nil {
			return err
		}
		due := min(all, int(stormRate*time.Since(begin).Seconds()))
		if err := s.machine.Emit(slices.Repeat([]node.Event{event}, due-done)...); err != nil {
			return err
		}
		done = due
	}
	return nil
}

// written counts what is written while do runs: slices of the driver, events of the driver, and claims of the bench. A
// write that changes nothing is in no watch.
func (b *bench) written(ctx context.Context, do func() error) (counts [3]float64, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	_, found, err := b.newSlices(ctx)
	if err != nil {
		return counts, err
	}
	events := b.client.EventsV1().Events(metav1.NamespaceAll)
	_, reported, err := watchNew(ctx, events.List, events.Watch, metav1.ListOptions{})
	if err != nil {
		return counts, err
	}
	_, claims, err := watchNew(ctx, b.claims.List, b.claims.Watch, metav1.ListOptions{})
	if err != nil {
		return counts, err
	}
	kinds := [3]watch.Interface{found, reported, claims}
	var errs [3]error
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		_ = atOnce(len(kinds), len(kinds), func(i int) error {
			counts[i], errs[i] = changes(ctx, kinds[i].ResultChan(), ofDriver)
			return nil
		})
	}()
	err = do()
	stop()
	<-counted
	return counts, errors.Join(err, errors.Join(errs[:]...))
}

// changes counts the objects that were created or changed, of those for which ours returns true, until ctx ends.
func changes(ctx context.Context, events <-chan watch.Event, ours func(runtime.Object) bool) (n float64, err error) {
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case event, open := <-events:
			switch {
			case !open && ctx.Err() != nil:
				return n, nil //nolint:nilerr // the watch ends with the context
			case !open:
				return n, errors.New("count writes: the watch ended")
			case event.Type == watch.Error:
				return n, fmt.Errorf("count writes: %w", apierrors.FromObject(event.Object))
			case event.Type != watch.Deleted && ours(event.Object):
				n++
			}
		}
	}
}

// ofDriver reports whether the object is not an event, or an event of the driver.
func ofDriver(o runtime.Object) bool {
	event, ok := o.(*eventsv1.Event)
	return !ok || event.ReportingController == driver
}

// sliceWatch is a watch of the driver's slices, and what it has shown so far.
type sliceWatch struct {
	events watch.Interface
	slices map[string]*resourceapi.ResourceSlice
	at     time.Time // when the last event came
}

func (b *bench) watchSlices(ctx context.Context) (*sliceWatch, error) {
	list, events, err := b.newSlices(ctx)
	if err != nil {
		return nil, err
	}
	w := &sliceWatch{events: events, slices: map[string]*resourceapi.ResourceSlice{}, at: time.Now()}
	for i := range list.Items {
		w.slices[list.Items[i].Name] = &list.Items[i]
	}
	return w, nil
}

func (b *bench) newSlices(ctx context.Context) (*resourceapi.ResourceSliceList, watch.Interface, error) {
	published := b.client.ResourceV1().ResourceSlices()
	return watchNew(ctx, published.List, published.Watch, metav1.ListOptions{FieldSelector: "spec.driver=" + driver})
}

// watchNew lists objects, and watches what happens after that.
func watchNew[L metav1.ListInterface](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error), o metav1.ListOptions) (L,
	watch.Interface, error) {
	found, err := list(ctx, o)
	if err != nil {
		return found, nil, err
	}
	o.ResourceVersion = found.GetResourceVersion()
	events, err := follow(ctx, o)
	return found, events, err
}

// until waits until is returns true, and returns the time of the event that made it so.
func (w *sliceWatch) until(ctx context.Context, what string, is func(*sliceWatch) bool) (time.Time, error) {
	for !is(w) {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case event := <-w.events.ResultChan():
			if err := w.take(event); err != nil {
				return time.Time{}, fmt.Errorf("wait for %s: %w", what, err)
			}
		}
	}
	return w.at, nil
}

// drain takes the events that have come since the last wait.
func (w *sliceWatch) drain() error {
	for {
		select {
		case event := <-w.events.ResultChan():
			if err := w.take(event); err != nil {
				return err
			}
		case <-time.After(50 * time.Millisecond): // the watch has a channel without a buffer
			return nil
		}
	}
}

// take applies an event; the zero event means that the watch has ended.
func (w *sliceWatch) take(event watch.Event) error {
	w.at = time.Now()
	if event.Object == nil {
		return errors.New("the watch ended")
	}
	slice, ok := event.Object.(*resourceapi.ResourceSlice)
	if !ok {
		return apierrors.FromObject(event.Object)
	}
	if event.Type == watch.Deleted {
		delete(w.slices, slice.Name)
	} else {
		w.slices[slice.Name] = slice
	}
	return nil
}

// count returns the number of devices for which is returns true.
func (w *sliceWatch) count(is func(resourceapi.Device) bool) int {
	n := 0
	for _, slice := range w.slices {
		for _, d := range slice.Spec.Devices {
			if is(d) {
				n++
			}
		}
	}
	return n
}

// tainted reports whether the device has the taint of an XID.
func (w *sliceWatch) tainted(device string) bool {
	return w.count(func(d resourceapi.Device) bool {
		return d.Name == device && hasTaint(d, inventory.TaintXID)
	}) > 0
}

// sick reports whether the device has a taint of its health.
func sick(d resourceapi.Device) bool {
	return hasTaint(d, inventory.TaintXID) || hasTaint(d, inventory.TaintUnhealthy)
}

func hasTaint(d resourceapi.Device, key string) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == key })
}

// prepares are the claims that the plugin has prepared so far, and how long it took for all of them.
type prepares struct{ count, seconds float64 }

func (b *bench) prepares(ctx context.Context) (p prepares, err error) {
	text, err := b.metrics(ctx)
	if err != nil {
		return p, err
	}
	const name, labels = "gpu_dra_operation_duration_seconds", `{operation="prepare"}`
	count, err := sum(text, name+"_count"+labels)
	if err != nil {
		return p, err
	}
	seconds, err := sum(text, name+"_sum"+labels)
	return prepares{count, seconds}, err
}

// metric returns the sum of the plugin's series that begin with prefix.
func (b *bench) metric(ctx context.Context, prefix string) (float64, error) {
	text, err := b.metrics(ctx)
	if err != nil {
		return 0, err
	}
	return sum(text, prefix)
}

// metrics returns the plugin's metrics as text.
func (b *bench) metrics(ctx context.Context) (string, error) {
	client := &http.Client{Timeout: soon, Transport: &http.Transport{DialContext: b.process.dialNetwork,
		DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d/metrics", pluginPort), nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("read the plugin's metrics: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("read the plugin's metrics: %s: %s", answer.Status, text)
	}
	return string(text), err
}

// sum adds up the series of the metrics that begin with prefix; none is 0.
func sum(text, prefix string) (total float64, err error) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", prefix, err)
		}
		total += value
	}
	return total, nil
}
