// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

// The API server knows every field of what the chart makes. Helm and its linter do not look.
func TestFieldsAreKnown(t *testing.T) {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, known, known, json.SerializerOptions{Yaml: true,
		Strict: true})
	files, err := filepath.Glob("testdata/*.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	decoded := 0
	for _, file := range files {
		for _, document := range strings.Split(read(t, file), "\n---\n") {
			_, kind, err := decoder.Decode([]byte(document), nil, nil)
			switch {
			case runtime.IsNotRegisteredError(err): // of the operator of Prometheus, or cert-manager
			case err != nil:
				t.Errorf("%s, %v: %v", file, kind, err)
			default:
				decoded++
			}
		}
	}
	if decoded < 100 {
		t.Errorf("got %d objects in %v, want at least 100", decoded, files)
	}
}
