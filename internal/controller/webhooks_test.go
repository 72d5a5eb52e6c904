// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// request returns an admission request for an object in YAML.
func request(t testing.TB, kind, object string) webhook.Request {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	return webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Kind:   metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: kind},
		Object: runtime.RawExtension{Raw: raw}}}
}

// patched returns the object after the patches of the response, as the API server applies them.
func patched(t testing.TB, object []byte, response webhook.Response) []byte {
	t.Helper()
	if len(response.Patches) == 0 {
		return object
	}
	operations, err := json.Marshal(response.Patches)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(object)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

const wrong = `config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, timeSlicingConfig: {}, mpsConfig: {defaultActiveThreadPercentage: 0}}}}}]`

func TestValidator(t *testing.T) {
	handler := validator{checker: admission.Checker{View: clustertest.New(t, clustertest.Node{Name: "a",
		Profile: "t4-x2"})}}
	const both = ".sharing.mpsConfig.defaultActiveThreadPercentage: Invalid value: 0: must be from 1 to 100"
	for _, tc := range []struct {
		name, kind, object string
		code               int32
		want               []string // in the message
	}{
		{"a claim", "ResourceClaim",
			`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}`, http.StatusOK,
			nil},
		{"a claim with two mistakes", "ResourceClaim",
			`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}], ` + wrong + `}}`,
			http.StatusForbidden,
			[]string{"2 problems:\n  - spec.devices.config[0].opaque.parameters.sharing.timeSlicingConfig: Forbidden",
				"\n  - spec.devices.config[0].opaque.parameters" + both}},
		{"a template", "ResourceClaimTemplate", `spec: {spec: {devices: {` + wrong + `}}}`, http.StatusForbidden,
			[]string{"spec.spec.devices.config[0].opaque.parameters" + both}},
		{"a class", "DeviceClass", `spec: {` + wrong + `}`, http.StatusForbidden,
			[]string{"spec.config[0].opaque.parameters" + both}},
		{"not a claim", "ResourceClaim", `spec: 5`, http.StatusBadRequest, []string{"cannot unmarshal"}},
		{"another kind of object", "Pod", `{}`, http.StatusBadRequest, []string{"Pod"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := handler.Handle(t.Context(), request(t, tc.kind, tc.object))
			if got.Result.Code != tc.code || got.Allowed != (tc.code == http.StatusOK) {
				t.Errorf("got %d (allowed: %t), want %d", got.Result.Code, got.Allowed, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(got.Result.Message, want) {
					t.Errorf("got %q, want %q in it", got.Result.Message, want)
				}
			}
		})
	}
}

// A mistake in a claim for the strongest GPU is told once, at the path that the user has written.
func TestValidatorOfRankedClaim(t *testing.T) {
	v := clustertest.New(t, clustertest.Node{Name: "a", Profile: "t4-x2"}, clustertest.Node{Name: "b",
		Profile: "l40s-x4"},
		clustertest.Node{Name: "c", Profile: "dgx-h100"})
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	for _, tc := range []struct{ name, more, refused, warned string }{
		{"a capacity that does not exist", `capacity: {requests: {core: 5}}`, `spec.devices.requests[0].exactly.capacity` +
			`.requests[core]: Unsupported value: "core"`, ""},
		{"a selector that fails on a model", `selectors: [{cel: {expression: ` +
			`"device.attributes['gpu.nvidia.com'].architecture != 'Ada Lovelace' || device.attributes['gpu.nvidia.com'].no"}}]`,
			"", "spec.devices.requests[0].exactly.selectors[0].cel.expression: no such key: no"},
		{"more than there is", `capacity: {requests: {memory: 500Gi}}`, "",
			"spec.devices.requests[0].exactly.capacity.requests[memory]: no device"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := request(t, "ResourceClaim",
				`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, `+tc.more+`}}]}}`)
			req.Object.Raw = patched(t, req.Object.Raw, ranker{expander}.Handle(t.Context(), req))
			got := validator{admission.Checker{View: v}, expander}.Handle(t.Context(), req)
			told := strings.Join(append(got.Warnings, got.Result.Message), "\n")
			if got.Allowed != (tc.refused == "") || strings.Count(told, "spec.devices") != 1 ||
				!strings.Contains(told, tc.refused+tc.warned) {
				t.Errorf("got allowed: %t, %q; want once: %s%s", got.Allowed, told, tc.refused, tc.warned)
			}
		})
	}
}

// Who is not ranked in time is told so.
func TestRankerWithoutTime(t *testing.T) {
	v := clustertest.New(t, clustertest.Node{Name: "a", Profile: "t4-x2"}, clustertest.Node{Name: "b",
		Profile: "l40s-x4"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := ranker{strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}}.Handle(ctx,
		request(t, "ResourceClaim", asksForStrongest))
	if !got.Allowed || len(got.Patches) > 0 || len(got.Warnings) != 1 ||
		!strings.Contains(got.Warnings[0], "took too long to rank it") {
		t.Errorf("got %+v, want it allowed as it is, with a warning", got)
	}
}

func TestRanker(t *testing.T) {
	handler := ranker{strongest.Expander{Class: "strongest.gpu.nvidia.com", Ranks: 4,
		View: clustertest.New(t, clustertest.Node{Name: "a", Profile: "t4-x2"},
			clustertest.Node{Name: "b", Profile: "l40s-x4"})}}
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
			req := request(t, "ResourceClaim", tc.object)
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
			object := patched(t, req.Object.Raw, got)
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

// Slices, claims and classes change while webhooks run. make test-race looks for data races.
func TestWebhooksDuringChanges(t *testing.T) {
	v := clustertest.New(t)
	var slices []*resourceapi.ResourceSlice
	for _, profile := range []string{"t4-x2", "l40s-x4", "a30-x2"} {
		slices = append(slices, clustertest.Slices(t, clustertest.Node{Name: profile, Profile: profile})...)
	}
	classes := clustertest.Classes(t)
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	judge, rank := validator{admission.Checker{View: v}, expander}, ranker{expander}
	ctx, stop := context.WithCancel(t.Context())
	var changes sync.WaitGroup
	changes.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			s := slices[n%len(slices)]
			v.SetSlice(v.SlimSlice(s))
			v.SetClass(classes[n%len(classes)])
			claim := clustertest.Claim(t, `requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`)
			v.SetClaim(cluster.SlimClaim(claim))
			v.DeleteSlice(slices[(n+1)%len(slices)].Name)
			v.DeleteClaim(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
		}
	})
	ask := request(t, "ResourceClaim",
		`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, count: 1, capacity: {requests: {memory: 5Gi}}}}]}}`)
	ranked := 0
	end := time.Now().Add(5 * time.Minute)
	for n := 0; n < 200 || ranked == 0 && time.Now().Before(end); n++ {
		if got := judge.Handle(t.Context(), ask); !got.Allowed {
			t.Fatalf("got %+v, want it accepted whatever there is", got.Result)
		}
		got := rank.Handle(t.Context(), ask)
		if !got.Allowed {
			t.Fatalf("got %+v, want it accepted whatever there is", got.Result)
		}
		if len(got.Patches) == 0 {
			continue
		}
		list := got.Patches[1].Value.([]resourceapi.DeviceSubRequest)
		if first, last := list[0].Name, list[len(list)-1].Name; len(list) != 8 ||
			!strings.HasPrefix(first, "tflops-") || last != "any" {
			t.Fatalf("got %d alternatives from %s to %s, want eight, from the strongest to any", len(list), first, last)
		}
		ranked++
	}
	stop()
	changes.Wait()
	if ranked == 0 {
		t.Error("nothing was ever ranked")
	}
}

// FuzzWebhooks looks for objects that make a webhook panic or fail.
func FuzzWebhooks(f *testing.F) {
	for _, seed := range []string{
		`{"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "strongest.gpu.nvidia.com", "count": 2, "capacity": {"requests": {"memory": "5Gi"}}}}]}}}`,
		`{"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com", "count": -1}}, {}]}}}`,
		`{"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com", "selectors": [{}, {"cel": {"expression": "1/0 == 1"}}]}]}], "config": [{}, {"opaque": {"driver": "gpu.nvidia.com"}}]}}}`,
		`{"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com' && x"}}], "config": [{"opaque": null}]}}`,
		`{"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "monitor.gpu.nvidia.com", "allocationMode": "All"}}]}}}}`,
		`null`, `{`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	v := clustertest.New(f, clustertest.Node{Name: "a", Profile: "t4-x2"}, clustertest.Node{Name: "b",
		Profile: "a30-x2"})
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	judge, rank := validator{admission.Checker{View: v}, expander}, ranker{expander}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, kind := range []string{"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"} {
			req := webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Kind: metav1.GroupVersionKind{Kind: kind}, Object: runtime.RawExtension{Raw: raw},
			}}
			if got := judge.Handle(context.Background(), req); got.Result == nil ||
				got.Allowed != (got.Result.Code == http.StatusOK) {
				t.Errorf("%s %s: got %+v", kind, raw, got)
			}
			rank.Handle(context.Background(), req)
		}
	})
}
