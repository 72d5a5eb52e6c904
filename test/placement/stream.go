// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// decisionTimeout limits the wait for the scheduler's decision about one pod.
const decisionTimeout = 3 * time.Minute

// decision is what the scheduler has decided about a pod.
type decision struct {
	node string // empty: it was refused
	why  string // of a refusal
}

// submitter creates pods with their claims and sees what the scheduler decides.
type submitter struct {
	client    kubernetes.Interface
	scheduler string

	mu      sync.Mutex
	pending map[string]chan decision // by pod
	gone    map[string]chan struct{} // by claim: closed when it is deleted
	failed  error
}

// newSubmitter returns a submitter whose watches have started.
func newSubmitter(ctx context.Context, c kubernetes.Interface, scheduler string) (*submitter, error) {
	s := &submitter{client: c, scheduler: scheduler, pending: map[string]chan decision{},
		gone: map[string]chan struct{}{}}
	pods := coreinformers.NewPodInformer(c, namespace, 0, nil)
	claims := resourceinformers.NewResourceClaimInformer(c, namespace, 0, nil)
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) { s.look(ctx, o.(*corev1.Pod)) }}); err != nil {
		return nil, err
	}
	if _, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
		if claim, ok := o.(*resourceapi.ResourceClaim); ok {
			s.deleted(claim.Name)
		}
	}}); err != nil {
		return nil, err
	}
	for _, informer := range []cache.SharedIndexInformer{pods, claims} {
		if err := informer.SetTransform(dropManagedFields); err != nil {
			return nil, err
		}
		go informer.RunWithContext(ctx)
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil, context.Cause(ctx)
		}
	}
	return s, nil
}

// dropManagedFields removes the managed fields, which are large and not used here.
func dropManagedFields(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// look handles a new version of a pod.
func (s *submitter) look(ctx context.Context, pod *corev1.Pod) {
	if pod.Spec.NodeName != "" {
		s.decide(pod.Name, decision{node: pod.Spec.NodeName})
		return
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			go s.refuse(ctx, pod, c.Message)
		}
	}
}

// refuse deletes a pod that the scheduler has refused, with its claim. If the pod has changed, its next version
// decides.
func (s *submitter) refuse(ctx context.Context, pod *corev1.Pod, why string) {
	err := s.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To(int64(0)),
		Preconditions:      &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return
	case err != nil:
		s.fail(fmt.Errorf("delete pod %s, which was refused: %w", pod.Name, err))
		return
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		err := s.client.ResourceV1().ResourceClaims(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
		if client.IgnoreNotFound(err) != nil {
			s.fail(fmt.Errorf("delete claim %s: %w", pod.Name, err))
			return
		}
	}
	s.decide(pod.Name, decision{why: why})
}

func (s *submitter) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

func (s *submitter) decide(pod string, d decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waits := s.pending[pod]; waits != nil {
		waits <- d
		delete(s.pending, pod)
	}
}

func (s *submitter) deleted(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waits := s.gone[claim]; waits != nil {
		close(waits)
		delete(s.gone, claim)
	}
}

// claim creates the pod's claim, if it has one.
func (s *submitter) claim(ctx context.Context, name string, p trace.Pod) error {
	claim := newClaim(name, p)
	if claim == nil {
		return nil
	}
	_, err := s.client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
	return err
}

// submit creates the pod. The channel delivers the decision.
func (s *submitter) submit(ctx context.Context, name string, p trace.Pod) (<-chan decision, error) {
	decided := make(chan decision, 1)
	s.mu.Lock()
	s.pending[name] = decided
	s.mu.Unlock()
	_, err := s.client.CoreV1().Pods(namespace).Create(ctx, newPod(name, s.scheduler, p), metav1.CreateOptions{})
	return decided, err
}

// await returns the decision about the pod.
func (s *submitter) await(ctx context.Context, name string, decided <-chan decision) (decision, error) {
	select {
	case d := <-decided:
		s.mu.Lock()
		defer s.mu.Unlock()
		return d, s.failed
	case <-ctx.Done():
		return decision{}, context.Cause(ctx)
	case <-time.After(decisionTimeout):
		s.mu.Lock()
		defer s.mu.Unlock()
		return decision{}, errors.Join(fmt.Errorf("pod %s: the scheduler has not decided in %s", name, decisionTimeout),
			s.failed)
	}
}

// remove deletes a pod that was placed, and its claim. It does what the controller manager does when a pod has ended:
// it removes the finalizer of the claim. It returns when the deletion of the claim was seen by a watch.
func (s *submitter) remove(ctx context.Context, name string, p trace.Pod) error {
	if err := s.client.CoreV1().Pods(namespace).Delete(ctx, name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		return err
	}
	if p.GPUs == 0 {
		return nil
	}
	seen := make(chan struct{})
	s.mu.Lock()
	s.gone[name] = seen
	s.mu.Unlock()
	claims := s.client.ResourceV1().ResourceClaims(namespace)
	if _, err := claims.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := client.IgnoreNotFound(claims.Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
		return err
	}
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(decisionTimeout):
		return fmt.Errorf("claim %s: its deletion was not seen in %s", name, decisionTimeout)
	}
}
