// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// podSummary is what is kept of a pod: a cluster has thousands of them.
type podSummary struct {
	metav1.ObjectMeta
	podUse
	extended string // the claim for its extended resources
}

// host is CPU, in thousandths of a core, and host memory, in MiB.
type host struct{ cpu, memory int64 }

func hostOf(list corev1.ResourceList) host {
	return host{list.Cpu().MilliValue(), list.Memory().Value() >> 20}
}

func (h host) plus(other host) host  { return host{h.cpu + other.cpu, h.memory + other.memory} }
func (h host) minus(other host) host { return host{h.cpu - other.cpu, h.memory - other.memory} }

// podUse is what a pod requests of its node.
type podUse struct {
	node string // "": it has none
	host
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
	host
	others   int // GPUs that a device plugin offers
	cordoned bool
}

// maxOthers is as many GPUs as a large node has. A plugin that shares GPUs counts each share, and a driver each
// partition.
const maxOthers = 8

// sliceSummary is what is kept of a slice of another driver.
type sliceSummary struct {
	metav1.ObjectMeta
	node string // "": its devices are not those of one node
	gpus int
}

// driverGPUs returns how many GPUs the slice of another driver has. Drivers of GPUs say so in their names, as
// gpu.amd.com does.
func driverGPUs(s *resourceapi.ResourceSlice) int {
	if !strings.Contains(s.Spec.Driver, "gpu") {
		return 0
	}
	return min(len(s.Spec.Devices), maxOthers)
}

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

// summarize returns what is kept of a pod, of a node, or of a slice of another driver.
func summarize(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		s := &podSummary{ObjectMeta: summaryMeta(o), podUse: podUse{node: o.Spec.NodeName,
			host: hostOf(cluster.PodRequests(o))}}
		s.Annotations = policyAnnotations(o)
		if status := o.Status.ExtendedResourceClaimStatus; status != nil {
			s.extended = status.ResourceClaimName
		}
		return s, nil
	case *corev1.Node:
		return &nodeSummary{summaryMeta(o), nodeUse{hostOf(o.Status.Allocatable), pluginGPUs(o.Status.Allocatable),
			o.Spec.Unschedulable}}, nil
	case *resourceapi.ResourceSlice:
		return &sliceSummary{summaryMeta(o), ptr.Deref(o.Spec.NodeName, ""), driverGPUs(o)}, nil
	}
	return obj, nil
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
	foreign := fields.OneTermNotEqualSelector(resourceapi.ResourceSliceSelectorDriver, s.view.Driver())
	slices := start(ctx, toolscache.NewListWatchFromClient(from.ResourceV1().RESTClient(), "resourceslices",
		metav1.NamespaceAll, foreign), &resourceapi.ResourceSlice{},
		feature.EventHandler(guard, s.setSlice, s.deleteSlice))
	return func() bool { return pods() && nodes() && slices() }
}

func start(ctx context.Context, from toolscache.ListerWatcher, of runtime.Object,
	events toolscache.ResourceEventHandler) (synced func() bool) {
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{ListerWatcher: from, ObjectType: of,
		Handler: events, Transform: summarize})
	go informer.RunWithContext(ctx)
	return informer.HasSynced
}
