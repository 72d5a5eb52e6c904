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
