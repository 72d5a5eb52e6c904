// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// pluginPort is the port of the plugin's metrics.
const pluginPort = 8081

// prepareMetric counts the claims that the plugin has prepared.
const prepareMetric = `gpu_dra_operation_duration_seconds{operation="prepare"}`

// counted is how often a histogram has counted something, and how long it took in all.
type counted struct{ count, seconds float64 }

// histogram reads a histogram, named with its first labels.
func histogram(text, metric string) (h counted, err error) {
	name, labels, _ := strings.Cut(metric, "{")
	if h.count, err = sum(text, name+"_count{"+labels); err != nil {
		return h, err
	}
	h.seconds, err = sum(text, name+"_sum{"+labels)
	return h, err
}

// prepares returns the claims that the plugin has prepared so far.
func (b *bench) prepares(ctx context.Context) (counted, error) {
	text, err := b.metrics(ctx)
	if err != nil {
		return counted{}, err
	}
	return histogram(text, prepareMetric)
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
