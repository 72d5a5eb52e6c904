// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

func TestMissing(t *testing.T) {
	for server, want := range map[string]string{"v1.34.4": "1.35.6", "v1.35.5": "1.35.6", "v1.35.6": "",
		"v1.36.1-gke.100": "1.36.2", "v1.36.2": "", "v1.37.0": ""} {
		got := ""
		if v := missing(version.MustParseGeneric(server), since["DRAPartitionableDevices"]); v != nil {
			got = v.String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", server, got, want)
		}
	}
}
