// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// pluginsAge is how old the list of the driver's plugins may be when the page asks for use.
const pluginsAge = time.Minute

// usage tells the page what containers use of the GPUs of nodes, from the metrics of the plugins there.
type usage struct {
	client  kubernetes.Interface
	plugins string // label selector

	mu   sync.Mutex
	pods []corev1.Pod
	at   time.Time // of the list
}

// list returns the driver's plugins.
func (u *usage) list(ctx context.Context) ([]corev1.Pod, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.at) > pluginsAge {
		pods, err := pluginPods(ctx, u.client, u.plugins)
		if err != nil {
			return nil, err
		}
		u.pods, u.at = pods, time.Now()
	}
	return u.pods, nil
}

// use answers what containers use of the GPUs of the nodes that the query names.
func (s *pageServer) use(w http.ResponseWriter, r *http.Request) {
	var answer struct {
		Uses  []*Use `json:"uses"`
		Error string `json:"error,omitempty"` // what has not answered
	}
	pods, err := s.usage.list(r.Context())
	if err == nil {
		answer.Uses, err = uses(r.Context(), s.usage.client, onNodes(pods, r.URL.Query()["node"]))
	}
	if err != nil {
		answer.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the error is that the page has gone
}
