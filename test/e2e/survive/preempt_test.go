//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testKilledPreempting kills every replica of the controller after a pod is evicted for another one, and before that
// one has the GPU. The next leader evicts no second pod, and keeps the GPU: a pod that is created meanwhile does not
// get it.
func (n node) testKilledPreempting(t *testing.T) {
	n.install(t, "controller.enabled=true", "controller.preemption.enabled=true",
		"controller.admission.timeoutSeconds=10") // the pod's claim has to be seen
	ns := n.namespace(t, "preempt")
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "survive-high"}, Value: 1000}
	must(t, n.Create(t.Context(), class))
	t.Cleanup(func() { must(t, n.Delete(context.WithoutCancel(t.Context()), class)) })
	var low []client.ObjectKey
	for i := range strings.Split(n.gpus(t), "\n") {
		name := fmt.Sprint("low-", i)
		low = append(low, n.pod(t, ns, name, "", once, grace(time.Hour),
			shell("trap '' TERM; while :; do sleep 1; done # "+ns+"/"+name))) // it ends when the test says so
	}
	for _, pod := range low {
		n.running(t, pod)
	}
	high := n.pod(t, ns, "high", "", func(p *corev1.Pod) { p.Spec.PriorityClassName = class.Name })
	evicted := func() (all []client.ObjectKey) {
		for _, pod := range low {
			if n.get(t, pod).DeletionTimestamp != nil {
				all = append(all, pod)
			}
		}
		return all
	}
	eventually(t, soon, "an evicted pod", func() string { return is(fmt.Sprint(len(evicted())), "1") })
	victim := evicted()[0]
	restarted := n.signalControllers(t, "-KILL")
	late := n.pod(t, ns, "late", "")
	restarted()
	if all := evicted(); len(all) != 1 || all[0] != victim {
		t.Errorf("evicted: got %v, want %s only", all, victim)
	}
	n.sh(t, "pkill -KILL -f '[#] "+victim.String()+"'")
	n.running(t, high)
	eventually(t, soon, "the kept GPU to be given back", func() string {
		var rules resourceapi.DeviceTaintRuleList
		must(t, n.List(t.Context(), &rules, client.HasLabels{"gpu.nvidia.com/preemptor"}))
		return is(fmt.Sprint(len(rules.Items)), "0")
	})
	if on := n.get(t, late).Spec.NodeName; on != "" {
		t.Errorf("the pod that came later is on %s, want no node", on)
	}
	for _, pod := range low {
		if pod != victim && n.get(t, pod).DeletionTimestamp != nil {
			t.Errorf("pod %s is evicted, too", pod)
		}
	}
	n.sh(t, "pkill -KILL -f '[#] "+ns+"/low-'")
	all := append(low, high, late)
	n.remove(t, all...)
	n.gone(t, all...)
	n.clean(t)
}
