// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpudra/gpu-dra-driver/test/controlplane"
	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// controller is the driver's controller, which scores nodes.
type controller struct {
	*controlplane.Controller
	url    string // of the scores, without the verb
	client *http.Client
}

// prioritizeVerb is the last part of the URL of the scores.
const prioritizeVerb = "prioritize"

// startController starts the controller with the policy, and returns when it answers a scheduler.
func startController(ctx context.Context, plane *controlplane.Plane, program, policy string) (*controller, error) {
	c, err := plane.StartController(ctx, program, "--placement="+policy)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	k := &controller{Controller: c, url: c.Webhooks + "/placement", client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair},
			InsecureSkipVerify: true}}}} //nolint:gosec // the certificate is that of another program
	// With the first request it begins to read pods and nodes.
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		_, err := k.ask(ctx, "first", trace.Pod{CPU: 1, Memory: 1}, nil)
		if err == nil {
			return k, nil
		}
		if time.Since(begin) > controlplane.StartTimeout || ctx.Err() != nil {
			k.Stop()
			return nil, fmt.Errorf("the controller does not score nodes: %w; its log is %s", err, k.Log)
		}
	}
}

// extender returns the scheduler's configuration of the controller.
func (k *controller) extender() string {
	return fmt.Sprintf("[{urlPrefix: %q, prioritizeVerb: %s, weight: 1, nodeCacheCapable: true, enableHTTPS: true, "+
		"tlsConfig: {insecure: true, certFile: %q, keyFile: %q}, httpTimeout: 5s}]", k.url, prioritizeVerb, k.CertFile,
		k.KeyFile)
}

// ask sends what a scheduler sends for the pod, and returns the time until all of the answer is here.
func (k *controller) ask(ctx context.Context, name string, p trace.Pod, nodes []string) (time.Duration, error) {
	if nodes == nil {
		nodes = []string{}
	}
	pod := newPod(name, controlplane.DefaultScheduler, p)
	pod.UID = types.UID(name)
	body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: pod, NodeNames: &nodes})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, k.url+"/"+prioritizeVerb, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	answer, err := k.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	return time.Since(begin), err
}

// latency asks for the scores of the nodes for one pod after the other, each with a claim that is not allocated, and
// returns the median and the 99th percentile of the time until the answer.
func (k *controller) latency(ctx context.Context, s *submitter, pods []trace.Pod, nodes []string) (p50,
	p99 time.Duration, err error) {
	const different, questions, period = 100, 1000, 20 * time.Millisecond
	pods = pods[:min(different, len(pods))]
	for i, p := range pods {
		if err := s.claim(ctx, podName("question", i), p); err != nil {
			return 0, 0, err
		}
	}
	time.Sleep(time.Second) // until the controller knows the claims
	var took []time.Duration
	tick := time.NewTicker(period)
	defer tick.Stop()
	for i := range questions {
		<-tick.C
		one, err := k.ask(ctx, podName("question", i%len(pods)), pods[i%len(pods)], nodes)
		if err != nil {
			return 0, 0, err
		}
		took = append(took, one)
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], nil
}

// counted returns what the controller has counted: the share of the scores that took at most 10 ms, and the share of
// the pods that came to the node with the best score.
func (k *controller) counted() (fast, followed float64, err error) {
	answer, err := http.Get(k.Metrics)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return 0, 0, fmt.Errorf("read the controller's metrics: %w", err)
	}
	for _, m := range families["gpu_dra_placement_duration_seconds"].GetMetric() {
		for _, b := range m.GetHistogram().GetBucket() {
			if b.GetUpperBound() == 0.01 {
				fast = float64(b.GetCumulativeCount()) / float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	var all float64
	for _, m := range families["gpu_dra_placement_proposals_total"].GetMetric() {
		n := m.GetCounter().GetValue()
		all += n
		if m.GetLabel()[0].GetValue() == "true" {
			followed = n
		}
	}
	return fast, followed / max(1, all), nil
}
