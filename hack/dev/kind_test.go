// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestKindHasTheSameProfiles checks that the cluster of make kind-up has the profiles of make test-e2e, which the tests
// expect.
func TestKindHasTheSameProfiles(t *testing.T) {
	text, err := os.ReadFile("../../test/kind/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Nodes []struct {
			Role   string
			Labels map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, node := range config.Nodes {
		if node.Role == "worker" {
			got = append(got, node.Labels[profileLabel])
		}
	}
	slices.Sort(got)
	if want := slices.Sorted(maps.Values(e2eCluster.profiles)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
