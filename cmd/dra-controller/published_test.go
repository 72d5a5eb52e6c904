// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/kubeconfig"
)

func TestPublished(t *testing.T) {
	const slice = `{"spec": {"driver": "gpu.nvidia.com", "nodeName": %q, "pool": {"name": %[1]q}, "devices": [%s]}}`
	device := func(kind string, n int) string {
		return strings.TrimSuffix(strings.Repeat(`{"name": "x", "attributes": {"type": {"string": "`+kind+`"}}},`, n), ",")
	}
	for _, tc := range []struct {
		name   string
		slices []string
		want   string
	}{
		{"two nodes, of one in two slices", []string{fmt.Sprintf(slice, "b", device("gpu", 8)),
			fmt.Sprintf(slice, "a", device("gpu", 2)), fmt.Sprintf(slice, "b", device("mig", 56))},
			"a: 2 gpu\nb: 8 gpu, 56 mig\n"},
		{"monitors are for no claim of a user", []string{fmt.Sprintf(slice, "a", device("monitor", 1))},
			"no node publishes a GPU of the driver gpu.nvidia.com: do nodes"},
		{"nothing", nil, "no node publishes a GPU of the driver gpu.nvidia.com: do nodes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				const want = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3Dgpu.nvidia.com"
				if r.URL.String() != want {
					t.Errorf("got request %s, want %s", r.URL, want)
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1", "items": [%s]}`,
					strings.Join(tc.slices, ","))
			}))
			defer server.Close()
			got, _, err := run(t, publishedName, "--kubeconfig", kubeconfig.Write(t, server.URL))
			if err != nil {
				got = err.Error()
			}
			if got != tc.want && (err == nil || !strings.HasPrefix(got, tc.want)) {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}
