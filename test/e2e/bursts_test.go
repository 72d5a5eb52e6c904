//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controllerMetricsPort is the controller's port for metrics in the chart.
const controllerMetricsPort = 8080

// testBursts fills a GPU exactly with pods that come at once and have two containers with a share each. While the
// scheduler binds such a pod, it counts its shares twice, and refuses others. The controller makes it try them again;
// by itself, it would after five minutes.
func (s *suite) testBursts(t *testing.T) {
	s.needs(t, sharesOfMIG...)
	const model, bursts, pods = "NVIDIA L40S", 2, 5
	for _, controller := range s.controllers(t) {
		body, err := s.HTTP(t.Context(), client.ObjectKeyFromObject(&controller), controllerMetricsPort, "/metrics")
		s.must(t, err)
		if metric := "\ngpu_dra_cluster_scheduler_retries_total "; !strings.Contains(body, metric) {
			t.Errorf("%s has no metric%s: it does not retry pods", controller.Name, metric)
		}
	}
	node := s.node(t, "l40s-x4")
	tenth := share("gpu", model, "1Gi", "10")
	tenth.Exactly.Selectors = append(tenth.Exactly.Selectors, resourceapi.DeviceSelector{
		CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes['%s'].uuid == '%s'", *driver,
			stringAttribute(s.wholeGPUs(t, node)[0], "uuid"))}})
	ns := s.namespace(t, "bursts")
	template := s.templateFor(t, ns, "tenth", tenth)
	two := func(p *corev1.PodSpec) {
		again := p.ResourceClaims[0]
		again.Name = "again"
		p.ResourceClaims = append(p.ResourceClaims, again)
		p.Containers[1].Resources.Claims = []corev1.ResourceClaim{{Name: again.Name}}
	}
	for burst := range bursts {
		var all []client.ObjectKey
		for i := range pods {
			all = append(all, s.pod(t, ns, fmt.Sprintf("pod-%d-%d", burst, i), withTemplate(template),
				withSecondContainer, two))
		}
		for _, pod := range all {
			s.running(t, pod)
		}
		over := s.pod(t, ns, fmt.Sprint("over-", burst), withTemplate(template))
		if _, err := s.WaitPod(t.Context(), soon, over, "unschedulable", unschedulable); err != nil {
			t.Errorf("the pods do not fill the GPU: %v", err)
		}
		s.must(t, s.Empty(t.Context(), soon, ns))
	}
}
