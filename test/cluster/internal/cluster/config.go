// SPDX-License-Identifier: Apache-2.0

// Package cluster starts, uses and removes clusters. Packages controlplane and node decide what runs where; package
// machine runs it. Files: config (user options), place (paths), up, down, use (exec, load, logs), control (stop and
// start programs, pause), power (node crash and boot), status, api (waiting for the API server).
package cluster

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/network"
	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/node"
)

// ProfileLabel selects the profile of a node's simulated GPUs.
const ProfileLabel = "gpu.nvidia.com/sim-profile"

// Config holds the user's options.
type Config struct {
	Nodes         int               `json:"nodes"`
	Kubernetes    string            `json:"kubernetes,omitempty"` // see components.Cache.Kubernetes
	Profiles      map[string]string `json:"profiles,omitempty"`   // by node name
	FeatureGates  map[string]bool   `json:"featureGates,omitempty"`
	RuntimeConfig map[string]string `json:"runtimeConfig,omitempty"` // by group/version
	Audit         []string          `json:"audit,omitempty"`         // users whose requests are logged

	SchedulerConfig  string `json:"schedulerConfig,omitempty"` // see controlplane.CompleteSchedulerConfig
	SchedulerVModule string `json:"schedulerVModule,omitempty"`
}

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	profileForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

// CheckName returns an error if the name is not valid for a cluster.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("cluster name %q: want at most 32 lower-case letters, digits and hyphens, a letter or "+
			"digit at both ends", name)
	}
	return nil
}

// NewConfig parses command-line values. It reports every problem.
func NewConfig(nodes int, profiles, gates, runtimeConfig []string) (Config, error) {
	c := Config{Nodes: nodes}
	var problems []error
	if nodes < 1 || nodes > network.MaxNodes {
		problems = append(problems, fmt.Errorf("nodes: want 1 to %d, got %d", network.MaxNodes, nodes))
	}
	pairs := func(flag string, items []string) map[string]string {
		values, err := parsePairs(items)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", flag, err))
		}
		return values
	}
	c.Profiles = pairs("profile", profiles)
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		if !c.has(name) {
			problems = append(problems, fmt.Errorf("profile: there is no node %s among %d", name, nodes))
		}
		if !profileForm.MatchString(c.Profiles[name]) {
			problems = append(problems, fmt.Errorf("profile: %q of %s cannot be the value of a label", c.Profiles[name],
				name))
		}
	}
	c.RuntimeConfig = pairs("runtime-config", runtimeConfig)
	on := pairs("feature-gates", gates)
	for _, name := range slices.Sorted(maps.Keys(on)) {
		value, err := strconv.ParseBool(on[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("feature-gates: %s is %q, want true or false", name, on[name]))
			continue
		}
		if c.FeatureGates == nil {
			c.FeatureGates = map[string]bool{}
		}
		c.FeatureGates[name] = value
	}
	return c, errors.Join(problems...)
}

func (c Config) has(name string) bool {
	for i := range c.Nodes {
		if node.Name(i+1) == name {
			return true
		}
	}
	return false
}

// labels returns the labels of the named node.
func (c Config) labels(name string) map[string]string {
	if profile, ok := c.Profiles[name]; ok {
		return map[string]string{ProfileLabel: profile}
	}
	return nil
}

// parsePairs parses KEY=VALUE items; nil if there are none. A key must not have two different values.
func parsePairs(items []string) (map[string]string, error) {
	var values map[string]string
	for _, item := range items {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("%q: want KEY=VALUE", item)
		}
		if before, twice := values[key]; twice && before != value {
			return nil, fmt.Errorf("%s is both %q and %q", key, before, value)
		}
		if values == nil {
			values = map[string]string{}
		}
		values[key] = value
	}
	return values, nil
}
