// SPDX-License-Identifier: Apache-2.0

package preempt

import (
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
	"github.com/gpudra/gpu-dra-driver/internal/cluster/moves"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
)

// pageSize is how many objects are read at once.
const pageSize = 500

// read returns what plans need of the cluster, with little of each object.
func (p *Preemptor) read(ctx context.Context, now time.Time) (*cluster.Snapshot, moves.PreemptOptions, error) {
	s := schedule.Read(ctx, read.Reader{Client: p.reads, PageSize: pageSize,
		Slim: func() func(runtime.Object) runtime.Object { return slimObject }}, metav1.NamespaceAll, nil, nil)
	single := map[string]bool{} // of the groups that were read
	options := moves.PreemptOptions{Now: now, Single: func(namespace, group string) bool {
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
	for _, v := range waiting.Volumes(pod) {
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
				waiting.Volumes(of), func(v corev1.Volume) bool { return claimName(of, v) == name })
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

// claimName returns the name of the PersistentVolumeClaim of a volume of waiting.Volumes.
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
func after(s *cluster.Snapshot, h *hold, plan *moves.Preemption, now time.Time) *cluster.Snapshot {
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

// slimObject keeps what a plan needs of an object other than a slice: of a claim with devices, only these.
func slimObject(o runtime.Object) runtime.Object {
	if claim, ok := o.(*resourceapi.ResourceClaim); ok && claim.Status.Allocation != nil {
		claim.Spec, claim.Status.Devices = resourceapi.ResourceClaimSpec{}, nil
	}
	return waiting.SlimObject(o)
}
