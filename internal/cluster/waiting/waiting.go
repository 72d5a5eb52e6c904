// SPDX-License-Identifier: Apache-2.0

// Package waiting follows the pods that wait for a node and ask for devices: one watch and one copy of each pod for all
// that do something about them. It also says what those that plan or explain keep of other objects.
package waiting

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
)

// Pods are the pods without a node that have claims or request extended resources, but for those with more of them than
// maxSize.
type Pods struct {
	reads  kubernetes.Interface
	once   sync.Once
	lister listers.PodLister
}

// New returns pods that are not followed yet.
func New(reads kubernetes.Interface) *Pods { return &Pods{reads: reads} }

// Follow returns when the pods are known. The first call follows them until its ctx ends. list returns them as Slim
// does, in no order; they must not be changed.
func (p *Pods) Follow(ctx context.Context) (list func() []*corev1.Pod) {
	p.once.Do(func() {
		selector := fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}.AsSelector().String()
		factory := informers.NewSharedInformerFactoryWithOptions(p.reads, 0,
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }),
			informers.WithTransform(func(o any) (any, error) {
				if pod, ok := o.(*corev1.Pod); ok {
					return Slim(pod), nil
				}
				return o, nil
			}))
		p.lister = factory.Core().V1().Pods().Lister()
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	})
	return func() []*corev1.Pod {
		all, _ := p.lister.List(labels.Everything()) // from the cache: no error is possible
		return slices.DeleteFunc(all, func(pod *corev1.Pod) bool { return !asks(pod) })
	}
}

// asks reports whether the pod may ask for devices.
func asks(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims)+len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > 0
}

// IsRefused reports whether a scheduler has found no node for the pod. One with a scheduling gate has not been tried.
func IsRefused(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// ShapeAnnotation is on what Slim returns. Its value is equal for pods of one controller that fit on the same nodes.
const ShapeAnnotation = "gpu.nvidia.com/preemption-shape"

// PauseAnnotation of a pod says how long pods like it preempt nobody.
const PauseAnnotation = "gpu.nvidia.com/preemption-pause"

// maxSize is how many bytes of claims and extended resources are kept of a pod: users choose how many there are. Plans
// and explanations are for 256 claims at most.
const maxSize = 128 << 10

// maxPause is how long a PauseAnnotation may be: users can write it, too.
const maxPause = 100

// gangs are labels and annotations of pods that schedulers place together: the plugin Coscheduling, Volcano, KAI and
// YuniKorn.
var gangs = []string{"scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name", "pod-group-name",
	"yunikorn.apache.org/task-group-name"}

// Slim keeps what is needed to retry a pod, to know whether it may preempt, and whether to explain why it waits: of a
// container the extended resources. A pod that a scheduler places with others has a scheduling group. It may be called
// with what it has returned.
func Slim(pod *corev1.Pod) *corev1.Pod {
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
		DeletionTimestamp: pod.DeletionTimestamp}}
	s.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, ResourceClaims: pod.Spec.ResourceClaims,
		InitContainers: withExtended(pod.Spec.InitContainers), Containers: withExtended(pod.Spec.Containers)}
	if s.Spec.Size() > maxSize {
		s.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	}
	if !asks(s) {
		return s
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		s.OwnerReferences = []metav1.OwnerReference{{UID: owner.UID, Controller: owner.Controller}}
	}
	shape := pod.Annotations[ShapeAnnotation]
	if len(shape) != 2*sha256.Size {
		shape = shapeOf(pod)
	}
	s.Annotations = map[string]string{ShapeAnnotation: shape}
	if value, ok := pod.Annotations[PauseAnnotation]; ok && len(value) <= maxPause {
		s.Annotations[PauseAnnotation] = value
	}
	s.Spec.SchedulingGates = pod.Spec.SchedulingGates[:min(1, len(pod.Spec.SchedulingGates))]
	s.Spec.SchedulerName = pod.Spec.SchedulerName
	s.Spec.Priority, s.Spec.PreemptionPolicy = pod.Spec.Priority, pod.Spec.PreemptionPolicy
	s.Spec.SchedulingGroup = pod.Spec.SchedulingGroup
	if slices.ContainsFunc(gangs, func(key string) bool {
		return pod.Labels[key] != "" || pod.Annotations[key] != ""
	}) {
		s.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
	}
	s.Status.Phase, s.Status.NominatedNodeName = pod.Status.Phase, pod.Status.NominatedNodeName
	s.Status.ResourceClaimStatuses = pod.Status.ResourceClaimStatuses
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			c.Message = "" // it is long
			s.Status.Conditions = append(s.Status.Conditions, c)
		}
	}
	return s
}

// withExtended returns the containers that request extended resources, with nothing else.
func withExtended(all []corev1.Container) (some []corev1.Container) {
	for _, c := range all {
		requests := corev1.ResourceList{}
		for name, q := range c.Resources.Requests {
			if strings.Contains(string(name), "/") {
				requests[name] = q
			}
		}
		if len(requests) > 0 {
			some = append(some, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
				Resources: corev1.ResourceRequirements{Requests: requests}})
		}
	}
	return some
}

// Extended reports whether the pod requests an extended resource that is asked about.
func Extended(pod *corev1.Pod, is func(name string) bool) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(
		c corev1.Container) bool {
		for name := range c.Resources.Requests {
			if is(string(name)) {
				return true
			}
		}
		return false
	})
}

// shapeOf returns a text that is equal for pods of one controller that fit on the same nodes. Labels do not count:
// controllers number their pods by them.
func shapeOf(pod *corev1.Pod) string {
	text, err := json.Marshal(corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations, TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints,
		Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources, ResourceClaims: pod.Spec.ResourceClaims,
		Priority: pod.Spec.Priority, Volumes: Volumes(pod),
		InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers)})
	if err != nil {
		panic(err) // it can be written as JSON
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}
