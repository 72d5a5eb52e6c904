// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Share is the weight of a profile among a fleet's nodes.
type Share struct {
	Profile string
	Weight  int
}

// maxWeight prevents overflow of sums of weights.
const maxWeight = 1_000_000

// ParseShares parses command-line values: "dgx-h100=2", or "dgx-h100" for a weight of 1. It reports every problem.
func ParseShares(items []string) ([]Share, error) {
	var shares []Share
	var problems []error
	for _, item := range items {
		profile, text, weighted := strings.Cut(item, "=")
		weight := 1
		if weighted {
			var err error
			if weight, err = strconv.Atoi(text); err != nil || weight < 1 || weight > maxWeight {
				problems = append(problems, fmt.Errorf("profile %q: want PROFILE or PROFILE=WEIGHT, the weight a "+
					"whole number from 1 to %d", item, maxWeight))
				continue
			}
		}
		if _, err := readProfile(profile); err != nil {
			problems = append(problems, err)
			continue
		}
		if slices.ContainsFunc(shares, func(s Share) bool { return s.Profile == profile }) {
			problems = append(problems, fmt.Errorf("profile %s: it has a weight already", profile))
			continue
		}
		shares = append(shares, Share{profile, weight})
	}
	return shares, errors.Join(problems...)
}

// MaxSpread is the maximum number of nodes of Spread.
const MaxSpread = 9999

// Spread returns count nodes named fleet-0001, fleet-0002, … Each gets the profile that is furthest behind its share,
// so the first nodes of a fleet have about the same proportions. The result is deterministic.
func Spread(count int, shares []Share, cpu, memory resource.Quantity) ([]Node, error) {
	if count < 1 || count > MaxSpread {
		return nil, fmt.Errorf("nodes: want 1 to %d, got %d", MaxSpread, count)
	}
	if len(shares) == 0 {
		return nil, errors.New("nodes: no profile to give them")
	}
	total := 0
	for _, s := range shares {
		total += s.Weight
	}
	given := make([]int, len(shares))
	var nodes []Node
	for i := 1; i <= count; i++ {
		next, furthest := 0, 0
		for j, s := range shares {
			if behind := i*s.Weight - given[j]*total; j == 0 || behind > furthest {
				next, furthest = j, behind
			}
		}
		given[next]++
		nodes = append(nodes, Node{Name: fmt.Sprintf("fleet-%04d", i), Profile: shares[next].Profile, CPU: cpu,
			Memory: memory})
	}
	return nodes, nil
}
