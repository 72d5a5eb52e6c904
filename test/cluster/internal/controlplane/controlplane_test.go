// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
)

func TestOptionsReachTheComponents(t *testing.T) {
	o := Options{
		FeatureGates:  map[string]bool{"B": false, "A": true},
		RuntimeConfig: map[string]string{"resource.k8s.io/v1beta2": "true", "api/all": "false"},
	}
	var got strings.Builder
	for _, s := range Spec("/d", components.Dirs{}, o).Steps {
		for _, argument := range s.Command {
			if strings.HasPrefix(argument, "--feature-gates") || strings.HasPrefix(argument, "--runtime-config") {
				got.WriteString(s.Name + " " + argument + "\n")
			}
		}
	}
	const want = `kube-apiserver --feature-gates=A=true,B=false
kube-apiserver --runtime-config=api/all=false,resource.k8s.io/v1beta2=true
kube-controller-manager --feature-gates=A=true,B=false
kube-scheduler --feature-gates=A=true,B=false
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

func TestWithoutOptionsTheDefaultsStay(t *testing.T) {
	for _, s := range Spec("/d", components.Dirs{}, Options{}).Steps {
		if slices.ContainsFunc(s.Command, func(a string) bool {
			return strings.HasPrefix(a, "--feature-gates") || strings.HasPrefix(a, "--runtime-config")
		}) {
			t.Errorf("%s: got %v", s.Name, s.Command)
		}
	}
}
