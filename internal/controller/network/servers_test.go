// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"fmt"
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

// TestMetricsDuringARound: no round takes a number away that the next scrape finds again.
func TestMetricsDuringARound(t *testing.T) {
	w := newWorld(t)
	w.do("server a 1 0")
	w.do("round")
	of := w.Controller.gpus.WithLabelValues(w.node, "NVIDIA H100 80GB HBM3", free)
	w.do("server b 2 0")
	w.do("round")
	if got := testutil.ToFloat64(of); got != 2 {
		t.Errorf("the number of the first round is %v after the second, want 2: it was replaced", got)
	}
	w.Controller.servers = nil
	w.measure(nil)
	if got := testutil.CollectAndCount(w.Controller.gpus); got != 0 {
		t.Errorf("%d numbers are left without devices", got)
	}
}

// TestUpgrade: version 0.1.0 counted restarts of all containers in the names of devices. Its clients keep theirs.
func TestUpgrade(t *testing.T) {
	const kept = "device a\nserver a: [c]\nclaim c on a: SessionReady=True Ready=True server=1\n"
	for _, row := range []struct{ name, script, want string }{
		{"an upgrade", "leader; round", kept},
		{"and another leader", "leader; round; leader; round", kept},
		{"and a restart of the container with the GPU", "leader; round; restart a; round",
			"device a\ndevice \nclaim c on : ServerLost=True SessionReady=False Ready=False\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			w.do("server a 1 0")
			w.do("restart a proxy")
			w.devices["a"] = fmt.Sprintf("a-%.4x", sha256.Sum256([]byte("1 proxy 1")))
			w.do("claim c a")
			err := w.published(t.Context(), nil, []resourceapi.Device{{Name: w.devices["a"]}})
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.SplitSeq(row.script, ";") {
				w.do(line)
			}
			if got := strings.ReplaceAll(w.state(), "device "+lostTaint, "device "); got != row.want {
				t.Errorf("got\n%swant\n%s", got, row.want)
			}
		})
	}
}
