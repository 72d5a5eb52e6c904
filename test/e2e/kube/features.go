// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpudra/gpu-dra-driver/test/apirequests"
)

// feature is the API server's metric of a feature gate.
var feature = regexp.MustCompile(`^kubernetes_feature_enabled\{name="([^"]+)".*\} 1$`)

// since are the versions before which a gate is not enough for the driver. Kubernetes 1.34 finds no GPU with shares as
// long as the first of a node is taken. It wants counters and the devices that use them in one slice, and the driver
// publishes them apart. It never frees the GPUs of pods that ask for an extended resource, so the chart's classes have
// none there. A claim for all GPUs ends the schedulers of the first patches of 1.35 and 1.36 if there are counters.
// Of several versions, each but the last is for its minor version.
var since = map[string][]string{"DRAConsumableCapacity": {"1.35.0"}, "DRAExtendedResource": {"1.35.0"},
	"DRAPartitionableDevices": {"1.35.6", "1.36.2"}}

// missing returns the version that brings what these versions have brought, if the server is older; nil: it is not.
func missing(server *version.Version, since []string) *version.Version {
	for _, text := range since {
		v := version.MustParseGeneric(text)
		if server.LessThan(v) {
			return v
		}
		if server.Minor() == v.Minor() {
			return nil
		}
	}
	return nil
}

// Lacks returns which of the feature gates the API server does not have, or has switched off. A gate may also be a
// version, as "Kubernetes 1.36"; of several that the API server does not reach, the result has the newest.
func (c *Cluster) Lacks(ctx context.Context, gates ...string) ([]string, error) {
	if len(gates) == 0 {
		return nil, nil
	}
	is, err := c.set.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("read the version of the API server: %w", err)
	}
	server, err := version.ParseGeneric(is.GitVersion)
	if err != nil {
		return nil, err
	}
	text, err := c.set.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	on := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if found := feature.FindStringSubmatch(lines.Text()); found != nil {
			on[found[1]] = true
		}
	}
	if len(on) == 0 {
		return nil, errors.New("the metrics of the API server name no feature gates")
	}
	var lacks []string
	least := server
	for _, gate := range gates {
		if v := missing(server, since[gate]); v != nil && on[gate] {
			if least.LessThan(v) {
				least = v
			}
			continue
		}
		if text, isVersion := strings.CutPrefix(gate, "Kubernetes "); isVersion {
			if v := version.MustParseGeneric(text); least.LessThan(v) {
				least = v
			}
		} else if !on[gate] {
			lacks = append(lacks, gate)
		}
	}
	if least != server {
		lacks = append(lacks, "Kubernetes "+strings.TrimSuffix(least.String(), ".0"))
	}
	return lacks, nil
}

// FailedOpen returns how many requests the API server has admitted without an answer of the webhook: see apirequests.
func (c *Cluster) FailedOpen(ctx context.Context, webhook string) (int, error) {
	return apirequests.FailedOpen(ctx, c.set.CoreV1().RESTClient(), webhook)
}
