// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlevent "sigs.k8s.io/controller-runtime/pkg/event"
	ctrlhandler "sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// Reconcile creates the template that a converted pod waits for.
func (w *Webhook) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := w.cached.Get(ctx, req.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if needsNothing(&pod) {
		return reconcile.Result{}, nil
	}
	want, err := converter{Driver: w.view.Driver()}.template(&pod)
	if err != nil { // trying again does not help
		return reconcile.Result{}, w.tell(ctx, &pod, "not-converted-", Events.NotConverted, err.Error())
	}
	if want == nil { // it has its claim, or needs none
		return reconcile.Result{}, w.tellConverted(ctx, &pod)
	}
	var existing resourceapi.ResourceClaimTemplate
	key := client.ObjectKeyFromObject(want)
	if err = w.cached.Get(ctx, key, &existing); apierrors.IsNotFound(err) {
		if err = w.direct.Create(ctx, want); apierrors.IsAlreadyExists(err) {
			err = w.direct.Get(ctx, key, &existing)
		} else {
			existing = *want
		}
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{}, nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		// It may be a quota that grows.
		return reconcile.Result{}, errors.Join(err, w.tell(ctx, &pod, "not-converted-", Events.NotConverted,
			err.Error()))
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("template %s: %w", key, err)
	case !isFor(existing, &want.Spec.Spec):
		return reconcile.Result{}, w.tell(ctx, &pod, "not-converted-", Events.NotConverted, fmt.Sprintf(
			"the ResourceClaimTemplate %s is not what the pod needs: %s. In the first case delete the pod, so that "+
				"its owner creates it again with another template", key.Name, otherTemplate))
	}
	return reconcile.Result{}, w.tellConverted(ctx, &pod)
}

// tellConverted writes the event that the pod was converted, once in the time for which events are kept.
func (w *Webhook) tellConverted(ctx context.Context, pod *corev1.Pod) error {
	if time.Since(pod.CreationTimestamp.Time) > feature.EventLifetime {
		return nil
	}
	text := fmt.Sprintf("from %s to claims; the annotation %s has the original resources",
		pod.Labels[FamilyLabel], originalAnnotation)
	if notes := pod.Annotations[notesAnnotation]; notes != "" {
		text += ". " + notes
	}
	return w.tell(ctx, pod, "converted-", Events.Converted, text)
}

// needsNothing reports whether the pod needs no template any more: it has ended, or is being deleted.
func needsNothing(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || cluster.Finished(pod) }

// tell writes an event about a pod, whose name begins with prefix, unless it exists or the namespace does not.
func (w *Webhook) tell(ctx context.Context, pod *corev1.Pod, prefix string, kind event.Kind, text string) error {
	_, err := feature.CreateEvent(ctx, w.direct, kind, event.PodReference(pod), prefix+string(pod.UID), text)
	return err
}

const (
	// unusedPeriod is how often unused templates are deleted.
	unusedPeriod = 10 * time.Minute
	// unusedAge is the age from which an unused template is deleted. The webhook may have named it in a pod that the
	// cache does not have yet.
	unusedAge = 10 * time.Minute
)

// templateCollector deletes templates that no converted pod uses.
type templateCollector struct {
	guard  feature.Guard
	cached client.Reader
	direct client.Client
	now    func() time.Time
}

// Start deletes unused templates until ctx ends.
func (t *templateCollector) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := t.guard.Do("collect templates", func() error { return t.collect(ctx) })
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).WithName("conversion").Error(err, "Templates that no pod uses are not deleted")
		}
	}, unusedPeriod)
	return nil
}

func (t *templateCollector) collect(ctx context.Context) error {
	var templates resourceapi.ResourceClaimTemplateList
	var pods corev1.PodList
	if err := errors.Join(t.cached.List(ctx, &templates), t.cached.List(ctx, &pods)); err != nil {
		return err
	}
	used := map[types.NamespacedName]bool{}
	for i := range pods.Items {
		for _, name := range templatesOf(&pods.Items[i]) {
			used[types.NamespacedName{Namespace: pods.Items[i].Namespace, Name: name}] = true
		}
	}
	var errs []error
	for i := range templates.Items {
		one := &templates.Items[i]
		if used[client.ObjectKeyFromObject(one)] || !isTemplate(one) ||
			t.now().Sub(one.CreationTimestamp.Time) < unusedAge {
			continue
		}
		errs = append(errs, client.IgnoreNotFound(t.direct.Delete(ctx, one,
			client.Preconditions{UID: &one.UID, ResourceVersion: &one.ResourceVersion})))
	}
	return errors.Join(errs...)
}

// templatesOf returns the templates that a pod still needs.
func templatesOf(pod *corev1.Pod) (names []string) {
	if needsNothing(pod) {
		return nil
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			names = append(names, *c.ResourceClaimTemplateName)
		}
	}
	return names
}

// add adds the webhook, the creation of templates and their deletion to the controller.
func (c converter) add(to *feature.Controller) error {
	mgr := to.Manager
	w := NewWebhook(c.Families, to.View, mgr.GetClient(), to.Direct)
	w.configured = c
	// With a limit of its own: while it creates a template, the API server asks the webhooks for claims.
	to.ServeAlone(webhookPath, w)
	// All replicas serve the webhook, which reads templates. The others follow nothing else of the conversion.
	if _, err := mgr.GetCache().GetInformer(context.Background(), &resourceapi.ResourceClaimTemplate{},
		cache.BlockUntilSynced(false)); err != nil {
		return err
	}
	// What a pod needs does not change; a template that is deleted reconciles its pods.
	unchanged := predicate.Funcs{UpdateFunc: func(ctrlevent.UpdateEvent) bool { return false }}
	err := ctrl.NewControllerManagedBy(mgr).Named("conversion").For(&corev1.Pod{}, builder.WithPredicates(unchanged)).
		Watches(&resourceapi.ResourceClaimTemplate{}, ctrlhandler.EnqueueRequestsFromMapFunc(w.podsOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).Complete(w)
	return errors.Join(err, mgr.Add(&templateCollector{guard: to.Guard, cached: w.cached, direct: w.direct,
		now: time.Now}))
}

// podsOf returns the pods that use a template. They get a new one when it is deleted.
func (w *Webhook) podsOf(ctx context.Context, template client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := w.cached.List(ctx, &pods, client.InNamespace(template.GetNamespace())); err != nil {
		log.FromContext(ctx).Error(err, "Pods that wait for a template do not get it", "template",
			client.ObjectKeyFromObject(template))
		return nil
	}
	var all []reconcile.Request
	for i := range pods.Items {
		if slices.Contains(templatesOf(&pods.Items[i]), template.GetName()) {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
		}
	}
	return all
}

// strip returns what the conversion needs of a pod, for the cache.
func strip(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	slim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		CreationTimestamp: p.CreationTimestamp, Labels: map[string]string{}, Annotations: map[string]string{}}}
	for name, value := range p.Labels {
		if strings.HasPrefix(name, "gpu.nvidia.com/") {
			slim.Labels[name] = value
		}
	}
	for name, value := range p.Annotations {
		if strings.HasPrefix(name, "gpu.nvidia.com/") {
			slim.Annotations[name] = value
		}
	}
	slim.Spec.ResourceClaims = p.Spec.ResourceClaims
	slim.Status.Phase = p.Status.Phase
	slim.Status.ResourceClaimStatuses = p.Status.ResourceClaimStatuses
	return slim, nil
}
