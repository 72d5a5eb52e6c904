// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// SlimObject keeps what explanations and plans need of an object other than a slice; nil: nothing.
func SlimObject(o runtime.Object) runtime.Object {
	switch o := o.(type) {
	case *corev1.Pod:
		if cluster.Finished(o) {
			return nil
		}
		return slimPod(o)
	case *corev1.Node:
		o.Status.Images = nil
	}
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
		object.SetAnnotations(nil)
	}
	return o
}

// slimPod keeps of a pod on a node what it uses there and what its end costs, of one without a node everything but
// annotations.
func slimPod(pod *corev1.Pod) *corev1.Pod {
	slim := *pod // a pointer to pod would keep the whole page
	slim.ManagedFields, slim.Annotations = nil, nil
	if pod.Spec.NodeName == "" {
		return &slim
	}
	if value, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		slim.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: value}
	}
	slim.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
		Priority: pod.Spec.Priority, SchedulingGroup: pod.Spec.SchedulingGroup, ResourceClaims: pod.Spec.ResourceClaims,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds, Volumes: Volumes(pod),
		InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers)}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		slim.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: a.PodAntiAffinity}
	}
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	}) { // otherwise what it has counts, too
		slim.Status = corev1.PodStatus{Phase: pod.Status.Phase, StartTime: &metav1.Time{Time: StartOf(pod)}}
	}
	return &slim
}

// StartOf returns since when the pod works: when it was created, has started, or all its containers have restarted.
func StartOf(pod *corev1.Pod) time.Time {
	since := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		since = pod.Status.StartTime.Time
	}
	var restarted []time.Time
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.RestartCount == 0:
		case c.State.Running != nil:
			restarted = append(restarted, c.State.Running.StartedAt.Time)
		case c.LastTerminationState.Terminated != nil: // it waits for its next start
			restarted = append(restarted, c.LastTerminationState.Terminated.FinishedAt.Time)
		}
	}
	if len(restarted) == 0 || len(restarted) < len(pod.Spec.Containers) {
		return since
	}
	return slices.MinFunc(restarted, time.Time.Compare)
}

// Volumes returns the volumes of the pod with a PersistentVolumeClaim.
func Volumes(pod *corev1.Pod) (slim []corev1.Volume) {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			slim = append(slim, v)
		}
	}
	return slim
}

func slimContainers(all []corev1.Container) []corev1.Container {
	slim := make([]corev1.Container, len(all))
	for i, c := range all {
		slim[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: c.Ports}
	}
	return slim
}
