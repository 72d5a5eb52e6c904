// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// check fails the test if the API server or the driver would refuse the claim.
func check(t testing.TB, spec *resourceapi.ResourceClaimSpec) {
	t.Helper()
	checker := admission.Checker{View: clustertest.New(t)}
	if v := checker.Claim(context.Background(), spec, field.NewPath("spec")); len(v.Problems) > 0 {
		t.Errorf("the driver refuses the claim: %v", v.Problems)
	}
	if len(spec.Devices.Requests) > resourceapi.DeviceRequestsMaxSize {
		t.Errorf("%d requests", len(spec.Devices.Requests))
	}
	var names []string
	for _, r := range spec.Devices.Requests {
		names = append(names, r.Name)
		checkLabel(t, r.Name)
		if (r.Exactly != nil) == (len(r.FirstAvailable) > 0) {
			t.Errorf("request %s must have one of exactly and firstAvailable", r.Name)
		}
		if e := r.Exactly; e != nil {
			if problems := validation.IsDNS1123Subdomain(e.DeviceClassName); len(problems) > 0 {
				t.Errorf("class %q: %v", e.DeviceClassName, problems)
			}
			checkDevices(t, e.Selectors, e.Count, e.Capacity)
			continue
		}
		if len(r.FirstAvailable) > resourceapi.FirstAvailableDeviceRequestMaxSize {
			t.Errorf("request %s has %d alternatives", r.Name, len(r.FirstAvailable))
		}
		for _, s := range r.FirstAvailable {
			checkLabel(t, s.Name)
			names = append(names, r.Name+"/"+s.Name)
			checkDevices(t, s.Selectors, s.Count, s.Capacity)
		}
	}
	checkReferences(t, spec, names)
}

func checkReferences(t testing.TB, spec *resourceapi.ResourceClaimSpec, names []string) {
	t.Helper()
	var used []string
	for _, c := range spec.Devices.Constraints {
		used = append(used, c.Requests...)
		if c.MatchAttribute == nil || !strings.Contains(string(*c.MatchAttribute), "/") {
			t.Errorf("a constraint without the full name of an attribute: %v", c)
		}
	}
	for _, c := range spec.Devices.Config {
		used = append(used, c.Requests...)
		if len(c.Opaque.Parameters.Raw) > resourceapi.OpaqueParametersMaxLength {
			t.Errorf("parameters of %d bytes", len(c.Opaque.Parameters.Raw))
		}
	}
	for _, name := range used {
		if !slices.Contains(names, name) {
			t.Errorf("%s is none of the requests %v", name, names)
		}
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) < len(names) {
		t.Errorf("two requests of a name: %v", names)
	}
}

func checkLabel(t testing.TB, name string) {
	t.Helper()
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		t.Errorf("name %q: %v", name, problems)
	}
}

func checkDevices(t testing.TB, selectors []resourceapi.DeviceSelector, count int64,
	capacity *resourceapi.CapacityRequirements) {
	t.Helper()
	if len(selectors) > resourceapi.DeviceSelectorsMaxSize {
		t.Errorf("%d selectors", len(selectors))
	}
	for _, s := range selectors {
		if n := len(s.CEL.Expression); n > resourceapi.CELSelectorExpressionMaxLength {
			t.Errorf("an expression of %d characters", n)
		}
		result := cel.GetCompiler(cel.Features{}).CompileCELExpression(s.CEL.Expression, cel.Options{})
		if result.Error != nil {
			t.Errorf("%s: %v", s.CEL.Expression, result.Error)
		}
		if result.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			t.Errorf("%s: costs up to %d", s.CEL.Expression, result.MaxCost)
		}
	}
	if count < 1 || count > maxGPUs {
		t.Errorf("count %d", count)
	}
	if capacity == nil {
		return
	}
	for name, q := range capacity.Requests {
		if q.Sign() <= 0 {
			t.Errorf("%s: %s", name, q.String())
		}
		if name == "memory" && q.Value()%mib != 0 {
			t.Errorf("memory %s is no multiple of 1Mi", q.String())
		}
	}
}

// The longest lists that an annotation may have make selectors that Kubernetes accepts.
func TestLongestLists(t *testing.T) {
	entries := make([]string, maxListed)
	for i := range entries {
		entries[i] = strings.Repeat(`"`, maxEntry)
	}
	pod := podOf(t, `{spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}}`)
	list := strings.Join(entries, ",")
	pod.Annotations = map[string]string{hamiUseType: list, hamiNoUseType: list}
	c := converter{Driver: clustertest.Driver, Families: []string{hami.Name}}
	conversion, err := c.convertPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(conversion.Spec.Devices.Requests[0].Exactly.Selectors); got != 2 {
		t.Errorf("%d selectors, want 2", got)
	}
	check(t, conversion.Spec)
	pod.Annotations[hamiUseType] += ",A100"
	if _, err := c.convertPod(pod); err == nil || !strings.Contains(err.Error(), "at most 32 entries") {
		t.Errorf("33 entries: %v", err)
	}
}
