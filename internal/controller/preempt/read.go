// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/why"
)

// pageSize is how many objects are read at once.
const pageSize = 500

// read returns what plans need of the cluster, with little of each object.
func (p *Preemptor) read(ctx context.Context, now time.Time) (*cluster.Snapshot, why.PreemptOptions, error) {
	s := why.Read(ctx, read.Reader{Client: p.reads, PageSize: pageSize,
		Slim: func() func(runtime.Object) runtime.Object { return slimObject }}, metav1.NamespaceAll, why.Manifest{})
	single := map[string]bool{} // of the groups that were read
	options := why.PreemptOptions{Now: now, Single: func(namespace, group string) bool {
		if known, ok := single[namespace+"/"+group]; ok {
			return known
		}
		of, err := p.reads.SchedulingV1beta1().PodGroups(namespace).Get(ctx, group, metav1.GetOptions{})
		may := err == nil && (of.Spec.DisruptionMode == nil || of.Spec.DisruptionMode.All == nil)
		single[namespace+"/"+group] = may
		return may
	}}
	if err := s.Err(); err != nil {
		return nil, options, err
	}
	budgets, err := p.reads.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, options, fmt.Errorf("list budgets: %w", err)
	}
	for i := range budgets.Items {
		options.Budgets = append(options.Budgets, &budgets.Items[i])
	}
	return s, options, nil
}

// volumes returns which nodes the volumes of the pod can be used on. Not bound: the pod waits for a volume, or for the
// end of the pod that has it alone.
func (p *Preemptor) volumes(ctx context.Context, pod *corev1.Pod, all []*corev1.Pod) (nodes []*corev1.NodeSelector,
	bound bool, err error) {
	for _, v := range slimVolumes(pod.Spec.Volumes) {
		name := claimName(pod, v)
		claim, err := p.reads.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) && slices.ContainsFunc(all, func(
			of *corev1.Pod) bool {
			return of.Spec.NodeName != "" && of.Namespace == pod.Namespace && slices.ContainsFunc(
				slimVolumes(of.Spec.Volumes), func(v corev1.Volume) bool { return claimName(of, v) == name })
		}) {
			return nil, false, nil
		}
		volume, err := p.reads.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return nil, false, err
		}
		if a := volume.Spec.NodeAffinity; a != nil && a.Required != nil {
			nodes = append(nodes, a.Required)
		}
	}
	return nodes, true, nil
}

// slimVolumes keeps the volumes with a PersistentVolumeClaim.
func slimVolumes(all []corev1.Volume) (slim []corev1.Volume) {
	for _, v := range all {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			slim = append(slim, v)
		}
	}
	return slim
}

// claimName returns the name of the PersistentVolumeClaim of a volume of slimVolumes.
func claimName(pod *corev1.Pod, v corev1.Volume) string {
	if v.PersistentVolumeClaim != nil {
		return v.PersistentVolumeClaim.ClaimName
	}
	return pod.Name + "-" + v.Name
}

// podOf returns the pod as it is in the snapshot, or nil.
func podOf(s *cluster.Snapshot, pod *corev1.Pod) *corev1.Pod {
	i := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.UID == pod.UID })
	if i < 0 {
		return nil
	}
	return s.Pods[i]
}

// after returns the snapshot after the preemption, for further plans: the victims are ending, their devices are kept,
// and the node has room for the pod.
func after(s *cluster.Snapshot, h *hold, plan *why.Preemption, now time.Time) *cluster.Snapshot {
	next := *s
	next.Slices = cluster.Tainted(s.Slices, h.rules(plan))
	next.Pods = slices.Clone(s.Pods)
	for i, pod := range next.Pods {
		isVictim := slices.ContainsFunc(plan.Victims, func(v *corev1.Pod) bool { return v.UID == pod.UID })
		if !isVictim && pod.UID != h.uid {
			continue
		}
		changed := *pod
		if isVictim {
			changed.DeletionTimestamp = &metav1.Time{Time: now}
		} else {
			changed.Status.NominatedNodeName = plan.Node
		}
		next.Pods[i] = &changed
	}
	return &next
}

// gangs are labels and annotations of pods that schedulers place together: the plugin Coscheduling, Volcano, KAI and
// YuniKorn.
var gangs = []string{"scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name", "pod-group-name",
	"yunikorn.apache.org/task-group-name"}

// slimWaiting keeps what is needed to know whether a pod may preempt. It may be called with what it has returned.
func slimWaiting(pod *corev1.Pod) *corev1.Pod {
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
		DeletionTimestamp: pod.DeletionTimestamp}}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		s.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	s.Annotations = map[string]string{shapeAnnotation: cmp.Or(pod.Annotations[shapeAnnotation], shapeOf(pod))}
	if value, ok := pod.Annotations[pauseAnnotation]; ok {
		s.Annotations[pauseAnnotation] = value
	}
	s.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, SchedulerName: pod.Spec.SchedulerName,
		SchedulingGates: pod.Spec.SchedulingGates, SchedulingGroup: pod.Spec.SchedulingGroup,
		Priority: pod.Spec.Priority, PreemptionPolicy: pod.Spec.PreemptionPolicy,
		ResourceClaims: pod.Spec.ResourceClaims,
		InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers)}
	if slices.ContainsFunc(gangs, func(key string) bool {
		return pod.Labels[key] != "" || pod.Annotations[key] != ""
	}) {
		s.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{}
	}
	s.Status.NominatedNodeName = pod.Status.NominatedNodeName
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			c.Message = "" // it is long
			s.Status.Conditions = append(s.Status.Conditions, c)
		}
	}
	return s
}

// slimObject keeps what a plan needs of an object other than a slice.
func slimObject(o runtime.Object) runtime.Object {
	switch o := o.(type) {
	case *corev1.Pod:
		if cluster.Finished(o) {
			return nil
		}
		return slimPod(o)
	case *corev1.Node:
		o.Status.Images = nil
		o.ManagedFields, o.Annotations = nil, nil
	case *resourceapi.ResourceClaim:
		o.ManagedFields, o.Annotations = nil, nil
		if o.Status.Allocation != nil {
			o.Spec, o.Status.Devices = resourceapi.ResourceClaimSpec{}, nil
		}
	}
	return o
}

// slimPod keeps what a plan needs of a pod: of one on a node, what it uses there and what its end costs.
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
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds, Volumes: slimVolumes(pod.Spec.Volumes),
		InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers)}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		slim.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: a.PodAntiAffinity}
	}
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	}) { // otherwise what it has counts, too
		slim.Status = corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime}
	}
	return &slim
}

func slimContainers(all []corev1.Container) []corev1.Container {
	slim := make([]corev1.Container, len(all))
	for i, c := range all {
		slim[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: c.Ports}
	}
	return slim
}
