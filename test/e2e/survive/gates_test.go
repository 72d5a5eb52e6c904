//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestGatesOff runs the driver on an API server that drops some fields of its slices.
func TestGatesOff(t *testing.T) {
	s := start(t, "gates", []string{"t4-x2"}, "--feature-gates",
		"DRAConsumableCapacity=false,DRAPartitionableDevices=false,DRADeviceTaints=false,DRADeviceTaintRules=false")
	s.install(t)
	n := s.node("node-1")
	eventually(t, soon, "two GPUs to be published",
		func() string { return is(fmt.Sprint(len(strings.Fields(n.gpus(t)))), "2") })
	ns := s.namespace(t, "gates")
	first, second := n.pod(t, ns, "first", ""), n.pod(t, ns, "second", "")
	s.running(t, first)
	s.running(t, second)
	if a, b := n.device(t, first), n.device(t, second); a == b {
		t.Errorf("two pods got the same GPU %s", a)
	}
	// Another rescan changes the slice, and drops the same fields again. One report is enough.
	gpu := n.device(t, first)
	s.remove(t, first)
	s.gone(t, first)
	n.simctl(t, "remove", gpu)
	eventually(t, soon, "a GPU to go", func() string { return is(fmt.Sprint(len(strings.Fields(n.gpus(t)))), "1") })
	var list eventsv1.EventList
	eventually(t, soon, "one event that names what was dropped", func() string {
		must(t, s.List(t.Context(), &list, client.InNamespace(corev1.NamespaceDefault)))
		var got []string
		for _, e := range list.Items {
			if e.Reason == "FieldsDropped" {
				got = append(got, fmt.Sprintf("%s %s %s repeated: %t: %s", e.Regarding.Kind, e.Regarding.Name, e.Type,
					e.Series != nil, e.Note))
			}
		}
		const begin = "Node node-1 Warning repeated: false: "
		if len(got) != 1 || !strings.HasPrefix(got[0], begin) || !strings.Contains(got[0], "DRAConsumableCapacity") {
			return fmt.Sprintf("got %q, want one %s… DRAConsumableCapacity", got, begin)
		}
		return ""
	})
}
