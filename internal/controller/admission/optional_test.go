// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

func TestOptionalFields(t *testing.T) {
	const share = `{requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, ` +
		`capacity: {requests: {memory: 5Gi}}}}]}`
	for _, tc := range []struct {
		name, kind, object string
		want               string // the annotation; empty: none
	}{
		{"a share", "ResourceClaim", `{metadata: {name: a}, spec: {devices: ` + share + `}}`, "gpu.capacity"},
		{"without metadata", "ResourceClaim", `{spec: {devices: ` + share + `}}`, "gpu.capacity"},
		{"with other annotations", "ResourceClaim",
			`{metadata: {annotations: {a: b}}, spec: {devices: ` + share + `}}`, "gpu.capacity"},
		{"a template", "ResourceClaimTemplate", `{spec: {metadata: {}, spec: {devices: ` + share + `}}}`,
			"gpu.capacity"},
		{"a template without metadata", "ResourceClaimTemplate", `{spec: {spec: {devices: ` + share + `}}}`,
			"gpu.capacity"},
		{"an alternative that tolerates", "ResourceClaim", `{spec: {devices: {requests: [{name: gpu, firstAvailable: ` +
			`[{name: a, deviceClassName: gpu.nvidia.com}, {name: b, deviceClassName: gpu.nvidia.com, tolerations: ` +
			`[{key: gpu.nvidia.com/xid, operator: Exists}]}]}]}}}`, "gpu.tolerations"},
		{"what is listed stays listed", "ResourceClaim", `{metadata: {annotations: {gpu.nvidia.com/optional-fields: ` +
			`other.capacity}}, spec: {devices: ` + share + `}}`, "gpu.capacity,other.capacity"},
		{"what a template has lost", "ResourceClaim", `{metadata: {annotations: {gpu.nvidia.com/optional-fields: ` +
			`gpu.capacity}}, spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}`,
			"gpu.capacity"},
		{"nothing optional", "ResourceClaim",
			`{spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := webhooktest.Request(t, tc.kind, tc.object)
			response := OptionalFields{}.Handle(t.Context(), req)
			if !response.Allowed {
				t.Fatal(response.Result)
			}
			after := webhooktest.Patched(t, req.Object.Raw, response)
			var claim resourceapi.ResourceClaim
			var template resourceapi.ResourceClaimTemplate
			if err := json.Unmarshal(after, &claim); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(after, &template); err != nil {
				t.Fatal(err)
			}
			got := claim.Annotations[optionalFieldsAnnotation]
			if tc.kind == "ResourceClaimTemplate" {
				got = template.Spec.Annotations[optionalFieldsAnnotation]
			}
			if got != tc.want {
				t.Errorf("got %q, want %q in %s", got, tc.want, after)
			}
			if claim.Annotations["a"] != "b" && strings.Contains(tc.object, "{a: b}") {
				t.Errorf("an annotation of the user is lost: %s", after)
			}
		})
	}
}

// A template can be applied again as it was written: its whole spec is immutable.
func TestOptionalFieldsOnUpdate(t *testing.T) {
	const written = `{spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, ` +
		`capacity: {requests: {memory: 5Gi}}}}]}}}}`
	for _, want := range []string{"gpu.capacity", ""} { // "": from before there was a webhook
		req := webhooktest.Request(t, "ResourceClaimTemplate", written)
		req.Operation = admissionv1.Update
		req.OldObject = webhooktest.Request(t, "ResourceClaimTemplate", `{spec: {metadata: {annotations: {`+
			`gpu.nvidia.com/optional-fields: "`+want+`"}}, spec: {devices: {requests: [{name: gpu, exactly: `+
			`{deviceClassName: gpu.nvidia.com}}]}}}}`).Object
		var template resourceapi.ResourceClaimTemplate
		after := webhooktest.Patched(t, req.Object.Raw, OptionalFields{}.Handle(t.Context(), req))
		if err := json.Unmarshal(after, &template); err != nil {
			t.Fatal(err)
		}
		if got := template.Spec.Annotations[optionalFieldsAnnotation]; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// What the API server sends to the validating webhook no longer has the field.
func TestDroppedFieldsAreAWarning(t *testing.T) {
	handler := Validator{Checker: Checker{View: clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})}}
	const gpu = `spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com`
	const listed = `{annotations: {gpu.nvidia.com/optional-fields: "gpu.capacity,gpu.tolerations"}}`
	const tolerates = `, tolerations: [{key: a, operator: Exists, effect: NoExecute}]`
	capacity := `the API server has dropped "capacity" of the request "gpu" when the claim or its template ` +
		`was created, because its feature gate DRAConsumableCapacity was off: the request is for whole devices of any size`
	tolerations := `the API server has dropped "tolerations" of the request "gpu" when the claim or its template ` +
		`was created, because its feature gate DRADeviceTaints was off: the request tolerates no taints`
	for _, tc := range []struct {
		name, kind, object string
		want               []string
	}{
		{"both", "ResourceClaim", `{metadata: ` + listed + `, ` + gpu + `}}]}}}`, []string{capacity, tolerations}},
		{"one", "ResourceClaim", `{metadata: ` + listed + `, ` + gpu + tolerates + `}}]}}}`, []string{capacity}},
		{"a template", "ResourceClaimTemplate", `{spec: {metadata: ` + listed + `, ` + gpu + `}}]}}}}`,
			[]string{capacity, tolerations}},
		{"another request", "ResourceClaim", `{metadata: ` + listed + `, ` + strings.Replace(gpu, "name: gpu", "name: a",
			1) + `}}]}}}`, nil},
		{"nothing", "ResourceClaim", `{` + gpu + `}}]}}}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			response := handler.Handle(t.Context(), webhooktest.Request(t, tc.kind, tc.object))
			if !response.Allowed || !slices.Equal(response.Warnings, tc.want) {
				t.Errorf("got %v %q, want %q", response.Result, response.Warnings, tc.want)
			}
		})
	}
}
