// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// podSummary is what is kept of a pod: a cluster has thousands of them.
type podSummary struct {
	metav1.ObjectMeta
	podUse
	extended string // the claim for its extended resources
}

// podUse is what a pod requests of its node.
type podUse struct {
	node   string // "": it has none
	cpu    int64  // thousandths of a core
	memory int64  // bytes
	// scored says that a scheduler has asked this replica for the pod.
	scored bool
}

// nodeSummary is what is kept of a node.
type nodeSummary struct {
	metav1.ObjectMeta
	nodeUse
}

// nodeUse is what pods can request of a node.
type nodeUse struct {
	cpu      int64 // thousandths of a core
	memory   int64 // bytes
	others   int   // GPUs that a device plugin offers
	cordoned bool
}

// maxOthers is as many GPUs as a large node has. A plugin that shares GPUs counts each share.
const maxOthers = 8

// pluginGPUs returns how many GPUs device plugins offer on a node, also those that pods hold. Those of other devices,
// such as nvidia.com/hostdev, have other words in the name.
func pluginGPUs(all corev1.ResourceList) int {
	n := int64(0)
	for name, of := range all {
		domain, kind, _ := strings.Cut(string(name), "/")
		if strings.Contains(kind, "gpu") || strings.HasPrefix(kind, "mig-") || strings.HasPrefix(kind, "vcuda") ||
			strings.HasPrefix(domain, "gpu.") {
			n += min(of.Value(), maxOthers)
		}
	}
	return int(min(n, maxOthers))
}

func summaryMeta(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		ResourceVersion: o.GetResourceVersion()}
}

// summarize returns what is kept of a pod or a node.
func summarize(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		requests := podRequests(o)
		s := &podSummary{ObjectMeta: summaryMeta(o), podUse: podUse{node: o.Spec.NodeName,
			cpu: requests.Cpu().MilliValue(), memory: requests.Memory().Value()}}
		s.Annotations = policyAnnotations(o)
		if status := o.Status.ExtendedResourceClaimStatus; status != nil {
			s.extended = status.ResourceClaimName
		}
		return s, nil
	case *corev1.Node:
		return &nodeSummary{summaryMeta(o), nodeUse{o.Status.Allocatable.Cpu().MilliValue(),
			o.Status.Allocatable.Memory().Value(), pluginGPUs(o.Status.Allocatable), o.Spec.Unschedulable}}, nil
	}
	return obj, nil
}

// podRequests returns what the pod requests of its node.
func podRequests(p *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})
}

// follow keeps the usage up to date until ctx ends. It returns a function that reports whether it is complete.
func (s *usage) follow(ctx context.Context, from kubernetes.Interface, guard feature.Guard) (complete func() bool) {
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	core := from.CoreV1().RESTClient()
	pods := start(ctx, toolscache.NewListWatchFromClient(core, "pods", metav1.NamespaceAll, running), &corev1.Pod{},
		feature.EventHandler(guard, s.setPod, s.deletePod))
	nodes := start(ctx, toolscache.NewListWatchFromClient(core, "nodes", metav1.NamespaceAll, fields.Everything()),
		&corev1.Node{}, feature.EventHandler(guard, s.setNode, s.deleteNode))
	return func() bool { return pods() && nodes() }
}

func start(ctx context.Context, from toolscache.ListerWatcher, of runtime.Object,
	events toolscache.ResourceEventHandler) (synced func() bool) {
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{ListerWatcher: from, ObjectType: of,
		Handler: events, Transform: summarize})
	go informer.RunWithContext(ctx)
	return informer.HasSynced
}
