// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// requests counts what an API server has answered, by verb and resource, such as "POST pods". Dry runs are separate, as
// "POST resourceslices dry run", and failed requests too, as "POST pods failed".
type requests map[string]int

// requests returns what the API server has answered since its start.
func (l *lab) requests(ctx context.Context) (requests, error) {
	text, err := l.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	all := requests{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		all[key(m)] += int(m.GetCounter().GetValue())
	}
	return all, nil
}

func key(m *dto.Metric) string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	name := labels["verb"] + " " + labels["resource"]
	if sub := labels["subresource"]; sub != "" {
		name += "/" + sub
	}
	if labels["dry_run"] != "" {
		name += " dry run"
	}
	if labels["code"] >= "300" {
		name += " failed"
	}
	return name
}

// since returns the requests that are not in before.
func (r requests) since(before requests) requests {
	out := requests{}
	for name, n := range r {
		if n -= before[name]; n > 0 {
			out[name] = n
		}
	}
	return out
}

// writes returns the number of requests that have stored something of the resources, such as "pods" and "pods/status".
func (r requests) writes(resources ...string) (n int) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE"} {
		for _, resource := range resources {
			n += r[verb+" "+resource]
		}
	}
	return n
}

// latency asks for a namespace again and again until stop is called, which returns the time of each answer, sorted. A
// namespace is as small as objects are.
func latency(ctx context.Context, client kubernetes.Interface) (stop func() ([]time.Duration, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var took []time.Duration
	done := make(chan error)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			begin := time.Now()
			_, err := client.CoreV1().Namespaces().Get(context.WithoutCancel(ctx), "default", metav1.GetOptions{})
			took = append(took, time.Since(begin))
			if err != nil || ctx.Err() != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return func() ([]time.Duration, error) {
		cancel()
		err := <-done
		slices.Sort(took)
		return took, err
	}
}

// at returns a quantile of sorted times in milliseconds.
func at(took []time.Duration, quantile float64) float64 {
	return 1000 * took[int(float64(len(took)-1)*quantile)].Seconds()
}
