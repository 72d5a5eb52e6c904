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

// of asks the plugins of the nodes. What is returned beside an error is of the plugins that have answered.
func (u *usage) of(ctx context.Context, nodes []string) ([]*Use, error) {
	pods, err := u.list(ctx)
	if err != nil {
		return nil, err
	}
	return uses(ctx, u.client, onNodes(pods, nodes))
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
	var err error
	if answer.Uses, err = s.usage.of(r.Context(), r.URL.Query()["node"]); err != nil {
		answer.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the error is that the page has gone
}
