//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// configLabel selects a node configuration of demo/values.yaml.
const configLabel = "gpu.nvidia.com/node-config"

// relabelled is the timeout of a label change: the plugin reads it within 30 s, as docs/operate.md says, and then
// publishes.
const relabelled = 30*time.Second + soon

// testNodeConfig changes the sharing of a node's GPUs while a claim has one of them.
func (s *suite) testNodeConfig(t *testing.T) {
	s.needs(t, "DRAConsumableCapacity")
	node := s.node(t, "workstation")
	ns := s.namespace(t, "node-config")
	plugin := s.plugin(t, node)
	worker := s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu")))
	held := s.allocated(t, s.running(t, worker)).Name
	label := func(value any) {
		s.must(t, s.Patch(context.WithoutCancel(t.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
			client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`,
				configLabel, value))))
	}
	modes := func(want func(device string) string) {
		t.Helper()
		s.must(t, kube.Until(t.Context(), relabelled, "the GPUs to be used in another way",
			func(context.Context) (bool, string, error) {
				var wrong []string
				gpus := s.gpus(t, node)
				all := len(gpus)
				for _, d := range gpus {
					if got := stringAttribute(d, "sharing"); got != want(d.Name) {
						wrong = append(wrong, d.Name+" is "+got)
					}
				}
				return all > 0 && len(wrong) == 0, fmt.Sprintf("%d GPUs; %s", all, strings.Join(wrong, ", ")), nil
			}))
	}
	events := func(within time.Duration, parts ...string) {
		t.Helper()
		s.must(t, kube.Until(t.Context(), within, fmt.Sprintf("an event of the node with %q", parts),
			func(ctx context.Context) (bool, string, error) {
				var list corev1.EventList
				err := s.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault))
				for _, e := range list.Items {
					if e.InvolvedObject.Name == node && containsAll(e.Reason+" "+e.Message, parts) {
						return true, "", err
					}
				}
				return false, fmt.Sprintf("%d events", len(list.Items)), err
			}))
	}

	defer label("null")
	label(`"exclusive"`)
	modes(func(device string) string {
		if device == held {
			return "fractional"
		}
		return "exclusive"
	})
	events(soon, "ModeChangePending", held, "fractional", "exclusive", ns+"/")
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: worker.Name, Namespace: ns}}))
	modes(func(string) string { return "exclusive" })
	events(soon, "ModeChanged", held)

	// An unknown configuration is rejected, and the previous one stays in force.
	label(`"exlusive"`)
	events(relabelled, "NodeConfigRefused", "exlusive")
	modes(func(string) string { return "exclusive" })
	label("null")
	modes(func(string) string { return "fractional" })
	if now := s.plugin(t, node); now.UID != plugin.UID ||
		now.Status.ContainerStatuses[0].RestartCount != plugin.Status.ContainerStatuses[0].RestartCount {
		t.Error("the plugin was restarted")
	}
}
