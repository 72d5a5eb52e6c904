// SPDX-License-Identifier: Apache-2.0

package read

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// GPUQuotas are read from the API server, if it has them and the user may read them.
func TestReadGPUQuotas(t *testing.T) {
	const list = `{"kind": "GPUQuotaList", "items": [{"metadata": {"namespace": "ml", "name": "gpus"}, ` +
		`"spec": {"hard": {"memory": "80Gi", "gpus": 4}}, "status": {"enforced": true, ` +
		`"used": {"memory": "40Gi", "gpus": "1"}}}]}`
	for _, row := range []struct {
		name     string
		all, own int // the status of the answers: about all namespaces, and about ml
		quotas   int
		err      string
	}{
		{"there are some", http.StatusOK, 0, 1, ""},
		{"there is no such kind", http.StatusNotFound, 0, 0, ""},
		{"only those of a namespace may be read", http.StatusForbidden, http.StatusOK, 1,
			"only those of namespace ml are known"},
		{"none may be read", http.StatusForbidden, http.StatusForbidden, 0,
			`the verb "list" on gpuquotas.resource.nvidia.com in a ClusterRole`},
	} {
		t.Run(row.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status := row.all
				if strings.Contains(r.URL.Path, "/namespaces/ml/") {
					status = row.own
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				if status == http.StatusOK {
					fmt.Fprint(w, list)
				}
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			s := Reader{Client: client, Namespace: "ml"}.Read(t.Context(), cluster.GPUQuotas)
			if len(s.GPUQuotas) != row.quotas {
				t.Errorf("got %d quotas, want %d", len(s.GPUQuotas), row.quotas)
			}
			if len(s.GPUQuotas) == 1 {
				left := s.GPUQuotas[0].Exceeded(cluster.Amount{"memory": 50 << 30, "gpus": 3})
				if len(left) != 1 || left[0].Text("gpus") != "it may take 50Gi of GPU memory, and GPUQuota gpus has "+
					"40Gi of 80Gi left" {
					t.Errorf("got %v, want the memory", left)
				}
			}
			err = s.Err()
			if (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got %v, want %q", err, row.err)
			}
		})
	}
}
