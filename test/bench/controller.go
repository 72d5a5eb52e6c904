// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
	"github.com/gpudra/gpu-dra-driver/test/fleet"
)

const (
	controllerLabel   = "app.kubernetes.io/component=controller"
	controllerProgram = "dra-controller"
	webhookPort       = 9443

	manyNodes   = 1000
	fleetPrefix = "fleet-" // of the names of these nodes
	rate        = 100      // requests a second
	askFor      = 20 * time.Second
)

// typed are example claims and the webhook for each.
var typed = []struct{ webhook, claim string }{
	{"strongest.",
		`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, allocationMode: ExactCount, count: 1}}]}}`},
	{"validate.", `spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: ExactCount, count: 1, selectors: [{cel: {expression: "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"}}]}}],
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}}}}]}}`},
	{"validate.",
		`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: ExactCount, count: 1, capacity: {requests: {memory: 5Gi, cores: "30"}}}}]}}`},
	{"validate.",
		`spec: {devices: {requests: [{name: part, exactly: {deviceClassName: mig.nvidia.com, allocationMode: ExactCount, count: 2, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]}}]}}`},
}

// measureController calls the webhooks of a controller that knows a large cluster, from the controller's network
// namespace and at a fixed rate, also while earlier calls are pending. It restarts the controller when the whole
// cluster is published, to include the memory of the first list.
func measureController(ctx context.Context, b *bench) error {
	f, err := b.startFleet(ctx, manyNodes, gpu.SharingMode{})
	if err != nil {
		return err
	}
	err = b.admission(ctx)
	if err == nil {
		err = b.published(ctx, f.Size().Slices)
	}
	return errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
}

// startFleet publishes the devices of that many nodes with eight GPUs in that use.
func (b *bench) startFleet(ctx context.Context, nodes int, use gpu.SharingMode) (*fleet.Fleet, error) {
	var all []fleet.Node
	for n := range nodes {
		all = append(all, fleet.Node{Name: fmt.Sprintf("%s%04d", fleetPrefix, n), Profile: "dgx-h100", Use: use})
	}
	return fleet.Start(ctx, b.config, fleet.Config{Nodes: all})
}

// published verifies that all of the fleet's devices are still published: with fewer, the controller has less work.
func (b *bench) published(ctx context.Context, want int) error {
	got := 0
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return b.client.ResourceV1().ResourceSlices().List(ctx, o)
	}
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if slice := o.(*resourceapi.ResourceSlice); strings.HasPrefix(slice.Spec.Pool.Name, fleetPrefix) {
			got++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%d slices of the fleet are published after the measurement, %d before it", got, want)
	}
	return nil
}

func (b *bench) admission(ctx context.Context) error {
	processes, err := findProcesses(ctx, b.client, controllerLabel, controllerProgram)
	if err != nil {
		return err
	}
	// Kill the process instead of the pod: a new pod could be bound to a node of the fleet, which runs no pods.
	for _, p := range processes {
		if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill controller %d: %w", p.pid, err)
		}
	}
	pods := b.client.CoreV1().Pods(namespace)
	err = kube.Until(ctx, 5*time.Minute, "new controllers to know the cluster", func(ctx context.Context) (bool, string,
		error) {
		all, err := pods.List(ctx, metav1.ListOptions{LabelSelector: controllerLabel})
		if err != nil {
			return false, "", err
		}
		ready := 0
		for i := range all.Items {
			if kube.Ready(&all.Items[i]) && all.Items[i].Status.ContainerStatuses[0].RestartCount > 0 {
				ready++
			}
		}
		return ready == len(processes), fmt.Sprintf("%d of %d are ready", ready, len(all.Items)), nil
	})
	if err != nil {
		return err
	}
	if processes, err = findProcesses(ctx, b.client, controllerLabel, controllerProgram); err != nil {
		return err
	}
	took, err := b.ask(ctx, processes[0])
	if err != nil {
		return err
	}
	var most memory
	for _, p := range processes {
		m, err := p.memory()
		if err != nil {
			return err
		}
		most.rss, most.peak = max(most.rss, m.rss), max(most.peak, m.peak)
	}
	b.results["admission"] = []float64{took.at(0.99), took.at(0.5)}
	b.results["controllerrss"], b.results["controllerpeak"] = []float64{most.rss}, []float64{most.peak}
	return nil
}

// ask calls the webhooks at the rate and returns the duration of each call.
func (b *bench) ask(ctx context.Context, p process) (samples, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: p.dialNetwork,
		MaxIdleConnsPerHost: rate, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // only latency is measured
	var bodies [][]byte // prepared before the measurement
	for _, one := range typed {
		body, err := review(one.claim)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	var mu sync.Mutex
	var took samples
	var failures []error
	var wait sync.WaitGroup
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	var paths map[string]string
	for n := range int(askFor.Seconds()) * rate {
		if n%rate == 0 { // they change
			var err error
			if paths, err = b.webhookPaths(ctx); err != nil {
				return nil, err
			}
		}
		now := paths
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		wait.Go(func() {
			one := n % len(typed)
			begin := time.Now()
			err := callWebhook(client, now[typed[one].webhook], bodies[one])
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(begin))
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	wait.Wait()
	if len(failures) > 0 {
		return nil, fmt.Errorf("%d of %d requests failed, the first: %w", len(failures), len(took), failures[0])
	}
	return took, nil
}

// webhookPaths returns the paths that an API server calls, by the first part of the webhook's name.
func (b *bench) webhookPaths(ctx context.Context) (map[string]string, error) {
	const name = "gpu-dra-driver-controller"
	paths := map[string]string{}
	validating, err := b.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	mutating, err := b.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, name,
		metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	add := func(name string, c admissionregistration.WebhookClientConfig) {
		paths[name[:strings.Index(name, ".")+1]] = ptr.Deref(c.Service.Path, "")
	}
	for _, w := range validating.Webhooks {
		add(w.Name, w.ClientConfig)
	}
	for _, w := range mutating.Webhooks {
		add(w.Name, w.ClientConfig)
	}
	return paths, nil
}

// review returns the AdmissionReview of a claim in JSON.
func review(claim string) ([]byte, error) {
	raw, err := yaml.YAMLToJSON([]byte(claim))
	if err != nil {
		return nil, err
	}
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1",
		Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "bench", Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: raw},
			Kind:   metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"}}})
}

// callWebhook calls a webhook for a claim, which it must accept.
func callWebhook(client *http.Client, path string, body []byte) error {
	answer, err := client.Post(fmt.Sprintf("https://127.0.0.1:%d%s", webhookPort, path), "application/json",
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(text, &review); err != nil {
		return err
	}
	if review.Response == nil || !review.Response.Allowed {
		return fmt.Errorf("%s of %s: %s", path, body, text)
	}
	return nil
}
