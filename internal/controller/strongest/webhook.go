// SPDX-License-Identifier: Apache-2.0

package strongest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// Add adds the webhook that expands requests.
func (e Expander) Add(c *feature.Controller) { c.Serve("/strongest", e) }

// Handle mutates claims. On create, it expands requests; a request that it cannot expand stays as it is, and gets any
// whole GPU. On update, it restores the lists that it made on create.
func (e Expander) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	if req.Operation == admissionv1.Update {
		return e.update(req)
	}
	var claim feature.AnnotatedClaim
	unknown, err := kjson.UnmarshalStrict(req.Object.Raw, &claim)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("claim %s: %w", req.Name, err))
	}
	if _, implicit := claim.Annotations()[resourceapi.ExtendedResourceClaimAnnotation]; implicit {
		return webhook.Allowed("the scheduler has made it for a GPU that it has found already")
	}
	if err := unknownRequestField(unknown); err != nil {
		return webhook.Allowed("").WithWarnings(fmt.Sprintf("this claim gets any whole GPU: %v", err))
	}
	before := slices.Clone(claim.Spec.Devices.Requests)
	changed := e.Expand(ctx, &claim.Spec)
	if ctx.Err() != nil {
		return webhook.Allowed("").WithWarnings(
			"this claim gets any whole GPU: the controller took too long to rank it")
	}
	if !changed {
		return webhook.Allowed("")
	}
	var patches []jsonpatch.Operation
	for i, request := range claim.Spec.Devices.Requests {
		if before[i].Exactly == nil || request.Exactly != nil {
			continue
		}
		at := fmt.Sprintf("/spec/devices/requests/%d/", i)
		patches = append(patches, jsonpatch.NewOperation("remove", at+"exactly", nil),
			jsonpatch.NewOperation("add", at+"firstAvailable", request.FirstAvailable))
	}
	return webhook.Patched("", patches...)
}

// unknownRequestField returns the first of the errors that is about a field of a request: this version does not know
// the field, and would drop it.
func unknownRequestField(unknown []error) error {
	for _, e := range unknown {
		if strings.Contains(e.Error(), "spec.devices.requests") {
			return errors.New("its requests have fields that the controller does not know: " + e.Error())
		}
	}
	return nil
}
