// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeOfPod is the field selector for a pod's node.
const nodeOfPod = "spec.nodeName"

// workers is how many update pods, or slices.
const workers = 16

// kubelets does a kubelet's work on pods for all nodes, with one watch.
type kubelets struct {
	fleet *Fleet
	pods  cache.SharedIndexInformer
	queue workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// startKubelets starts the kubelets, which run until the fleet ends. It returns when their cache is synced.
func (f *Fleet) startKubelets(ctx context.Context) error {
	k := kubelets{
		fleet: f,
		pods: coreinformers.NewFilteredPodInformer(f.client, metav1.NamespaceAll, 0, nil, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector(nodeOfPod, "").String()
		}),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	f.kubelets = k
	if err := k.pods.SetTransform(dropManagedFields); err != nil {
		return err
	}
	if _, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: k.look,
		UpdateFunc: func(_, pod any) { k.look(pod) }}); err != nil {
		return err
	}
	return follow(ctx, f, "Pod not answered for", k.queue, k.sync, k.pods)
}

// follow runs the informers, and workers that call sync for what is in the queue, until the fleet ends. It returns when
// the caches are synced. What fails comes into the queue again; failed is logged then.
func follow[T comparable](ctx context.Context, f *Fleet, failed string, queue workqueue.TypedRateLimitingInterface[T],
	sync func(context.Context, T) error, informers ...cache.SharedIndexInformer) error {
	for _, informer := range informers {
		f.wait.Go(func() { informer.RunWithContext(f.life) })
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return fmt.Errorf("list what the fleet follows: %w", context.Cause(ctx))
		}
	}
	for range workers {
		f.wait.Go(func() { work(f.life, failed, queue, sync) })
	}
	context.AfterFunc(f.life, queue.ShutDown)
	return nil
}

// dropManagedFields removes the managed fields, which are large and not used here.
func dropManagedFields(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

func (k kubelets) look(pod any) {
	if p, ok := pod.(*corev1.Pod); ok && k.fleet.has(p.Spec.NodeName) {
		k.queue.Add(cache.MetaObjectToName(p))
	}
}

// requeue queues pods that were bound to nodes before the nodes joined the fleet.
func (k kubelets) requeue() {
	for _, pod := range k.pods.GetStore().List() {
		k.look(pod)
	}
}

func work[T comparable](ctx context.Context, failed string, queue workqueue.TypedRateLimitingInterface[T],
	sync func(context.Context, T) error) {
	for {
		item, over := queue.Get()
		if over {
			return
		}
		err := sync(ctx, item)
		switch {
		case err == nil:
			queue.Forget(item)
		case ctx.Err() == nil:
			if !apierrors.IsConflict(err) { // the newer version is known when it is tried again
				klog.FromContext(ctx).Error(err, failed, "of", item)
			}
			queue.AddRateLimited(item)
		}
		queue.Done(item)
	}
}

// sync does what the pod's kubelet would do: it makes the pod Running, or deletes it if it is terminating.
func (k kubelets) sync(ctx context.Context, name cache.ObjectName) error {
	found, exists, err := k.pods.GetStore().GetByKey(name.String())
	if err != nil || !exists {
		return err
	}
	pod := found.(*corev1.Pod)
	pods := k.fleet.client.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		at := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0)),
			Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
		if err := pods.Delete(ctx, pod.Name, at); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("end pod: %w", err)
		}
		return nil
	}
	if pod.Status.Phase != corev1.PodPending {
		return nil
	}
	pod = pod.DeepCopy()
	pod.Status = running(pod, metav1.Now())
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("report that the pod runs: %w", err)
	}
	return nil
}

// running returns the status of a pod whose containers have all started. It has no addresses, because nothing would
// answer there.
func running(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.Phase, s.StartTime, s.ObservedGeneration = corev1.PodRunning, &now, pod.Generation
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized,
		corev1.ContainersReady, corev1.PodReady} {
		setTrue(&s, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation,
			LastTransitionTime: now})
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now,
		FinishedAt: now}}
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range pod.Spec.InitContainers {
		if sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways; sidecar {
			s.InitContainerStatuses = append(s.InitContainerStatuses, containerStatus(pod, c, runs))
		} else {
			s.InitContainerStatuses = append(s.InitContainerStatuses, containerStatus(pod, c, done))
		}
	}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, containerStatus(pod, c, runs))
	}
	return s
}

func setTrue(s *corev1.PodStatus, c corev1.PodCondition) {
	for i, is := range s.Conditions {
		if is.Type == c.Type {
			s.Conditions[i] = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

func containerStatus(pod *corev1.Pod, c corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ContainerID: fmt.Sprintf("fleet://%s/%s", pod.UID, c.Name),
		State: state, Ready: true, Started: ptr.To(state.Running != nil),
	}
}

// removePods deletes all pods of the node without a grace period.
func (f *Fleet) removePods(ctx context.Context, node string) error {
	pods, err := f.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(nodeOfPod, node).String()})
	if err != nil {
		return fmt.Errorf("list its pods: %w", err)
	}
	var errs []error
	for _, p := range pods.Items {
		errs = append(errs, client.IgnoreNotFound(f.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})))
	}
	return errors.Join(errs...)
}
