// SPDX-License-Identifier: Apache-2.0

// Package webhooktest makes requests to webhooks, and applies their responses as the API server does.
package webhooktest

import (
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	webhook "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"
)

// Request returns an admission request for an object in YAML.
func Request(t testing.TB, kind, object string) webhook.Request {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	return webhook.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Kind:   metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: kind},
		Object: runtime.RawExtension{Raw: raw}}}
}

// Patched returns the object after the patches of the response, as the API server applies them.
func Patched(t testing.TB, object []byte, response webhook.Response) []byte {
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
