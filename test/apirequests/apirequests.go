// SPDX-License-Identifier: Apache-2.0

// Package apirequests counts what an API server has answered, for programs and tests that measure.
package apirequests

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// Counts has the number of requests by verb and resource, such as "POST pods". Dry runs are separate, as "POST
// resourceslices dry run", and failed requests too, as "POST pods failed".
type Counts map[string]int

// Read returns what the API server has answered since its start.
func Read(ctx context.Context, client rest.Interface) (Counts, error) {
	text, err := metrics(ctx, client)
	if err != nil {
		return nil, err
	}
	return parse(text)
}

// FailedOpen returns how many requests the API server has admitted since its start without an answer of the webhook,
// which did not answer in time and is not required.
func FailedOpen(ctx context.Context, client rest.Interface, webhook string) (int, error) {
	text, err := metrics(ctx, client)
	if err != nil {
		return 0, err
	}
	return failedOpen(text, webhook)
}

func metrics(ctx context.Context, client rest.Interface) ([]byte, error) {
	text, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return text, nil
}

func parse(text []byte) (Counts, error) {
	all := Counts{}
	return all, eachCounter(text, "apiserver_request_total", func(m *dto.Metric, value int) { all[key(m)] += value })
}

func failedOpen(text []byte, webhook string) (n int, err error) {
	err = eachCounter(text, "apiserver_admission_webhook_fail_open_count", func(m *dto.Metric, value int) {
		if labelsOf(m)["name"] == webhook {
			n += value
		}
	})
	return n, err
}

// eachCounter calls do with each series of a counter, and its value.
func eachCounter(text []byte, name string, do func(m *dto.Metric, value int)) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("read the API server's metrics: %w", err)
	}
	for _, m := range families[name].GetMetric() {
		do(m, int(m.GetCounter().GetValue()))
	}
	return nil
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

func key(m *dto.Metric) string {
	labels := labelsOf(m)
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

// Since returns the requests that are not in before.
func (c Counts) Since(before Counts) Counts {
	out := Counts{}
	for name, n := range c {
		if n -= before[name]; n > 0 {
			out[name] = n
		}
	}
	return out
}

// Writes returns the number of requests that have stored something of the resources, such as "pods" and "pods/status".
func (c Counts) Writes(resources ...string) (n int) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE"} {
		for _, resource := range resources {
			n += c[verb+" "+resource]
		}
	}
	return n
}

// Of returns the number of requests with these verbs for a resource and its subresources, also of those that failed and
// of dry runs.
func (c Counts) Of(resource string, verbs ...string) (n int) {
	for name, count := range c {
		verb, of, _ := strings.Cut(name, " ")
		rest, ok := strings.CutPrefix(of, resource)
		if ok && (rest == "" || strings.ContainsAny(rest[:1], "/ ")) && slices.Contains(verbs, verb) {
			n += count
		}
	}
	return n
}
