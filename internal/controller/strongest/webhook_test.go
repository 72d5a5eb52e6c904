// SPDX-License-Identifier: Apache-2.0

package strongest_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

// A claim that is not ranked in time gets a warning.
func TestWebhookWithoutTime(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "l40s-x4"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}.Handle(ctx,
		webhooktest.Request(t, "ResourceClaim", asksForStrongest))
	if !got.Allowed || len(got.Patches) > 0 || len(got.Warnings) != 1 ||
		!strings.Contains(got.Warnings[0], "took too long to rank it") {
		t.Errorf("got %+v, want it allowed as it is, with a warning", got)
	}
}

func TestWebhook(t *testing.T) {
	handler := strongest.Expander{Class: "strongest.gpu.nvidia.com",
		Ranks: 4,
		View: clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b",
			Profile: "l40s-x4"})}
	const asks = `spec: {devices: {requests: [{name: first, exactly: {deviceClassName: gpu.nvidia.com, count: 1}}, {name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, count: 1MORE}}]FIELDS}}`
	claim := func(more, fields string) string {
		return strings.NewReplacer("MORE", more, "FIELDS", fields).Replace(asks)
	}
	for _, tc := range []struct {
		name, object string
		expanded     bool
		warned       string
	}{
		{"a claim", claim("", ""), true, ""},
		{"a claim with fields that are newer than the controller", claim("", ", newer: {field: 1}"), true, ""},
		{"a request with fields that are newer", claim(", newer: 1", ""), false,
			"its requests have fields that the controller does not know"},
		{"the scheduler's own",
			"metadata: {annotations: {resource.kubernetes.io/extended-resource-claim: \"true\"}}\n" + claim("", ""),
			false, ""},
		{"not a claim", "spec: 5", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := webhooktest.Request(t, "ResourceClaim", tc.object)
			got := handler.Handle(t.Context(), req)
			if warned := strings.Join(got.Warnings, " "); !strings.Contains(warned, tc.warned) ||
				(warned == "") != (tc.warned == "") {
				t.Errorf("warned: got %q, want %q", warned, tc.warned)
			}
			if !tc.expanded {
				if len(got.Patches) > 0 {
					t.Errorf("got %v, want nothing changed", got.Patches)
				}
				return
			}
			object := webhooktest.Patched(t, req.Object.Raw, got)
			var after resourceapi.ResourceClaim
			if err := json.Unmarshal(object, &after); err != nil {
				t.Fatal(err)
			}
			requests := after.Spec.Devices.Requests
			if requests[0].Exactly == nil || requests[1].Exactly != nil || len(requests[1].FirstAvailable) != 8 ||
				requests[1].Name != "gpu" {
				t.Errorf("got %s, want the second request as a list", object)
			}
			if strings.Contains(tc.object, "newer") && !strings.Contains(string(object), `"newer":{"field":1}`) {
				t.Errorf("got %s, want the unknown field still there", object)
			}
		})
	}
}
