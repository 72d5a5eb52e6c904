// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	resourceapi "k8s.io/api/resource/v1"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// optionalFieldsAnnotation lists the optional fields that a claim was written with, separated by commas: "gpu.capacity"
// is the field capacity of the request "gpu". An API server without the feature gate of a field drops it after the
// mutating webhooks and before the validating ones, and says nothing. A claim that lists a field which it does not have
// has lost it.
const optionalFieldsAnnotation = "gpu.nvidia.com/optional-fields"

// optionalFields are the fields of a request that need a feature gate, and what the request is without them.
var optionalFields = []struct{ name, gate, without string }{
	{"capacity", "DRAConsumableCapacity", "the request is for whole devices of any size"},
	{"tolerations", "DRADeviceTaints", "the request tolerates no taints"},
}

// optionalFieldsOf returns the optional fields that the requests have, sorted.
func optionalFieldsOf(spec *resourceapi.ResourceClaimSpec) []string {
	var has []string
	for _, r := range spec.Devices.Requests {
		var capacity, tolerations bool
		if r.Exactly != nil {
			capacity, tolerations = r.Exactly.Capacity != nil, len(r.Exactly.Tolerations) > 0
		}
		for _, a := range r.FirstAvailable {
			capacity, tolerations = capacity || a.Capacity != nil, tolerations || len(a.Tolerations) > 0
		}
		if capacity {
			has = append(has, r.Name+".capacity")
		}
		if tolerations {
			has = append(has, r.Name+".tolerations")
		}
	}
	slices.Sort(has)
	return has
}

// droppedFields says for each field that the claim has lost which feature gate the API server lacks.
func droppedFields(spec *resourceapi.ResourceClaimSpec, annotations map[string]string) (texts []string) {
	listed := annotations[optionalFieldsAnnotation]
	if listed == "" {
		return nil
	}
	has := optionalFieldsOf(spec)
	for _, is := range strings.Split(listed, ",") {
		request, name, _ := strings.Cut(is, ".")
		for _, f := range optionalFields {
			if f.name == name && !slices.Contains(has, is) {
				texts = append(texts, fmt.Sprintf(
					"the API server has dropped %q of the request %q, because its feature gate %s is off: %s",
					name, request, f.gate, f.without))
			}
		}
	}
	return texts
}

// annotated is a claim, or what a template makes claims from.
type annotated struct {
	Metadata *struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec resourceapi.ResourceClaimSpec `json:"spec"`
}

// lister writes optionalFieldsAnnotation.
type lister struct{}

// Handle annotates claims, and what templates make claims from. A field that is listed stays listed: a claim inherits
// it from a template that has lost the field.
func (lister) Handle(_ context.Context, req webhook.Request) webhook.Response {
	var template struct {
		Spec annotated `json:"spec"`
	}
	object, at := &annotated{}, ""
	var into any = object
	if req.Kind.Kind == "ResourceClaimTemplate" {
		object, into, at = &template.Spec, &template, "/spec"
	}
	if err := json.Unmarshal(req.Object.Raw, into); err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("%s %s: %w", req.Kind.Kind, req.Name, err))
	}
	has := optionalFieldsOf(&object.Spec)
	if len(has) == 0 {
		return webhook.Allowed("")
	}
	all := map[string]string{optionalFieldsAnnotation: strings.Join(has, ",")}
	switch {
	case object.Metadata == nil:
		return webhook.Patched("", jsonpatch.NewOperation("add", at+"/metadata", map[string]any{"annotations": all}))
	case object.Metadata.Annotations == nil:
		return webhook.Patched("", jsonpatch.NewOperation("add", at+"/metadata/annotations", all))
	case object.Metadata.Annotations[optionalFieldsAnnotation] != "":
		return webhook.Allowed("")
	}
	return webhook.Patched("", jsonpatch.NewOperation("add", at+"/metadata/annotations/"+
		strings.ReplaceAll(optionalFieldsAnnotation, "/", "~1"), all[optionalFieldsAnnotation]))
}
