// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// budgets are PodDisruptionBudgets.
type budgets []budget

type budget struct {
	namespace string
	selector  labels.Selector
	left      int // how many of its pods may be evicted now
}

func newBudgets(all []*policyv1.PodDisruptionBudget) budgets {
	var b budgets
	for _, of := range all {
		selector, err := metav1.LabelSelectorAsSelector(of.Spec.Selector)
		if err != nil {
			continue // the API server ignores it, too
		}
		b = append(b, budget{of.Namespace, selector, int(of.Status.DisruptionsAllowed)})
	}
	return b
}

// of returns the numbers of the pod's budgets.
func (b budgets) of(pod *corev1.Pod) (all []int) {
	for i, one := range b {
		if one.namespace == pod.Namespace && one.selector.Matches(labels.Set(pod.Labels)) {
			all = append(all, i)
		}
	}
	return all
}

// allow reports whether all units may be evicted.
func (b budgets) allow(units []*unit) bool {
	taken := map[int]int{}
	for _, u := range units {
		for _, i := range u.budgets {
			if taken[i]++; taken[i] > b[i].left {
				return false
			}
		}
	}
	return true
}

// repelling is a pod that keeps the preemptor away from nodes with that label.
type repelling struct {
	pod        types.UID
	key, value string
}

// repels returns the labels of nodes that must differ by the pod's anti-affinity to the other pod. The namespaces that
// a term selects by labels are not known, and taken for all.
func repels(pod, other *corev1.Pod) (keys []string) {
	a := pod.Spec.Affinity
	if a == nil || a.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		own := len(term.Namespaces) == 0 && pod.Namespace == other.Namespace
		if term.NamespaceSelector == nil && !own && !slices.Contains(term.Namespaces, other.Namespace) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err == nil && selector.Matches(labels.Set(other.Labels)) {
			keys = append(keys, term.TopologyKey)
		}
	}
	return keys
}

// samePorts reports whether both pods want the same port of the node.
func samePorts(a, b *corev1.Pod) bool {
	for _, one := range hostPorts(a) {
		for _, other := range hostPorts(b) {
			if one.HostPort == other.HostPort && one.Protocol == other.Protocol &&
				(one.HostIP == other.HostIP || isAny(one.HostIP) || isAny(other.HostIP)) {
				return true
			}
		}
	}
	return false
}

func isAny(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

// hostPorts returns the ports of the node that containers use while the pod runs.
func hostPorts(pod *corev1.Pod) (all []corev1.ContainerPort) {
	sidecars := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	})
	for _, c := range slices.Concat(sidecars, pod.Spec.Containers) {
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				all = append(all, port)
			}
		}
	}
	return all
}
