// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// TestSelectors compares the selectors of claims with what simulated nodes publish.
func TestSelectors(t *testing.T) {
	const h100, l40s, t4 = "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "Tesla T4"
	nodes := []clustertest.SimNode{{Name: "a", Profile: "dgx-h100"}, {Name: "b", Profile: "l40s-x4"},
		{Name: "c", Profile: "t4-x2"}}
	published, v := devices(t, nodes), clustertest.New(t, nodes...)
	for _, row := range []struct {
		name, pod string
		want      []string // what each alternative may get
	}{
		{"a model", hamiPod("nvidia.com/use-gputype: h100"), []string{h100}},
		{"a model with HAMi's prefix", hamiPod(`nvidia.com/use-gputype: "nvidia-tesla t4"`), []string{t4}},
		{"two models", hamiPod(`nvidia.com/use-gputype: "T4, L40"`), []string{l40s + ", " + t4}},
		{"other models", hamiPod(`nvidia.com/nouse-gputype: "T4, L40"`), []string{h100}},
		{"the first GPUs", hamiPod(`nvidia.com/use-gpuindexes: "0"`), []string{h100 + ", " + l40s + ", " + t4}},
		{"the third GPUs", hamiPod(`nvidia.com/nouse-gpuindexes: "0,1"`), []string{h100 + ", " + l40s}},
		{"no GPU", hamiPod("nvidia.com/use-gpuuuid: GPU-0"), []string{""}},
		{"all GPUs", hamiPod("nvidia.com/nouse-gpuuuid: GPU-0"), []string{h100 + ", " + l40s + ", " + t4}},
		{"half of a GPU", `{metadata: {annotations: {gpu-fraction: "0.5"}}, spec: {containers: [{name: main}]}}`,
			[]string{h100, l40s, t4}},
		{"shares under MPS", `{metadata: {annotations: {gpu-memory: "1", kai.scheduler/gpu-compute-sharing-mode: ` +
			`sm-sharing}}, spec: {containers: [{name: main}]}}`, []string{h100 + ", " + l40s + ", " + t4}},
		{"TFLOPS", `{spec: {containers: [{name: main, resources: {limits: {resource.nvidia.com/tflops: 100}}}]}}`,
			[]string{h100, l40s, h100 + " 1g.10gb"}},
		{"TFLOPS of two slices", `{spec: {containers: [{name: main, resources: {limits: ` +
			`{resource.nvidia.com/tflops: 200}}}]}}`,
			[]string{h100, l40s, h100 + " 2g.20gb"}},
		{"TFLOPS and memory", `{metadata: {annotations: {tensor-fusion.ai/tflops-request: "100", ` +
			`tensor-fusion.ai/vram-request: 12Gi}}, spec: {containers: [{name: main}]}}`,
			[]string{h100, l40s, h100 + " 1g.20gb"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := converter{Driver: clustertest.Driver, Families: Names(), Models: modelsOf(v),
				Partitions: partitionsOf(v)}
			conversion, err := c.convertPod(podOf(t, row.pod))
			if err != nil {
				t.Fatal(err)
			}
			if got := accepted(t, published, conversion); !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func hamiPod(annotation string) string {
	return "{metadata: {annotations: {" + annotation + "}}, spec: {containers: [{name: main, resources: {limits: " +
		"{nvidia.com/gpu: 1}}}]}}"
}

// accepted returns what each alternative of the first request accepts: products, and profiles of partitions, sorted.
func accepted(t *testing.T, published []resourceapi.Device, conversion *conversion) []string {
	t.Helper()
	request := conversion.Spec.Devices.Requests[0]
	alternatives := request.FirstAvailable
	if e := request.Exactly; e != nil {
		alternatives = []resourceapi.DeviceSubRequest{{DeviceClassName: e.DeviceClassName, Selectors: e.Selectors}}
	}
	var all []string
	for _, a := range alternatives {
		found := map[string]bool{}
		for _, d := range published {
			profile := *d.Attributes["profile"].StringValue
			if (profile != "") == (a.DeviceClassName == partitionClass(clustertest.Driver)) && matches(t, d,
				a.Selectors) {
				found[strings.TrimSpace(*d.Attributes["productName"].StringValue+" "+profile)] = true
			}
		}
		all = append(all, strings.Join(slices.Sorted(maps.Keys(found)), ", "))
	}
	return all
}

func matches(t *testing.T, d resourceapi.Device, selectors []resourceapi.DeviceSelector) bool {
	t.Helper()
	for _, s := range selectors {
		compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(s.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatal(compiled.Error)
		}
		ok, _, err := compiled.DeviceMatches(t.Context(), allocator.Device(clustertest.Driver, &d))
		if err != nil {
			t.Fatalf("%s: %s: %v", d.Name, s.CEL.Expression, err)
		}
		if !ok {
			return false
		}
	}
	return true
}

// devices returns the GPUs and partitions of the nodes.
func devices(t *testing.T, nodes []clustertest.SimNode) (all []resourceapi.Device) {
	t.Helper()
	for _, n := range nodes {
		for _, slice := range clustertest.Slices(t, n) {
			for _, d := range slice.Spec.Devices {
				if kind := d.Attributes["type"].StringValue; kind != nil && *kind != string(gpu.TypeMonitor) {
					all = append(all, d)
				}
			}
		}
	}
	return all
}
