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

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
)

// The paths of the webhooks.
const (
	validatePath  = "/validate"
	strongestPath = "/strongest"
	optionalPath  = "/optional-fields"
	convertPath   = "/convert"
)

// webhookTimeout is how long a webhook may take. The API server waits for a second.
const webhookTimeout = 800 * time.Millisecond

// validator validates claims, templates and classes.
type validator struct {
	checker  admission.Checker
	expander strongest.Expander
}

// Handle validates objects on create, and classes also on update. The spec of a claim is immutable.
func (v validator) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	verdict, err := v.judge(ctx, req)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("%s %s: %w", req.Kind.Kind, req.Name, err))
	}
	if len(verdict.Problems) > 0 {
		return webhook.Denied(problemsText(verdict.Problems)).WithWarnings(verdict.Warnings...)
	}
	return webhook.Allowed("").WithWarnings(verdict.Warnings...)
}

// problemsText joins all problems in one message.
func problemsText(problems []error) string {
	if len(problems) == 1 {
		return problems[0].Error()
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, "\n  - "+strings.ReplaceAll(p.Error(), "\n", "; "))
	}
	return fmt.Sprintf("%d problems:%s", len(problems), strings.Join(lines, ""))
}

func (v validator) judge(ctx context.Context, req webhook.Request) (admission.Verdict, error) {
	switch req.Kind.Kind {
	case "ResourceClaim", "ResourceClaimTemplate":
		object, at, err := annotatedOf(req.Kind.Kind, req.Object.Raw)
		if err != nil {
			return admission.Verdict{}, err
		}
		root := field.NewPath("spec")
		if at != "" {
			root = root.Child("spec")
		}
		return v.claim(ctx, object, root), nil
	case "DeviceClass":
		var class resourceapi.DeviceClass
		if err := json.Unmarshal(req.Object.Raw, &class); err != nil {
			return admission.Verdict{}, err
		}
		return v.checker.DeviceClass(ctx, &class.Spec, field.NewPath("spec")), nil
	}
	return admission.Verdict{}, fmt.Errorf("a webhook configuration sends what this webhook is not for")
}

func (v validator) claim(ctx context.Context, object annotated, root *field.Path) admission.Verdict {
	written := v.expander.Collapse(&object.Spec)
	verdict := v.checker.Claim(ctx, written, root)
	verdict.Warnings = append(verdict.Warnings, v.expander.Unranked(written, root)...)
	verdict.Warnings = append(verdict.Warnings, droppedFields(written, object.annotations())...)
	return verdict
}

// annotated is a claim, or what a template makes claims from.
type annotated struct {
	Metadata *struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec resourceapi.ResourceClaimSpec `json:"spec"`
}

func (a annotated) annotations() map[string]string {
	if a.Metadata == nil {
		return nil
	}
	return a.Metadata.Annotations
}

// annotatedOf decodes a claim, or what a template makes claims from. at is its place in the object, as a JSON pointer.
func annotatedOf(kind string, raw []byte) (object annotated, at string, err error) {
	if kind != "ResourceClaimTemplate" {
		err = json.Unmarshal(raw, &object)
		return object, "", err
	}
	var template struct {
		Spec annotated `json:"spec"`
	}
	err = json.Unmarshal(raw, &template)
	return template.Spec, "/spec", err
}

// ranker expands requests for the strongest GPU.
type ranker struct{ expander strongest.Expander }

// Handle mutates claims. On create, it expands requests; a request that it cannot expand stays as it is, and gets any
// whole GPU. On update, it puts back the lists that it made on create.
func (r ranker) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	if req.Operation == admissionv1.Update {
		return r.update(req)
	}
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	var claim annotated
	unknown, err := kjson.UnmarshalStrict(req.Object.Raw, &claim)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("claim %s: %w", req.Name, err))
	}
	if _, implicit := claim.annotations()[resourceapi.ExtendedResourceClaimAnnotation]; implicit {
		return webhook.Allowed("the scheduler has made it for a GPU that it has found already")
	}
	if err := unknownRequestField(unknown); err != nil {
		return webhook.Allowed("").WithWarnings(fmt.Sprintf("this claim gets any whole GPU: %v", err))
	}
	before := slices.Clone(claim.Spec.Devices.Requests)
	changed := r.expander.Expand(ctx, &claim.Spec)
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
