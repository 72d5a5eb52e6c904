// SPDX-License-Identifier: Apache-2.0

package network

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
)

// TestLongNode: a node's name may be longer than an attribute. One that is too long would make the API server refuse
// the slice, with the devices of other servers.
func TestLongNode(t *testing.T) {
	node := strings.Repeat("rack-12.", 8) + "example.com"
	w := newWorldOn(t, node)
	w.do("server a 1 0")
	w.do("round")
	if len(w.pool) != 1 {
		t.Fatalf("got %d devices, want 1", len(w.pool))
	}
	for name, a := range w.pool[0].Attributes {
		if a.StringValue != nil && len(*a.StringValue) > resourceapi.DeviceAttributeMaxValueLength {
			t.Errorf("attribute %s: got %d bytes", name, len(*a.StringValue))
		}
	}
	if got, want := *w.pool[0].Attributes[w.qualified("remoteNode")].StringValue, node[:64]; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := testutil.ToFloat64(w.Controller.gpus.WithLabelValues(node, "NVIDIA H100 80GB HBM3", free)); got != 1 {
		t.Errorf("got %v free GPUs on the node, want 1", got)
	}
}
