// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"gomodules.xyz/jsonpatch/v2"
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
	case "ResourceClaim":
		var claim resourceapi.ResourceClaim
		if err := json.Unmarshal(req.Object.Raw, &claim); err != nil {
			return admission.Verdict{}, err
		}
		return v.claim(ctx, &claim.Spec, field.NewPath("spec")), nil
	case "ResourceClaimTemplate":
		var template resourceapi.ResourceClaimTemplate
		if err := json.Unmarshal(req.Object.Raw, &template); err != nil {
			return admission.Verdict{}, err
		}
		return v.claim(ctx, &template.Spec.Spec, field.NewPath("spec", "spec")), nil
	case "DeviceClass":
		var class resourceapi.DeviceClass
		if err := json.Unmarshal(req.Object.Raw, &class); err != nil {
			return admission.Verdict{}, err
		}
		return v.checker.DeviceClass(ctx, &class.Spec, field.NewPath("spec")), nil
	}
	return admission.Verdict{}, fmt.Errorf("a webhook configuration sends what this webhook is not for")
}

func (v validator) claim(ctx context.Context, spec *resourceapi.ResourceClaimSpec, root *field.Path) admission.Verdict {
	verdict := v.checker.Claim(ctx, spec, root)
	verdict.Warnings = append(verdict.Warnings, v.expander.Unranked(spec, root)...)
	return verdict
}

// ranker expands requests for the strongest GPU.
type ranker struct{ expander strongest.Expander }

// Handle mutates claims on create. A request that it cannot expand stays as it is, and gets any whole GPU.
func (r ranker) Handle(ctx context.Context, req webhook.Request) webhook.Response {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	var claim resourceapi.ResourceClaim
	if err := json.Unmarshal(req.Object.Raw, &claim); err != nil {
		return webhook.Errored(http.StatusBadRequest, fmt.Errorf("claim %s: %w", req.Name, err))
	}
	if _, implicit := claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation]; implicit {
		return webhook.Allowed("the scheduler has made it for a GPU that it has found already")
	}
	if err := checkUnknownFields(req.Object.Raw); err != nil {
		return webhook.Allowed("").WithWarnings(fmt.Sprintf("this claim gets any whole GPU: %v", err))
	}
	before := claim.Spec.DeepCopy().Devices.Requests
	if !r.expander.Expand(ctx, &claim.Spec) {
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

// checkUnknownFields returns an error if the requests have fields that this version does not know: it would drop them.
func checkUnknownFields(claim []byte) error {
	var in struct {
		Spec struct {
			Devices struct {
				Requests []resourceapi.DeviceRequest `json:"requests"`
			} `json:"devices"`
		} `json:"spec"`
	}
	unknown, err := kjson.UnmarshalStrict(claim, &in)
	if err != nil {
		return err
	}
	for _, e := range unknown {
		if strings.Contains(e.Error(), "spec.devices.requests") {
			return errors.New("its requests have fields that the controller does not know: " + e.Error())
		}
	}
	return nil
}
