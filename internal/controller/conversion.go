// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
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
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/convert"
	"github.com/gpudra/gpu-dra-driver/internal/event"
)

// converter converts pods of older systems. As a webhook it writes into the pod only the name of a template. The leader
// creates the template when it sees the pod, so that nothing is created for a pod that is rejected.
type converter struct {
	view     *cluster.View
	families []string
	models   []convert.Model // besides those of the view
	memory   int64           // size of one aliyun.com/gpu-mem in bytes
	names    map[string]string
	cached   client.Reader // of converted pods and their templates
	direct   client.Client // without a cache

	// A burst of pods that ask for the same looks once whether the name of their template is free.
	looks singleflight.Group
	free  *utilcache.Expiring // names of templates that are free, or for pods like these
}

const (
	// conversionTimeout is how long the conversion of a pod may take. The API server waits for 5 s: hundreds of pods
	// may come at once.
	conversionTimeout = 4500 * time.Millisecond
	// freeFor is how long a name that was free is taken to be. The event of a pod tells if it was not.
	freeFor = 10 * time.Second
)

// converter returns the converter with the models and partitions that are published now.
func (c *converter) converter() convert.Converter {
	return convert.Converter{Driver: c.view.Driver(), Families: c.families,
		Models: slices.Concat(c.models, convert.ModelsOf(c.view)), Partitions: convert.PartitionsOf(c.view),
		MemoryUnit: c.memory, Names: c.names, Extended: c.view.ExtendedResources()}
}

// Handle converts a pod on create. On update it removes the resources that the conversion has removed, because who
// applies a manifest again sends them again.
func (c *converter) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	ctx, cancel := context.WithTimeout(ctx, conversionTimeout)
	defer cancel()
	var object map[string]any
	err := json.Unmarshal(req.Object.Raw, &object)
	warnings, problem := []string(nil), error(nil)
	switch {
	case err != nil:
	case req.Operation == admissionv1.Update:
		var old corev1.Pod
		if err = json.Unmarshal(req.OldObject.Raw, &old); err == nil && !c.converter().Restore(object, &old) {
			return webhook.Allowed("")
		}
	default:
		var pod corev1.Pod
		if err = json.Unmarshal(req.Object.Raw, &pod); err == nil {
			pod.Namespace = req.Namespace
			warnings, problem = c.create(ctx, &pod, object)
		}
	}
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("pod %s: %w", req.Name, err))
	}
	if problem != nil {
		return webhook.Denied(problem.Error())
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return webhook.Errored(http.StatusInternalServerError, err)
	}
	return webhook.PatchResponseFromRaw(req.Object.Raw, raw).WithWarnings(warnings...)
}

// create converts a new pod, which object is in JSON. The error refuses the pod.
func (c *converter) create(ctx context.Context, pod *corev1.Pod, object map[string]any) (warnings []string, err error) {
	converter := c.converter()
	conversion, err := converter.Convert(pod)
	if err == nil && conversion == nil {
		return converter.Unconverted(pod), nil
	}
	isMistake := err != nil && !errors.Is(err, convert.ErrNoModels)
	if err == nil {
		var template string
		if conversion.Spec != nil {
			template, err = c.freeName(ctx, pod.Namespace, conversion.Spec)
		}
		if err == nil {
			return conversion.Warnings, errors.Join(conversion.Apply(object, template), conversion.Mark(object, pod))
		}
	}
	if isMistake || !converter.Waits(pod) {
		return nil, err
	}
	return []string{"not converted: " + err.Error() + ". The pod waits: delete it and create it again later, or name " +
		"models for nodes that may come in the chart's value controller.conversion.models"}, nil
}

// freeName returns the name of the template for a spec: one that does not exist, or that a controller has created for
// this spec.
func (c *converter) freeName(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec) (string,
	error) {
	for attempt := range 10 {
		name, err := convert.TemplateName(spec, attempt)
		if err != nil {
			return "", err
		}
		key := types.NamespacedName{Namespace: namespace, Name: name}
		if free, err := c.isFree(ctx, key, spec); err != nil || free {
			return name, err
		}
	}
	return "", errors.New("templates exist with every name that the template of the claim could have, and none is " +
		"for this claim: " + otherTemplate)
}

// isFree reports whether there is no template of the name, or one that a controller has created for the spec.
func (c *converter) isFree(ctx context.Context, name types.NamespacedName,
	spec *resourceapi.ResourceClaimSpec) (bool, error) {
	var template resourceapi.ResourceClaimTemplate
	if err := c.cached.Get(ctx, name, &template); err == nil && isFor(template, spec) {
		return true, nil
	}
	if _, free := c.free.Get(name); free {
		return true, nil
	}
	free, err, _ := c.looks.Do(name.String(), func() (any, error) {
		// Others wait for the answer, who have more time than the first.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), conversionTimeout)
		defer cancel()
		err := c.direct.Get(ctx, name, &template)
		free := apierrors.IsNotFound(err) || err == nil && isFor(template, spec)
		if free {
			c.free.Set(name, nil, freeFor)
		}
		return free, client.IgnoreNotFound(err)
	})
	return free.(bool), err
}

// otherTemplate is why a template with the name for a spec has another spec. Who has created it cannot be told.
const otherTemplate = "somebody else has created it, or the API server has dropped fields of it, because their " +
	"feature gate is off"

// isFor reports whether a controller has created the template for the spec, and the API server has kept all of it.
func isFor(template resourceapi.ResourceClaimTemplate, spec *resourceapi.ResourceClaimSpec) bool {
	want, err := convert.TemplateName(spec, 0)
	return err == nil && convert.IsTemplate(&template) && strings.HasPrefix(template.Name, want)
}

// Reconcile creates the template that a converted pod waits for.
func (c *converter) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := c.cached.Get(ctx, req.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if isOver(&pod) {
		return reconcile.Result{}, nil
	}
	want, err := convert.Converter{Driver: c.view.Driver()}.Template(&pod)
	if err != nil { // trying again does not help
		return reconcile.Result{}, c.tell(ctx, &pod, "not-converted-", Events.NotConverted, err.Error())
	}
	if want == nil { // it has its claim, or needs none
		return reconcile.Result{}, c.tellConverted(ctx, &pod)
	}
	var existing resourceapi.ResourceClaimTemplate
	key := client.ObjectKeyFromObject(want)
	if err = c.cached.Get(ctx, key, &existing); apierrors.IsNotFound(err) {
		if err = c.direct.Create(ctx, want); apierrors.IsAlreadyExists(err) {
			err = c.direct.Get(ctx, key, &existing)
		} else {
			existing = *want
		}
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{}, nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		// It may be a quota that grows.
		return reconcile.Result{}, errors.Join(err, c.tell(ctx, &pod, "not-converted-", Events.NotConverted,
			err.Error()))
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("template %s: %w", key, err)
	case !isFor(existing, &want.Spec.Spec):
		return reconcile.Result{}, c.tell(ctx, &pod, "not-converted-", Events.NotConverted, fmt.Sprintf(
			"the ResourceClaimTemplate %s is not what the pod needs: %s. In the first case delete the pod, so that "+
				"its owner creates it again with another template", key.Name, otherTemplate))
	}
	return reconcile.Result{}, c.tellConverted(ctx, &pod)
}

// tellConverted writes the event that the pod was converted, once in the time for which events are kept.
func (c *converter) tellConverted(ctx context.Context, pod *corev1.Pod) error {
	if time.Since(pod.CreationTimestamp.Time) > reportedAge {
		return nil
	}
	text := fmt.Sprintf("from %s to claims; the annotation %s has the original resources",
		pod.Labels[convert.FamilyLabel], convert.OriginalAnnotation)
	if notes := pod.Annotations[convert.NotesAnnotation]; notes != "" {
		text += ". " + notes
	}
	return c.tell(ctx, pod, "converted-", Events.Converted, text)
}

func isOver(pod *corev1.Pod) bool {
	phase := pod.Status.Phase
	return pod.DeletionTimestamp != nil || phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// tell writes an event about a pod, whose name begins with prefix, unless it exists or the namespace does not.
func (c *converter) tell(ctx context.Context, pod *corev1.Pod, prefix string, kind event.Kind, text string) error {
	_, err := createEvent(ctx, c.direct, kind, podReference(pod), prefix+string(pod.UID), text)
	return err
}

const (
	// unusedPeriod is the time between two looks for unused templates.
	unusedPeriod = 10 * time.Minute
	// unusedAge is the age from which an unused template is deleted. The webhook may have named it in a pod that the
	// cache does not have yet.
	unusedAge = 10 * time.Minute
)

// templateCollector deletes templates that no converted pod uses.
type templateCollector struct {
	safe   *guarded
	cached client.Reader
	direct client.Client
	now    func() time.Time
}

// NeedLeaderElection is true: one replica deletes.
func (t *templateCollector) NeedLeaderElection() bool { return true }

// Start deletes unused templates until ctx ends.
func (t *templateCollector) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("conversion")
	for {
		err := t.safe.do("collect templates", func() error { return t.collect(ctx) })
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Templates that no pod uses are not deleted")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(unusedPeriod):
		}
	}
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
		if used[client.ObjectKeyFromObject(one)] || !convert.IsTemplate(one) ||
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
	if isOver(pod) {
		return nil
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			names = append(names, *c.ResourceClaimTemplateName)
		}
	}
	return names
}

// addConversion adds the creation of templates and their deletion to the manager.
func addConversion(mgr ctrl.Manager, c Config, v *cluster.View, safe *guarded) (*converter, error) {
	direct, err := client.New(c.REST, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, err
	}
	made := &converter{view: v, families: c.ConvertFamilies, models: c.ConvertModels, memory: c.ConvertMemoryUnit,
		names:  c.ConvertNames,
		cached: mgr.GetClient(), direct: direct, free: utilcache.NewExpiring()}
	// All replicas serve the webhook, which looks for templates. The others follow nothing else of the conversion.
	if _, err := mgr.GetCache().GetInformer(context.Background(), &resourceapi.ResourceClaimTemplate{},
		cache.BlockUntilSynced(false)); err != nil {
		return nil, err
	}
	// What a pod needs does not change; a template that is deleted reconciles its pods.
	unchanged := predicate.Funcs{UpdateFunc: func(ctrlevent.UpdateEvent) bool { return false }}
	err = ctrl.NewControllerManagedBy(mgr).Named("conversion").For(&corev1.Pod{}, builder.WithPredicates(unchanged)).
		Watches(&resourceapi.ResourceClaimTemplate{}, ctrlhandler.EnqueueRequestsFromMapFunc(made.podsOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).Complete(made)
	return made, errors.Join(err, mgr.Add(&templateCollector{safe: safe, cached: mgr.GetClient(), direct: direct,
		now: time.Now}))
}

// podsOf returns the pods that use a template. They get a new one when it is deleted.
func (c *converter) podsOf(ctx context.Context, template client.Object) []reconcile.Request {
	var pods corev1.PodList
	if err := c.cached.List(ctx, &pods, client.InNamespace(template.GetNamespace())); err != nil {
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

// slimConverted keeps what the conversion needs of a pod.
func slimConverted(p *corev1.Pod) *corev1.Pod {
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
	return slim
}
