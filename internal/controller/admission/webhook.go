// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
)

// Add adds the webhooks: one validates claims, templates and classes, one warns of pods, and one records optional
// fields.
func Add(c *feature.Controller, expander strongest.Expander) {
	validator := Validator{Checker{View: c.View}, expander}
	c.Serve("/validate", validator)
	c.Serve("/check", validator)
	c.ServeAlone("/check-pods", Pods{View: c.View, Templates: c.Direct})
	c.Serve("/optional-fields", OptionalFields{})
}

// Validator is the webhook that validates claims, templates and classes.
type Validator struct {
	Checker  Checker
	Expander strongest.Expander
}

// Handle validates objects on create, and classes also on update. The spec of a claim is immutable.
func (v Validator) Handle(ctx context.Context, req webhook.Request) webhook.Response {
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

func (v Validator) judge(ctx context.Context, req webhook.Request) (Verdict, error) {
	switch req.Kind.Kind {
	case "ResourceClaim", "ResourceClaimTemplate":
		claim, at, err := feature.DecodeClaim(req.Kind.Kind, req.Object.Raw)
		if err != nil {
			return Verdict{}, err
		}
		root := field.NewPath("spec")
		if at != "" {
			root = root.Child("spec")
		}
		return v.claim(ctx, claim, root), nil
	case "DeviceClass":
		var class resourceapi.DeviceClass
		if err := json.Unmarshal(req.Object.Raw, &class); err != nil {
			return Verdict{}, err
		}
		return v.Checker.DeviceClass(ctx, class.Name, &class.Spec, field.NewPath("spec")), nil
	}
	return Verdict{}, fmt.Errorf("a webhook configuration sends what this webhook is not for")
}

func (v Validator) claim(ctx context.Context, claim feature.AnnotatedClaim, root *field.Path) Verdict {
	written := v.Expander.Collapse(&claim.Spec)
	verdict := v.Checker.Claim(ctx, written, root)
	verdict.Warnings = append(verdict.Warnings, v.Expander.Unranked(written, root)...)
	verdict.Warnings = append(verdict.Warnings, DroppedFields(written, claim.Annotations())...)
	return verdict
}
