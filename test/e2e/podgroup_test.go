//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testPodGroup: the pods of a PodGroup have one share together. The group has it, also without pods, until it is
// deleted.
func (s *suite) testPodGroup(t *testing.T) {
	s.needs(t, append([]string{"DRAWorkloadResourceClaims"}, sharesOfMIG...)...)
	node := s.node(t, "mixed")
	device := s.gpus(t, node)[0]
	ns := s.namespace(t, "podgroup")
	template := s.templateFor(t, ns, "share", share("gpu", h100, "5Gi", ""))
	group := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "workers"},
		Spec: schedulingapi.PodGroupSpec{
			SchedulingPolicy: schedulingapi.PodGroupSchedulingPolicy{Basic: &schedulingapi.BasicSchedulingPolicy{}},
			ResourceClaims: []schedulingapi.PodGroupResourceClaim{{Name: "gpu",
				ResourceClaimTemplateName: &template}}}}
	s.must(t, s.Create(t.Context(), group))
	t.Cleanup(func() { // otherwise the claim of a failed test stays
		s.must(t, client.IgnoreNotFound(s.Delete(context.WithoutCancel(t.Context()), group)))
	})
	member := func(name string, options ...podOption) client.ObjectKey {
		return s.pod(t, ns, name, append(options, withTemplate(template), withArgs("alloc", "1Gi", "--stay"),
			func(p *corev1.PodSpec) { p.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group.Name} })...)
	}

	// The driver knows the containers of the group: this one could not be kept within its limits.
	refused := member("refused", withHostDirs("/dev/shm"))
	s.waitRefused(t, refused, []string{"is no emptyDir", "configuration refused"})
	s.deletePod(t, refused)

	granted := fmt.Sprintf("granted 1024MiB of %s, limit 5120MiB, threads 100%%\n", stringAttribute(device, "uuid"))
	first, second := member("first"), member("second")
	s.waitLog(t, first, granted)
	s.waitLog(t, second, granted)
	waiting := s.pod(t, ns, "waiting", withTemplate(s.templateFor(t, ns, "whole", share("gpu", h100, "", ""))))
	s.waitUnschedulable(t, waiting)
	for _, command := range [][]string{{"describe", node + "/" + device.Name}, {"why", waiting.Name, "-n", ns}} {
		if got, err := kubectlGPU(t.Context(), command...); err != nil || !strings.Contains(got, "podgroups/workers") {
			t.Errorf("kubectl gpu %s: got error %v and\n%s\nwant in it podgroups/workers", command[0], err, got)
		}
	}

	s.deletePod(t, first)
	s.deletePod(t, second)
	third := member("third")
	s.waitLog(t, third, granted)
	s.deletePod(t, third)
	if got, err := s.WaitPod(t.Context(), soon, waiting, "unschedulable", unschedulable); err != nil {
		t.Errorf("before the group is deleted: got pod %v, error %v, want that it waits", got, err)
	}
	s.must(t, s.Delete(t.Context(), group))
	if got := s.allocated(t, s.running(t, waiting)); got.Name != device.Name {
		t.Errorf("after the group: got %s, want %s", got.Name, device.Name)
	}
}
