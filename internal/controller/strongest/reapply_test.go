// SPDX-License-Identifier: Apache-2.0

package strongest_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/controller/strongest"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/webhooktest"
)

// apiServer stores one claim, as the API server does for clients: with defaults, the webhook, and an immutable spec.
type apiServer struct {
	t      *testing.T
	ranker strongest.Expander
	stored []byte // nil: there is none
}

func newAPIServer(t *testing.T) *apiServer {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
		clustertest.SimNode{Name: "b", Profile: "l40s-x4"})
	return &apiServer{t: t, ranker: strongest.Expander{View: v, Class: "strongest.gpu.nvidia.com", Ranks: 4}}
}

// write creates or updates the claim. It returns the warnings, and whether the API server refuses the claim because its
// spec has changed.
func (s *apiServer) write(object []byte, dryRun bool) (warnings []string, refused bool) {
	s.t.Helper()
	object = s.defaulted(object)
	req := webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, DryRun: &dryRun,
		Kind:   metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
		Object: runtime.RawExtension{Raw: object}}}
	if s.stored != nil {
		req.Operation, req.OldObject.Raw = admissionv1.Update, s.stored
	}
	response := s.ranker.Handle(s.t.Context(), req)
	if !response.Allowed || response.Result.Code != http.StatusOK {
		s.t.Fatalf("got %+v, want it allowed: the API server validates claims", response)
	}
	object = webhooktest.Patched(s.t, object, response)
	if s.stored != nil && !jsonpatch.Equal(spec(s.t, s.stored), spec(s.t, object)) {
		return response.Warnings, true
	}
	if !dryRun {
		s.stored = object
	}
	return response.Warnings, false
}

// defaulted returns the object in the form in which the API server sends it.
func (s *apiServer) defaulted(object []byte) []byte {
	s.t.Helper()
	var claim resourceapi.ResourceClaim
	if err := json.Unmarshal(object, &claim); err != nil {
		s.t.Fatal(err)
	}
	devices, err := yaml.Marshal(claim.Spec.Devices)
	if err != nil {
		s.t.Fatal(err)
	}
	claim.Spec = clustertest.Claim(s.t, string(devices)).Spec
	text, err := json.Marshal(claim)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func spec(t *testing.T, object []byte) []byte {
	t.Helper()
	var claim struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(object, &claim); err != nil {
		t.Fatal(err)
	}
	return claim.Spec
}

// ways are the ways in which tools send an object that they have applied before.
var ways = map[string]func(t *testing.T, applied, modified, stored []byte) []byte{
	"replace": func(_ *testing.T, _, modified, _ []byte) []byte { return modified },
	"kubectl apply": func(t *testing.T, applied, modified, stored []byte) []byte { // of the types that kubectl knows
		meta, err := strategicpatch.NewPatchMetaFromStruct(resourceapi.ResourceClaim{})
		if err != nil {
			t.Fatal(err)
		}
		patch, err := strategicpatch.CreateThreeWayMergePatch(applied, modified, stored, meta, true)
		if err != nil {
			t.Fatal(err)
		}
		object, err := strategicpatch.StrategicMergePatch(stored, patch, resourceapi.ResourceClaim{})
		if err != nil {
			t.Fatal(err)
		}
		return object
	},
	"a JSON merge patch": func(t *testing.T, applied, modified, stored []byte) []byte {
		patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(applied, modified, stored)
		if err != nil {
			t.Fatal(err)
		}
		object, err := jsonpatch.MergePatch(stored, patch)
		if err != nil {
			t.Fatal(err)
		}
		return object
	},
}

func TestApplyAgain(t *testing.T) {
	const claim = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: claim, namespace: ns}
spec: {devices: {`
	const strongestAndAny = `requests: [{name: first, exactly: {deviceClassName: gpu.nvidia.com}}, {name: gpu, exactly: {deviceClassName: strongest.gpu.nvidia.com, count: 2, capacity: {requests: {memory: 5120Mi}}, selectors: [{cel: {expression: "true"}}], tolerations: [{key: a, operator: Exists}]}}]`
	const two = `requests: [{name: a, exactly: {deviceClassName: strongest.gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: strongest.gpu.nvidia.com, adminAccess: false}}]`
	const own = `requests: [{name: a, firstAvailable: [{name: x, deviceClassName: strongest.gpu.nvidia.com}, {name: any, deviceClassName: strongest.gpu.nvidia.com}]}]`
	for _, tc := range []struct {
		name, first, second string
		refused             bool
		warned              string // what the user has changed
	}{
		{"unchanged", strongestAndAny, strongestAndAny, false, ""},
		{"two ranked requests", two, two, false, ""},
		{"what is default is written", two, strings.Replace(two, "{deviceClassName: strongest.gpu.nvidia.com}",
			"{deviceClassName: strongest.gpu.nvidia.com, count: 1, allocationMode: ExactCount}", 1), false, ""},
		{"the same amount, written in another way", strongestAndAny,
			strings.Replace(strongestAndAny, "5120Mi", "5Gi", 1), false, ""},
		{"another count", strongestAndAny, strings.Replace(strongestAndAny, "count: 2", "count: 1", 1), true,
			"other values of spec.devices.requests[1].exactly.count: delete"},
		{"another class", two, strings.Replace(two, "strongest.gpu", "gpu", 1), true,
			"other values of spec.devices.requests[0].exactly.deviceClassName: delete"},
		{"another name", two, strings.Replace(two, "name: a", "name: c", 1), true,
			"other values of spec.devices.requests[0].name: delete"},
		{"another selector, and a configuration", strongestAndAny,
			strings.Replace(strongestAndAny, `"true"`, `"false"`, 1) + ", config: [{opaque: {driver: gpu.nvidia.com, parameters: {}}}]", true,
			"other values of spec.devices.requests[1].exactly.selectors, spec.devices.config: delete"},
		{"a request that is not ranked", strongestAndAny, strings.Replace(strongestAndAny, "name: first, exactly: {",
			"name: first, exactly: {count: 2, ", 1), true, "spec.devices.requests[0].exactly.count: delete"},
		{"one request more", two,
			strings.TrimSuffix(two, "]") + ", {name: c, exactly: {deviceClassName: gpu.nvidia.com}}]", true,
			"other values of spec.devices.requests: delete"},
		{"a list of the user's own", own, `requests: [{name: a, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`,
			true, ""},
		{"a request that was not ranked", `requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}]`,
			`requests: [{name: a, exactly: {deviceClassName: strongest.gpu.nvidia.com}}]`, true, ""},
	} {
		for _, way := range slices.Sorted(maps.Keys(ways)) {
			t.Run(tc.name+"/"+way, func(t *testing.T) {
				first, second := toJSON(t, claim+tc.first+"}}"), toJSON(t, claim+tc.second+"}}")
				s := newAPIServer(t)
				if _, refused := s.write(first, true); refused || s.stored != nil {
					t.Fatalf("a dry run: refused: %t, stored %s", refused, s.stored)
				}
				s.write(first, false)
				before := s.stored
				sent := ways[way](t, first, second, before)
				for _, dryRun := range []bool{true, false} {
					warnings, refused := s.write(sent, dryRun)
					if refused != tc.refused {
						t.Errorf("dry run %t: refused: got %t, want %t; stored %s", dryRun, refused, tc.refused,
							s.stored)
					}
					if got := strings.Join(warnings, " "); !strings.Contains(got, tc.warned) ||
						(got == "") != (tc.warned == "") {
						t.Errorf("dry run %t: got warnings %q, want %q", dryRun, got, tc.warned)
					}
				}
				if !jsonpatch.Equal(spec(t, before), spec(t, s.stored)) {
					t.Errorf("got %s, want it unchanged: %s", s.stored, before)
				}
			})
		}
	}
}

// A label can be changed in the same write.
func TestApplyAgainWithALabel(t *testing.T) {
	s := newAPIServer(t)
	first := toJSON(t, asksForStrongest)
	s.write(first, false)
	second := toJSON(t, strings.Replace(asksForStrongest, "name: claim,", "name: claim, labels: {a: b},", 1))
	if _, refused := s.write(ways["kubectl apply"](t, first, second, s.stored), false); refused {
		t.Error("refused")
	}
	if !strings.Contains(string(s.stored), `"labels":{"a":"b"}`) || !strings.Contains(string(s.stored), `"tflops-`) {
		t.Errorf("got %s, want the label and the list", s.stored)
	}
}

// Server-side apply: who has created the claim owns its requests, whatever the webhook made of them, and can apply them
// again without a conflict. Others must force conflicts, as Flux does, or they see a conflict about the requests.
func TestServerSideApplyAgain(t *testing.T) {
	gvk := resourceapi.SchemeGroupVersion.WithKind("ResourceClaim")
	fields := managedfieldstest.NewFakeFieldManager(applyconfigurations.NewTypeConverter(scheme.Scheme), gvk)
	s := newAPIServer(t)
	apply := func(manager string, force bool) error {
		t.Helper()
		var stored, applied unstructured.Unstructured
		stored.SetGroupVersionKind(gvk)
		if s.stored != nil {
			if err := json.Unmarshal(s.stored, &stored.Object); err != nil {
				t.Fatal(err)
			}
		}
		if err := json.Unmarshal(toJSON(t, "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"+asksForStrongest),
			&applied.Object); err != nil {
			t.Fatal(err)
		}
		merged, err := fields.Apply(&stored, &applied, manager, force)
		if err != nil {
			return err
		}
		text, err := json.Marshal(merged)
		if err != nil {
			t.Fatal(err)
		}
		for _, dryRun := range []bool{true, false} {
			if warnings, refused := s.write(text, dryRun); refused || len(warnings) > 0 {
				t.Fatalf("%s: refused: %t, warnings %q", manager, refused, warnings)
			}
		}
		return nil
	}
	owners := func() string {
		var claim resourceapi.ResourceClaim
		if err := json.Unmarshal(s.stored, &claim); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range claim.ManagedFields {
			all = append(all, m.Manager+" "+string(m.Operation)+" "+m.FieldsV1.GetRawString())
		}
		return strings.Join(all, "\n")
	}
	if err := apply("kubectl", false); err != nil {
		t.Fatal(err)
	}
	before, owned := s.stored, owners()
	if !strings.Contains(owned, `"f:requests":{}`) {
		t.Errorf("got %s, want kubectl to own the requests as a whole", owned)
	}
	if err := apply("kubectl", false); err != nil {
		t.Errorf("by the same tool: %v", err)
	}
	if got := owners(); got != owned {
		t.Errorf("by the same tool: got owners %s, want %s", got, owned)
	}
	if err := apply("other", false); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), "spec.devices.requests") {
		t.Errorf("by another tool: got %v, want a conflict", err)
	}
	if err := apply("other", true); err != nil {
		t.Errorf("by another tool, with force: %v", err)
	}
	if !jsonpatch.Equal(spec(t, before), spec(t, s.stored)) {
		t.Errorf("got %s, want the spec unchanged: %s", s.stored, before)
	}
}

func toJSON(t *testing.T, text string) []byte {
	t.Helper()
	object, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return object
}
