// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpudra/gpu-dra-driver/test/page"
)

// timelinePods is how many pods without a claim, and how many with one, start in turn.
const timelinePods = 20

// phase is a part of a pod's start.
type phase struct {
	name   string
	colour string // in the picture; empty: it is a part of the phase before, and has none
	of     component
	metric string  // the histogram in which the component counts it, with the first labels
	times  float64 // that it counts for one pod with a claim; 0: once
}

// component is what counts a phase.
type component int

const (
	none component = iota // the bench sees it
	kubelet
	plugin
	apiServer
)

const (
	runtimeOperations = "kubelet_runtime_operations_duration_seconds{operation_type="
	dra               = "dra_operations_duration_seconds{is_error=\"false\",operation_name=\"PrepareResources\"}"
	draCalls          = "dra_grpc_operations_duration_seconds{driver_name=\"" + driver +
		"\",grpc_status_code=\"OK\",method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\"}"
	claimGets = `apiserver_request_duration_seconds{component="apiserver",dry_run="",group="resource.k8s.io",` +
		`resource="resourceclaims",scope="resource",subresource="",verb="GET"`
)

// phases are the parts of a pod's start, in the order of time, and after them what no part explains.
var phases = []phase{
	{name: "created → bound to the node", colour: "#8da0cb"},
	{name: "kubelet: prepare the claim", colour: "#66c2a5", of: kubelet, metric: dra},
	{name: "– of that the call of the plugin", of: kubelet, metric: draCalls},
	{name: "– of that the driver's steps", of: plugin, metric: prepareMetric},
	{name: "– API server: the GETs of the claim, by the kubelet and the plugin", of: apiServer, metric: claimGets,
		times: 2},
	{name: "containerd: sandbox", colour: "#fc8d62", of: kubelet, metric: runtimeOperations + `"run_podsandbox"}`},
	{name: "containerd: create the container", colour: "#e78ac3", of: kubelet, metric: runtimeOperations + `"create_container"}`},
	{name: "containerd, runc, CDI hooks: start it", colour: "#a6d854",
		of: kubelet, metric: runtimeOperations + `"start_container"}`},
	{name: "kubelet, API server and volumes between these, until Running is visible", colour: "#cccccc"},
}

// parts is what is known of the start of a pod.
type parts struct {
	phases   []time.Duration // how long each of phases took, and at the end the whole
	programs []ran           // their times are since the pod was created
}

// timeline writes where the time of a pod's start goes, without and with a claim, into the page and the picture.
func timeline(ctx context.Context, b *bench, docs, picture string) error {
	if err := b.template(ctx, driver); err != nil {
		return err
	}
	watched, err := watchPrograms()
	if err != nil {
		return err
	}
	kinds := []func() *corev1.Pod{b.pod, func() *corev1.Pod { return withClaim(b.pod(), driver) }}
	took := make([][]parts, len(kinds))
	for n := range timelinePods + 1 {
		for i, pod := range kinds {
			p, err := b.podParts(ctx, pod(), watched)
			if err != nil {
				return err
			}
			if n > 0 { // the first ones find nothing warm
				took[i] = append(took[i], p)
			}
		}
	}
	medians := make([][]float64, len(kinds))
	for i := range kinds {
		for phase := range len(phases) + 1 {
			var of samples
			for _, p := range took[i] {
				of = append(of, p.phases[phase])
			}
			medians[i] = append(medians[i], of.p50())
		}
	}
	lanes := lanesOf(took)
	text := thisMachine(ctx, b, benchDocs) + "\n\n" + timelineTable(medians) + "\n" + laneTable(lanes)
	fmt.Println(text)
	return errors.Join(os.WriteFile(picture, []byte(timelinePicture(medians, lanes)), 0o644),
		page.Insert(docs, "make timeline", text))
}

// podParts starts a pod, and removes it.
func (b *bench) podParts(ctx context.Context, pod *corev1.Pod, watched *programs) (parts, error) {
	before, err := b.counted(ctx)
	if err != nil {
		return parts{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	pods := b.client.CoreV1().Pods(b.ns)
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return parts{}, err
	}
	defer events.Stop()
	begin, kernelBegin := time.Now(), monotonic()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return parts{}, err
	}
	isBound, isRunning, err := boundAndRunning(ctx, events)
	if err != nil {
		return parts{}, err
	}
	after, err := b.counted(ctx)
	if err != nil {
		return parts{}, err
	}
	took, err := phasesOf(before, after, float64(len(pod.Spec.ResourceClaims)))
	if err != nil {
		return parts{}, err
	}
	took[0] = isBound.Sub(begin)
	took[len(phases)] = isRunning.Sub(begin)
	took[len(phases)-1] += isRunning.Sub(isBound)
	if err := errors.Join(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		b.empty(ctx)); err != nil {
		return parts{}, err
	}
	ran, err := watched.between(kernelBegin, kernelBegin+isRunning.Sub(begin))
	for i := range ran {
		ran[i].begin -= kernelBegin
		ran[i].end -= kernelBegin
	}
	return parts{took, ran}, err
}

// phasesOf returns the phases that components count, and as the last minus the sum of those that are no part of others.
func phasesOf(before, after []counted, claims float64) ([]time.Duration, error) {
	took := make([]time.Duration, len(phases)+1)
	for i, p := range phases {
		if p.of == none {
			continue
		}
		want := max(p.times, 1)
		if p.colour == "" { // a part of preparing a claim
			want *= claims
		}
		if times := after[i].count - before[i].count; times != want {
			return nil, fmt.Errorf("%s: the component counts it %v times for one pod, want %v", p.name, times, want)
		}
		took[i] = time.Duration((after[i].seconds - before[i].seconds) * float64(time.Second))
		if p.colour != "" {
			took[len(phases)-1] -= took[i]
		}
	}
	return took, nil
}

// boundAndRunning returns when the only pod of the watch was bound and when it ran.
func boundAndRunning(ctx context.Context, events watch.Interface) (bound, running time.Time, err error) {
	running, err = await(ctx, events, "a pod", func(pod *corev1.Pod, at time.Time) bool {
		if bound.IsZero() && pod.Spec.NodeName != "" {
			bound = at
		}
		return pod.Status.Phase == corev1.PodRunning
	})
	return bound, running, err
}

// counted reads the histogram of each phase.
func (b *bench) counted(ctx context.Context) ([]counted, error) {
	ofPlugin, err := b.metrics(ctx)
	if err != nil {
		return nil, err
	}
	get := b.client.CoreV1().RESTClient().Get
	ofKubelet, err := get().AbsPath("/api/v1/nodes", b.node, "proxy/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's metrics: %w", err)
	}
	ofServer, err := get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	texts := map[component]string{kubelet: string(ofKubelet), plugin: ofPlugin, apiServer: string(ofServer)}
	all := make([]counted, len(phases))
	for i, p := range phases {
		if p.of == none {
			continue
		}
		if all[i], err = histogram(texts[p.of], p.metric); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func timelineTable(medians [][]float64) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Medians of %d pods each, in milliseconds:\n\n", timelinePods)
	text.WriteString("| | without a claim | with a claim | more |\n|---|---:|---:|---:|\n")
	row := func(name string, i int) {
		without, with := medians[0][i], medians[1][i]
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", name, formatValues([]float64{without}),
			formatValues([]float64{with}), formatValues([]float64{with - without}))
	}
	for i, p := range phases {
		row(p.name, i)
	}
	row("**created → Running**", len(phases))
	return text.String()
}
