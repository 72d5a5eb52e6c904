// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const head = `"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"`

func TestDecode(t *testing.T) {
	for _, row := range []struct {
		name string
		raw  string
		want GpuConfig
	}{
		{"nothing said means the defaults", `{` + head + `}`, GpuConfig{}},
		{"an empty object means its defaults", `{` + head + `,"sharing":{},"environment":{}}`, GpuConfig{Environment: map[string]string{}}},
		{"null means not said", `{` + head + `,"sharing":null,"environment":null}`, GpuConfig{}},
		{"environment is kept", `{` + head + `,"environment":{"A":"1","B_2":""}}`, GpuConfig{Environment: map[string]string{"A": "1", "B_2": ""}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Decode([]byte(row.raw), field.NewPath("p"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, row.want); diff != "" {
				t.Errorf("got - want +\n%s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, row := range []struct {
		name string
		raw  string
		want []string // each a part of the error
	}{
		{"no object", `[]`, []string{"p: ", "array"}},
		{"nothing", ``, []string{"p: "}},
		{"no kind", `{}`, []string{`p.apiVersion: Unsupported value: ""`, `p.kind: Unsupported value: "": supported values: "GpuConfig"`}},
		{"another kind", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GPUConfig","x":1}`, []string{`p.kind: Unsupported value: "GPUConfig"`}},
		{"another version", `{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`, []string{`p.apiVersion: Unsupported value: "resource.nvidia.com/v1": supported values: "resource.nvidia.com/v1beta1"`}},
		{"an unknown field", `{` + head + `,"sharring":{}}`, []string{`p.sharring: Forbidden: unknown field`}},
		{"a field in the wrong case", `{` + head + `,"Environment":{}}`, []string{`p.Environment: Forbidden: unknown field`}},
		{"a field twice", `{` + head + `,"environment":{},"environment":{}}`, []string{`p.environment: Forbidden: duplicate field`}},
		{"a wrong type", `{` + head + `,"environment":["A=1"]}`, []string{"p: ", "environment"}},
		{"sharing, until it exists", `{` + head + `,"sharing":{"strategy":"MPS"}}`, []string{`p.sharing: Forbidden: this version hands out whole GPUs only`}},
		{"a variable that is no name", `{` + head + `,"environment":{"A=B":"1"}}`, []string{`p.environment[A=B]: Invalid value: "A=B"`}},
		{"a variable of the driver", `{` + head + `,"environment":{"NVIDIA_VISIBLE_DEVICES":"all","CUDA_MPS_PIPE_DIRECTORY":"x"}}`,
			[]string{`p.environment[NVIDIA_VISIBLE_DEVICES]: Forbidden`, `p.environment[CUDA_MPS_PIPE_DIRECTORY]: Forbidden`}},
		{"a value that no process can have", `{` + head + `,"environment":{"A":"\u0000"}}`, []string{`p.environment[A]: Invalid value`}},
		{"every problem at once", `{` + head + `,"x":1,"sharing":{"strategy":"MPS"},"environment":{"":"1"}}`,
			[]string{"p.x: ", "p.sharing: ", "p.environment[]: "}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Decode([]byte(row.raw), field.NewPath("p"))
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			for _, part := range row.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got  %v\nwant %s", err, part)
				}
			}
		})
	}
}
