// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpudra/gpu-dra-driver/internal/controller/admission"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// What a claim costs the webhook does not grow with the numbers in it. The API server accepts a count of 2^62, also in
// a dry run, from everybody who may create claims. Memory is measured, because it does not depend on the machine; the
// time grows with it.
func TestTheWorkDoesNotGrowWithTheCounts(t *testing.T) {
	const most = 4611686018427387904 // 2^62: the sum of two overflows
	limits := config("sharing: {strategy: MPS, mpsConfig: {defaultPerDevicePinnedMemoryLimit: {'0': 1Gi}}}")
	class := "deviceClassName: gpu.nvidia.com"
	var all []string
	for i := range 32 {
		all = append(all, fmt.Sprintf("{name: r%d, exactly: {%s, allocationMode: All}}", i, class))
	}
	for _, tc := range []struct{ name, requests string }{
		{"a huge alternative behind a small one", fmt.Sprintf("[{name: gpu, firstAvailable: [{name: a, %s}, {name: b, "+
			"%[1]s, count: %d}]}]", class, most)},
		{"two requests whose sum overflows", fmt.Sprintf("[{name: a, exactly: {%s, count: %d}}, {name: b, exactly: "+
			"{%[1]s, count: %[2]d}}]", class, most)},
		{"32 requests for all devices of a node", "[" + strings.Join(all, ", ") + "]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			claim := clustertest.Claim(t, "requests: "+tc.requests+limits)
			checker := admission.Checker{View: clustertest.New(t, shared...)}
			checker.Claim(t.Context(), &clustertest.Claim(t, one).Spec, field.NewPath("spec")) // compiles the selectors
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			checker.Claim(t.Context(), &claim.Spec, field.NewPath("spec"))
			runtime.ReadMemStats(&after)
			if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 20 {
				t.Errorf("allocated %d MiB, want at most 20", got)
			}
		})
	}
}

// Texts of a verdict are compared with each other. A claim may have 32 configurations with thousands of mistakes each.
func TestManyMistakes(t *testing.T) {
	var environment, configs []string
	for i := range 1000 {
		environment = append(environment, fmt.Sprintf("%d=: x", i))
	}
	for range 32 {
		configs = append(configs, "{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: "+
			"resource.nvidia.com/v1beta1, kind: GpuConfig, environment: {"+strings.Join(environment, ", ")+"}}}}")
	}
	claim := clustertest.Claim(t, one+"\nconfig: ["+strings.Join(configs, ", ")+"]")
	got := admission.Checker{View: clustertest.New(t, shared...)}.Claim(t.Context(), &claim.Spec, field.NewPath("spec"))
	if len(got.Problems) == 0 || len(got.Problems) > 100 {
		t.Fatalf("got %d problems, want 1 to 100", len(got.Problems))
	}
	const want = "config[0].opaque.parameters: Forbidden: 980 more problems"
	if last := got.Problems[20].Error(); !strings.Contains(last, want) {
		t.Errorf("got %q, want the number of those that are not told", last)
	}
}
