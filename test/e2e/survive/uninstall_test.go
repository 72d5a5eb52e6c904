//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// testUninstalledEarly removes the driver while a pod has a GPU.
func (s *suite) testUninstalledEarly(t *testing.T) {
	n := s.node("node-1")
	ns := s.namespace(t, "early")
	pod := n.pod(t, ns, "pod", "")
	container := s.running(t, pod).Status.ContainerStatuses[0].ContainerID
	s.uninstall(t)
	if got := s.running(t, pod).Status.ContainerStatuses[0].ContainerID; got != container {
		t.Errorf("got container %s, want %s to go on", got, container)
	}
	if got := len(n.records(t)); got != 1 {
		t.Errorf("got %d records, want the pod's to stay", got)
	}
	s.remove(t, pod)
	_, err := s.WaitPod(t.Context(), soon, pod, "waiting for the driver", func(p *corev1.Pod) bool {
		status := p.Status.ContainerStatuses
		return p.DeletionTimestamp != nil && len(status) == 1 && (status[0].State.Terminated != nil ||
			status[0].State.Running == nil)
	})
	must(t, err)
	s.install(t)
	s.gone(t, pod)
	n.clean(t)
}

// testUninstall removes the driver when no pod uses it.
func (s *suite) testUninstall(t *testing.T) {
	s.uninstall(t)
	for i := range s.profiles {
		n := s.node(nodeName(i))
		if got := n.sh(t, "ls -d "+simDir); got == "" {
			t.Errorf("%s: the simulated machine is gone; hardware stays", n.name)
		}
		eventually(t, soon, "nothing of the driver to be left on "+n.name, func() string {
			return n.sh(t, `find /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry /run/cdi /etc/cdi -mindepth 1
				find /var/lib/gpu-dra-driver -mindepth 1 -maxdepth 1 -not -name sim
				find / -xdev -name '*gpu*dra*driver*' -not -path '`+simDir[:strings.LastIndex(simDir, "/")]+`*' -path '/var/*' -not -path '/var/log/*' -not -path '/var/lib/containerd/*' 2>/dev/null; true`)
		})
	}
	// The kubelet waits for half a minute for another instance before it removes the slices.
	eventually(t, soon, "slices to be gone", func() string {
		slices, err := s.Slices(t.Context(), driver)
		must(t, err)
		pods, err := s.Pods(t.Context(), release, kube.PluginLabels)
		must(t, err)
		var secrets corev1.SecretList
		must(t, s.List(t.Context(), &secrets, client.InNamespace(release)))
		var leases coordinationv1.LeaseList
		must(t, s.List(t.Context(), &leases, client.InNamespace(release)))
		return is(fmt.Sprintf("%d slices, %d pods, %d secrets, %d leases", len(slices), len(pods),
			len(secrets.Items), len(leases.Items)), "0 slices, 0 pods, 0 secrets, 0 leases")
	})
}
