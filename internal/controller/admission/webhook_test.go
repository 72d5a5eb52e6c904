// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

const wrong = `config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, timeSlicingConfig: {}, mpsConfig: {defaultActiveThreadPercentage: 0}}}}}]`

func TestValidator(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	handler := admission.Validator{Checker: admission.Checker{View: v}}
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
			got := handler.Handle(t.Context(), webhooktest.Request(t, tc.kind, tc.object))
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
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "l40s-x4"},
		clustertest.SimNode{Name: "c", Profile: "dgx-h100"})
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
			req := webhooktest.Request(t, "ResourceClaim",
				`spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, `+tc.more+`}}]}}`)
			req.Object.Raw = webhooktest.Patched(t, req.Object.Raw, expander.Handle(t.Context(), req))
			got := admission.Validator{Checker: admission.Checker{View: v}, Expander: expander}.Handle(t.Context(), req)
			told := strings.Join(append(got.Warnings, got.Result.Message), "\n")
			if got.Allowed != (tc.refused == "") || strings.Count(told, "spec.devices") != 1 ||
				!strings.Contains(told, tc.refused+tc.warned) {
				t.Errorf("got allowed: %t, %q; want once: %s%s", got.Allowed, told, tc.refused, tc.warned)
			}
		})
	}
}

// Slices, claims and classes change while webhooks run. make test-race looks for data races.
func TestWebhooksDuringChanges(t *testing.T) {
	v := clustertest.New(t)
	var slices []*resourceapi.ResourceSlice
	for _, profile := range []string{"t4-x2", "l40s-x4", "a30-x2"} {
		slices = append(slices, clustertest.Slices(t, clustertest.SimNode{Name: profile, Profile: profile})...)
	}
	classes := clustertest.Classes(t)
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	judge, rank := admission.Validator{Checker: admission.Checker{View: v}, Expander: expander}, expander
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
	ask := webhooktest.Request(t, "ResourceClaim",
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
		`{"spec": {"resourceClaims": [{"name": "a"}, {"name": "a", "resourceClaimTemplateName": "t"}], "containers": [{"resources": {"claims": [{"name": "a"}], "requests": {"nvidia.com/gpu": 1e9}}}]}}`,
		`null`, `{`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	v := clustertest.New(f, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "a30-x2"})
	expander := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	judge, rank := admission.Validator{Checker: admission.Checker{View: v}, Expander: expander}, expander
	pods := admission.Pods{View: v, Templates: fake.NewClientBuilder().Build()}
	f.Fuzz(func(t *testing.T, raw []byte) {
		pods.Handle(context.Background(), webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			Object: runtime.RawExtension{Raw: raw}}})
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

// FuzzUpdates sends updates to the webhooks that change claims and templates. Nothing panics, and what a webhook makes
// of an object can be applied to it.
func FuzzUpdates(f *testing.F) {
	for _, pair := range [][2]string{
		{`{}`, `{}`}, {`null`, `null`}, {`[]`, `{}`}, {`{"spec":{"devices":{"requests":[{}]}}}`, `{"spec":{"devices":5}}`},
		{`{"spec":{"devices":{"requests":[{"name":"a","firstAvailable":[]}]}}}`,
			`{"spec":{"devices":{"requests":[{"name":"a","exactly":{}}]}}}`},
		{`{"metadata":{"annotations":{"gpu.nvidia.com/optional-fields":",a,,b.capacity"}},"spec":{}}`,
			`{"metadata":null,"spec":{"devices":{"requests":[{"name":"a","exactly":{"capacity":{},"tolerations":[{}]}}]}}}`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	v := clustertest.New(f, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b",
		Profile: "a30-x2"})
	rank := strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, h := range []struct {
			kind    string
			handler webhook.Handler
		}{{"ResourceClaim", rank}, {"ResourceClaim", admission.OptionalFields{}},
			{"ResourceClaimTemplate", admission.OptionalFields{}}} {
			for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
				req := admissionv1.AdmissionRequest{Kind: metav1.GroupVersionKind{Kind: h.kind}, Operation: operation,
					Namespace: "ns", Object: runtime.RawExtension{Raw: after},
					OldObject: runtime.RawExtension{Raw: before}}
				got := h.handler.Handle(context.Background(), webhook.Request{AdmissionRequest: req})
				if got.Allowed {
					webhooktest.Patched(t, after, got)
				}
			}
		}
	})
}
