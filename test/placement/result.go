// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The tests.
const (
	testFill  = "fill"  // pods come and stay
	testChurn = "churn" // pods come and go
	testRate  = "rate"  // pods per second
)

// The policies: how the scheduler scores nodes.
const (
	policyDefault = "default" // its own scores alone
	policyPack    = "pack"    // its own, and the controller's
	policySpread  = "spread"
)

// key identifies a run.
type key struct {
	Test   string
	Trace  string
	Policy string // empty: all of them in turn
	Nodes  int
	Seed   uint64
	Load   float64 // of churn
	Pods   int     // of churn: arrivals
}

func (k key) String() string {
	text := fmt.Sprintf("%s-%s-%d-seed%d", k.Test, k.Trace, k.Nodes, k.Seed)
	if k.Policy != "" {
		text += "-" + k.Policy
	}
	if k.Test == testChurn {
		text += fmt.Sprintf("-load%g-%d", k.Load, k.Pods)
	}
	return text
}

// measures are shares, 0 to 1.
type measures struct {
	At100, At130 float64 `json:",omitempty"` // of fill: allocated when this share of the GPUs has been requested
	Served       float64 `json:",omitempty"` // of churn: the placed share of the requested GPUs
}

// result is what a run has measured.
type result struct {
	key
	GPUs    int
	Decided int // pods
	Refused int
	Seconds float64
	When    time.Time

	measures
	// Replay is what a simulation without a scheduler measures for the same trace, policy and seed. Nil: nothing.
	Replay *measures `json:",omitempty"`

	Without, With []float64 `json:",omitempty"` // of rate: pods per second of each batch, without and with the extender

	// Of the controller, in a run with it.
	Fast, Followed float64       `json:",omitempty"` // see controller.counted
	P50, P99       time.Duration `json:",omitempty"` // of answers to a client, after the run
	Memory         int64         `json:",omitempty"` // bytes
}

// rate returns the decisions per second.
func (r result) rate() float64 { return float64(r.Decided) / r.Seconds }

// results is a folder with a file for each run.
type results string

func (dir results) file(k key) string { return filepath.Join(string(dir), k.String()+".json") }

func (dir results) has(k key) bool {
	_, err := os.Stat(dir.file(k))
	return err == nil
}

func (dir results) put(r result) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(string(dir), 0o755), os.WriteFile(dir.file(r.key), text, 0o600))
}

// all returns the results of all runs in the folder, sorted. A missing folder has none.
func (dir results) all() (all []result, err error) {
	files, err := os.ReadDir(string(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(string(dir), f.Name()))
		if err != nil {
			return nil, err
		}
		var r result
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.Test, b.Test), -cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Trace, b.Trace),
			cmp.Compare(a.Load, b.Load), cmp.Compare(a.Seed, b.Seed), cmp.Compare(a.Policy, b.Policy))
	})
	return all, nil
}
