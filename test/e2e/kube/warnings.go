// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"sync"
)

// warnings collects warnings of the API server.
type warnings struct {
	mu  sync.Mutex
	all []string
}

// HandleWarningHeader records a warning.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	if code != 299 || text == "" { // RFC 7234: a persistent warning, for people
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

// Warnings starts to record; the returned function returns the warnings since then.
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
