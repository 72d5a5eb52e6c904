// SPDX-License-Identifier: Apache-2.0

package convert

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
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
)

// webhookPath is the path of the webhook, which the chart has too.
const webhookPath = "/convert"

// Webhook converts pods of older systems when they are created. It writes into a pod only the name of a template. The
// leader creates the template when it sees the pod, so that nothing is created for a pod that is rejected.
type Webhook struct {
	configured converter // with the values of flags
	view       *cluster.View
	cached     client.Reader // of converted pods and their templates
	direct     client.Client // without a cache

	// A burst of pods that ask for the same asks the API server once whether the name of their template is free.
	reads singleflight.Group
	free  *utilcache.Expiring // names of templates that are free, or for pods like these
}

// NewWebhook returns a webhook that converts pods of these families to claims for the GPUs of the view.
func NewWebhook(families []string, v *cluster.View, cached client.Reader, direct client.Client) *Webhook {
	return &Webhook{configured: converter{Families: families}, view: v,
		cached: cached, direct: direct, free: utilcache.NewExpiring()}
}

const (
	// freeFor is how long a name that was free is taken to be. The event of a pod tells if it was not.
	freeFor = 10 * time.Second
	// readTimeout is how long the API server may take to say whether a name is free.
	readTimeout = 10 * time.Second
)

// converter returns the converter with the models and partitions that are published now.
func (w *Webhook) converter() converter {
	c := w.configured
	c.Driver, c.Extended = w.view.Driver(), w.view.ExtendedResources()
	c.Models, c.Partitions = slices.Concat(c.Models, modelsOf(w.view)), partitionsOf(w.view)
	return c
}

// Handle converts a pod on create. On update it removes the resources that the conversion removed: a manifest that is
// applied again has them again. It refuses an update that asks for something else.
func (w *Webhook) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	var object map[string]any
	err := json.Unmarshal(req.Object.Raw, &object)
	var warnings []string
	var refusal error
	switch {
	case err != nil:
	case req.Operation == admissionv1.Update:
		var old corev1.Pod
		changed := false
		if err = json.Unmarshal(req.OldObject.Raw, &old); err == nil {
			changed, refusal = w.converter().restore(object, &old)
		}
		if err == nil && refusal == nil && !changed {
			return webhook.Allowed("")
		}
	default:
		var pod corev1.Pod
		if err = json.Unmarshal(req.Object.Raw, &pod); err == nil {
			pod.Namespace = req.Namespace
			warnings, refusal = w.create(ctx, &pod, object)
		}
	}
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("pod %s: %w", req.Name, err))
	}
	if refusal != nil {
		return webhook.Denied(refusal.Error())
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return webhook.Errored(http.StatusInternalServerError, err)
	}
	return webhook.PatchResponseFromRaw(req.Object.Raw, raw).WithWarnings(warnings...)
}

// create converts a new pod, which object is in JSON.
func (w *Webhook) create(ctx context.Context, pod *corev1.Pod, object map[string]any) (warnings []string,
	refusal error) {
	converter := w.converter()
	conversion, err := converter.convertPod(pod)
	switch {
	case errors.Is(err, errNoModels):
		return converter.wait(pod, err)
	case err != nil:
		return nil, err
	case conversion == nil:
		return converter.unconverted(pod), nil
	}
	var template string
	if conversion.Spec != nil {
		if template, err = w.freeName(ctx, pod.Namespace, conversion.Spec); err != nil {
			return converter.wait(pod, err)
		}
	}
	return conversion.Warnings, errors.Join(conversion.apply(object, template), conversion.mark(object, pod))
}

// wait lets a pod wait that could be converted later, with a warning that says why. It refuses a pod that would start
// without a GPU.
func (c converter) wait(pod *corev1.Pod, why error) (warnings []string, refusal error) {
	if !c.waits(pod) {
		return nil, why
	}
	return []string{"not converted: " + why.Error() + ". The pod waits: delete it and create it again later, or name " +
		"models for nodes that may come in the chart's value controller.conversion.models"}, nil
}

// freeName returns the name of the template for a spec: one that does not exist, or that a controller has created for
// this spec.
func (w *Webhook) freeName(ctx context.Context, namespace string, spec *resourceapi.ResourceClaimSpec) (string,
	error) {
	for attempt := range 10 {
		name, err := templateName(spec, attempt)
		if err != nil {
			return "", err
		}
		key := types.NamespacedName{Namespace: namespace, Name: name}
		if free, err := w.isFree(ctx, key, spec); err != nil || free {
			return name, err
		}
	}
	return "", errors.New("templates exist with every name that the template of the claim could have, and none is " +
		"for this claim: " + otherTemplate)
}

// isFree reports whether there is no template of the name, or one that a controller has created for the spec.
func (w *Webhook) isFree(ctx context.Context, name types.NamespacedName,
	spec *resourceapi.ResourceClaimSpec) (bool, error) {
	var template resourceapi.ResourceClaimTemplate
	if err := w.cached.Get(ctx, name, &template); err == nil && isFor(template, spec) {
		return true, nil
	}
	if _, free := w.free.Get(name); free {
		return true, nil
	}
	read := w.reads.DoChan(name.String(), func() (any, error) {
		// Other calls wait for the same answer, and may have more time than this one.
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		err := w.direct.Get(shared, name, &template)
		free := apierrors.IsNotFound(err) || err == nil && isFor(template, spec)
		if free {
			w.free.Set(name, nil, freeFor)
		}
		return free, client.IgnoreNotFound(err)
	})
	select {
	case answer := <-read:
		return answer.Val.(bool), answer.Err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// otherTemplate is why a template with the name for a spec has another spec. Who has created it cannot be told.
const otherTemplate = "somebody else has created it, or the API server has dropped fields of it, because their " +
	"feature gate is off"

// isFor reports whether a controller has created the template for the spec, and the API server has kept all of it.
func isFor(template resourceapi.ResourceClaimTemplate, spec *resourceapi.ResourceClaimSpec) bool {
	want, err := templateName(spec, 0)
	return err == nil && isTemplate(&template) && strings.HasPrefix(template.Name, want)
}
