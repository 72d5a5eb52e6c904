// SPDX-License-Identifier: Apache-2.0

package feature

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Unscheduled follows the pods without a node until ctx ends, and returns when it knows them. list returns them, in no
// order, with what slim keeps of each.
func Unscheduled(ctx context.Context, reads kubernetes.Interface,
	slim func(*corev1.Pod) *corev1.Pod) (list func() []*corev1.Pod) {
	selector := fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}.AsSelector().String()
	factory := informers.NewSharedInformerFactoryWithOptions(reads, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }),
		informers.WithTransform(func(o any) (any, error) {
			if pod, ok := o.(*corev1.Pod); ok {
				return slim(pod), nil
			}
			return o, nil
		}))
	lister := factory.Core().V1().Pods().Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return func() []*corev1.Pod {
		all, _ := lister.List(labels.Everything()) // from the cache: no error is possible
		return all
	}
}

// roundFactor bounds the time of rounds, most of which is that of requests, to a quarter.
const roundFactor = 3

// Rounds calls round once the view is complete, until ctx ends: after a pause of the period, or of longer if a round
// takes long. what names a round in the counter of panics; failed is the message of the log about its error.
func (c *Controller) Rounds(ctx context.Context, period time.Duration, what, failed string,
	round func(started time.Time) error) {
	for pause := period; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if c.Known() != nil {
			continue
		}
		started := time.Now()
		err := c.Guard.Do(what, func() error { return round(started) })
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, failed)
		}
		pause = max(period, roundFactor*time.Since(started))
	}
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
