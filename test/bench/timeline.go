// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"slices"
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
	// kubelet or plugin is the histogram in which that component counts it, with the first labels; both empty: what
	// the bench sees.
	kubelet, plugin string
}

const (
	runtimeOperations = "kubelet_runtime_operations_duration_seconds{operation_type="
	dra               = "dra_operations_duration_seconds{is_error=\"false\",operation_name=\"PrepareResources\"}"
	draCalls          = "dra_grpc_operations_duration_seconds{driver_name=\"" + driver +
		"\",grpc_status_code=\"OK\",method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\"}"
)

// phases are the parts of a pod's start, in the order of time, and after them what no part explains.
var phases = []phase{
	{name: "created → bound to the node", colour: "#8da0cb"},
	{name: "kubelet: prepare the claim", colour: "#66c2a5", kubelet: dra},
	{name: "– of that the call of the plugin", kubelet: draCalls},
	{name: "– of that the driver's steps", plugin: prepareMetric},
	{name: "containerd: sandbox", colour: "#fc8d62", kubelet: runtimeOperations + `"run_podsandbox"}`},
	{name: "containerd: create the container", colour: "#e78ac3", kubelet: runtimeOperations + `"create_container"}`},
	{name: "containerd, runc, CDI hooks: start it", colour: "#a6d854",
		kubelet: runtimeOperations + `"start_container"}`},
	{name: "kubelet, API server and volumes between these, until Running is visible", colour: "#cccccc"},
}

// timeline writes where the time of a pod's start goes, without and with a claim, into the page and the picture.
func timeline(ctx context.Context, b *bench, docs, picture string) error {
	if err := b.template(ctx, driver); err != nil {
		return err
	}
	kinds := []func() *corev1.Pod{b.pod, func() *corev1.Pod { return withClaim(b.pod(), driver) }}
	took := make([][]samples, len(kinds)) // of each phase
	for i := range took {
		took[i] = make([]samples, len(phases)+1) // the last is the whole
	}
	for n := range timelinePods + 1 {
		for i, pod := range kinds {
			parts, err := b.podParts(ctx, pod())
			if err != nil {
				return err
			}
			if n == 0 {
				continue // the first ones find nothing warm
			}
			for p, d := range parts {
				took[i][p] = append(took[i][p], d)
			}
		}
	}
	medians := make([][]float64, len(kinds))
	for i := range kinds {
		for _, s := range took[i] {
			medians[i] = append(medians[i], s.p50())
		}
	}
	text := thisMachine(ctx, b) + "\n\n" + timelineTable(medians)
	fmt.Println(text)
	return errors.Join(os.WriteFile(picture, []byte(timelinePicture(medians)), 0o644),
		page.Insert(docs, "make timeline", text))
}

// podParts starts a pod, and returns how long each phase took, and at the end the whole.
func (b *bench) podParts(ctx context.Context, pod *corev1.Pod) ([]time.Duration, error) {
	before, err := b.counted(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*soon)
	defer cancel()
	pods := b.client.CoreV1().Pods(b.ns)
	events, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	defer events.Stop()
	begin := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	isBound, isRunning, err := boundAndRunning(ctx, events)
	if err != nil {
		return nil, err
	}
	after, err := b.counted(ctx)
	if err != nil {
		return nil, err
	}
	parts := make([]time.Duration, len(phases)+1)
	parts[0] = isBound.Sub(begin)
	parts[len(phases)] = isRunning.Sub(begin)
	rest := len(phases) - 1
	parts[rest] = isRunning.Sub(isBound)
	for i, p := range phases {
		if p.kubelet == "" && p.plugin == "" {
			continue
		}
		want := 1.0
		if len(pod.Spec.ResourceClaims) == 0 && p.colour == "" { // a call of the plugin
			want = 0
		}
		if times := after[i].count - before[i].count; times != want {
			return nil, fmt.Errorf("%s: the component counts it %v times for one pod, want %v", p.name, times, want)
		}
		parts[i] = time.Duration((after[i].seconds - before[i].seconds) * float64(time.Second))
		if p.colour != "" {
			parts[rest] -= parts[i]
		}
	}
	return parts, errors.Join(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), b.empty(ctx))
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
	ofKubelet, err := b.client.CoreV1().RESTClient().Get().
		AbsPath("/api/v1/nodes", b.node, "proxy/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's metrics: %w", err)
	}
	all := make([]counted, len(phases))
	for i, p := range phases {
		text, metric := string(ofKubelet), p.kubelet
		if p.plugin != "" {
			text, metric = ofPlugin, p.plugin
		}
		if metric == "" {
			continue
		}
		if all[i], err = histogram(text, metric); err != nil {
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

// timelinePicture draws the phases as bars, one below the other.
func timelinePicture(medians [][]float64) string {
	const left, top, bar, gap, line, width = 120, 16, 34, 14, 20, 760
	longest := slices.Max([]float64{medians[0][len(phases)], medians[1][len(phases)]})
	var body strings.Builder
	y := top
	for i, name := range []string{"without a claim", "with a claim"} {
		fmt.Fprintf(&body, "<text x=\"8\" y=\"%d\">%s</text>\n", y+bar/2+4, name)
		x := float64(left)
		for p, phase := range phases {
			if phase.colour == "" {
				continue
			}
			w := medians[i][p] / longest * width
			fmt.Fprintf(&body, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>%s: %s ms"+
				"</title></rect>\n", x, y, w, bar, phase.colour, html.EscapeString(phase.name),
				formatValues(medians[i][p:p+1]))
			x += w
		}
		fmt.Fprintf(&body, "<text x=\"%.1f\" y=\"%d\">%s ms</text>\n", x+6, y+bar/2+4,
			formatValues(medians[i][len(phases):]))
		y += bar + gap
	}
	for _, phase := range phases {
		if phase.colour == "" {
			continue
		}
		fmt.Fprintf(&body, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>"+
			"<text x=\"%d\" y=\"%d\">%s</text>\n", left, y, phase.colour, left+20, y+11, html.EscapeString(phase.name))
		y += line
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "+
		"font-size=\"13\" role=\"img\">\n<title>Where the time of a pod's start goes, without and with a claim"+
		"</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n",
		left+width+80, y+4, body.String())
}
