// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"sync"
)

// warnings are what the API server has warned of.
type warnings struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader notes a warning.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	if code != 299 || text == "" { // RFC 7234: a persistent warning, for people
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// Warnings begins to listen; what it returns are the warnings since then.
func (c *Cluster) Warnings() func() []string {
	c.warnings.mu.Lock()
	defer c.warnings.mu.Unlock()
	begin := len(c.warnings.all)
	return func() []string {
		c.warnings.mu.Lock()
		defer c.warnings.mu.Unlock()
		return slices.Clone(c.warnings.all[begin:])
	}
}
