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

func TestTheRequestsOfSomeUsersAreLogged(t *testing.T) {
	spec := Spec("/d", components.Dirs{}, Options{Audit: []string{"system:serviceaccount:a:b"}})
	const want = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],` +
		`"rules":[{"level":"Metadata","users":["system:serviceaccount:a:b"]},{"level":"None"}]}`
	if got := spec.Files[auditPolicy]; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, s := range spec.Steps {
		if got := slices.Contains(s.Command, "--audit-policy-file="+auditPolicy); got != (s.Name == "kube-apiserver") {
			t.Errorf("%s: got %v", s.Name, s.Command)
		}
	}
}

func TestWithoutOptionsTheDefaultsStay(t *testing.T) {
	for _, s := range Spec("/d", components.Dirs{}, Options{}).Steps {
		if slices.ContainsFunc(s.Command, func(a string) bool {
			return strings.HasPrefix(a, "--feature-gates") || strings.HasPrefix(a, "--runtime-config") || strings.HasPrefix(a, "--audit")
		}) {
			t.Errorf("%s: got %v", s.Name, s.Command)
		}
	}
}
