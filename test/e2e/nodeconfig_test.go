//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// configLabel selects a node configuration of demo/values.yaml.
const configLabel = "gpu.nvidia.com/node-config"

// testNodeConfig changes the sharing of a node's GPUs while a claim has one of them.
func (s *suite) testNodeConfig(t *testing.T) {
	s.needs(t, "DRAConsumableCapacity")
	node := s.node(t, "workstation")
	ns := s.namespace(t, "node-config")
	plugin := s.plugin(t, node)
	worker := s.pod(t, ns, "worker", onNode(node), withTemplate(s.template(t, ns, "one-gpu")))
	held := s.allocated(t, s.running(t, worker)).Name
	label := func(value string) {
		t.Helper()
		s.configure(t, node, value)
	}
	modes := func(want func(device string) string) {
		t.Helper()
		s.waitModes(t, node, want)
	}
	events := func(parts ...string) {
		t.Helper()
		s.must(t, kube.Until(t.Context(), soon, fmt.Sprintf("an event of the node with %q", parts),
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
	events("ModeChangePending", held, "fractional", "exclusive", ns+"/")
	s.must(t, s.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: worker.Name, Namespace: ns}}))
	modes(func(string) string { return "exclusive" })
	events("ModeChanged", held)

	// An unknown configuration is rejected, and the previous one stays in force.
	label(`"exlusive"`)
	events("NodeConfigRefused", "exlusive")
	modes(func(string) string { return "exclusive" })
	label("null")
	modes(func(string) string { return "fractional" })
	if now := s.plugin(t, node); now.UID != plugin.UID ||
		now.Status.ContainerStatuses[0].RestartCount != plugin.Status.ContainerStatuses[0].RestartCount {
		t.Error("the plugin was restarted")
	}
}

// configure selects the node's configuration by a label. The value is JSON; null removes the label.
func (s *suite) configure(t *testing.T, node, value string) {
	t.Helper()
	s.must(t, s.Patch(context.WithoutCancel(t.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, configLabel,
			value))))
}

// waitModes waits until each GPU of the node is published with the wanted sharing.
func (s *suite) waitModes(t *testing.T, node string, want func(device string) string) {
	t.Helper()
	s.must(t, kube.Until(t.Context(), soon, "the GPUs to be used in another way",
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

// testUnlimited runs several pods on one GPU: some that ask for no amount, and one that asks for some memory.
func (s *suite) testUnlimited(t *testing.T) {
	s.needs(t, "DRAConsumableCapacity")
	node := s.node(t, "workstation")
	ns := s.namespace(t, "unlimited")
	all := func(sharing string) func(string) string { return func(string) string { return sharing } }
	defer s.configure(t, node, "null")
	s.configure(t, node, `"unlimited"`)
	s.waitModes(t, node, all("unlimited"))

	var pods []client.ObjectKey
	plain := s.template(t, ns, "plain")
	for n := range 3 {
		pods = append(pods, s.pod(t, ns, fmt.Sprint("plain-", n), onNode(node), withTemplate(plain)))
	}
	product := stringAttribute(s.gpus(t, node)[0], "productName")
	pods = append(pods, s.pod(t, ns, "some-memory", onNode(node),
		withTemplate(s.templateFor(t, ns, "some-memory", share("gpu", product, "1Gi", "")))))
	want := s.gpus(t, node)[0].Name // four pods, and the node has three GPUs
	for _, pod := range pods {
		running := s.running(t, pod)
		if got := s.allocated(t, running).Name; got != want {
			t.Errorf("%s: got %s, want %s, which all use", pod.Name, got, want)
		}
		claim := s.claimOf(t, running)
		s.waitEvent(t, client.ObjectKeyFromObject(&claim), "ShareNotEnforced", want, "sharing: unlimited")
		if got := s.run(t, pod, "gpu-demo", "alloc", "2Gi"); !strings.HasPrefix(got, "granted 2048MiB") {
			t.Errorf("%s: got %q, want memory without a limit", pod.Name, got)
		}
	}
	for _, pod := range pods {
		s.deletePod(t, pod)
	}
	s.configure(t, node, "null")
	s.waitModes(t, node, all("fractional"))
}
