// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// optionalFieldsAnnotation lists the optional fields that a claim was written with, separated by commas: "gpu.capacity"
// is the field capacity of the request "gpu". An API server without the feature gate of a field drops it after the
// mutating webhooks and before the validating ones, and says nothing. A claim that lists a field which it does not have
// has lost it.
const optionalFieldsAnnotation = "gpu.nvidia.com/optional-fields"

// optionalFields are the fields of a request that need a feature gate, and what the request is without them.
var optionalFields = []struct {
	name, gate, without string
	in                  func(cluster.Subrequest) bool
}{
	{"capacity", "DRAConsumableCapacity", "the request is for whole devices of any size",
		func(s cluster.Subrequest) bool { return *s.Capacity != nil }},
	{"tolerations", "DRADeviceTaints", "the request tolerates no taints",
		func(s cluster.Subrequest) bool { return len(*s.Tolerations) > 0 }},
}

// optionalFieldsOf returns the optional fields that the requests have, sorted.
func optionalFieldsOf(spec *resourceapi.ResourceClaimSpec) []string {
	var has []string
	for i, alternatives := range cluster.Requests(spec) {
		for _, f := range optionalFields {
			if slices.ContainsFunc(alternatives, f.in) {
				has = append(has, spec.Devices.Requests[i].Name+"."+f.name)
			}
		}
	}
	slices.Sort(has)
	return has
}

// DroppedFields says for each field that the requests have lost which feature gate the API server lacked.
func DroppedFields(spec *resourceapi.ResourceClaimSpec, annotations map[string]string) (texts []string) {
	listed := annotations[optionalFieldsAnnotation]
	if listed == "" {
		return nil
	}
	has := optionalFieldsOf(spec)
	for _, r := range spec.Devices.Requests {
		for _, f := range optionalFields {
			field := r.Name + "." + f.name
			if !strings.Contains(","+listed+",", ","+field+",") || slices.Contains(has, field) {
				continue
			}
			texts = append(texts, fmt.Sprintf("the API server has dropped %q of the request %q when the claim or its "+
				"template was created, because its feature gate %s was off: %s", f.name, r.Name, f.gate, f.without))
		}
	}
	return texts
}

// OptionalFields is the webhook that writes optionalFieldsAnnotation.
type OptionalFields struct{}

// Handle annotates claims, and what templates make claims from. On create, a field that is listed stays listed: a claim
// inherits it from a template that has lost the field. On update, the annotation is restored.
func (OptionalFields) Handle(_ context.Context, req webhook.Request) webhook.Response {
	object, at, err := feature.DecodeClaim(req.Kind.Kind, req.Object.Raw)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("%s %s: %w", req.Kind.Kind, req.Name, err))
	}
	var want string
	is := object.Annotations()[optionalFieldsAnnotation]
	if req.Operation == admissionv1.Update {
		old, _, err := feature.DecodeClaim(req.Kind.Kind, req.OldObject.Raw)
		if err != nil {
			return webhook.Errored(http.StatusBadRequest, fmt.Errorf("%s %s: %w", req.Kind.Kind, req.Name, err))
		}
		want = old.Annotations()[optionalFieldsAnnotation]
	} else {
		all := append(strings.Split(is, ","), optionalFieldsOf(&object.Spec)...)
		slices.Sort(all)
		want = strings.Trim(strings.Join(slices.Compact(all), ","), ",")
	}
	entry := map[string]string{optionalFieldsAnnotation: want}
	switch {
	case want == is:
		return webhook.Allowed("")
	case object.Metadata == nil:
		return webhook.Patched("", jsonpatch.NewOperation("add", at+"/metadata", map[string]any{"annotations": entry}))
	case object.Annotations() == nil:
		return webhook.Patched("", jsonpatch.NewOperation("add", at+"/metadata/annotations", entry))
	}
	return webhook.Patched("", jsonpatch.NewOperation("add", at+"/metadata/annotations/"+
		strings.ReplaceAll(optionalFieldsAnnotation, "/", "~1"), want))
}
