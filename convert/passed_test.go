// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"
)

// hamiLimits are resources of HAMi.
const hamiLimits = `{limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 6144}}`

// told converts the text, and returns what is said and what is written.
func told(c converter, in string) (said, out string, err error) {
	var text, written strings.Builder
	err = c.manifests(strings.NewReader(in), &written, func(r result) {
		fmt.Fprintf(&text, "%d: %s: converted %t\n", r.Line, r.Object, r.Converted)
		if r.Err != nil {
			fmt.Fprintf(&text, "  error %v\n", r.Err)
		}
		for _, w := range r.Warnings {
			fmt.Fprintf(&text, "  %s\n", w)
		}
		for _, p := range r.Passed {
			fmt.Fprintf(&text, "  line %d: %s\n", p.Line, p)
		}
	})
	return text.String(), written.String(), err
}

// What is not converted is told with its line, and written as it was.
func TestManifestsThatAreNotKnown(t *testing.T) {
	const place = ", in a place that this program does not know\n"
	for _, tc := range []struct{ name, in, told string }{
		{"resources outside of pods", "# a comment\napiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n" +
			"metadata: {name: llm}\nspec:\n  predictor:\n    model:\n      resources:\n        limits:\n" +
			"          nvidia.com/gpu: 1\n          nvidia.com/gpumem: 6144\n",
			"1: InferenceService llm: converted false\n  line 11: spec.predictor.model.resources.limits has " +
				"nvidia.com/gpumem" + place},
		{"containers of what is no pod", "apiVersion: apps.kruise.io/v1alpha1\nkind: SidecarSet\nmetadata: {name: " +
			"s}\n" +
			"spec: {containers: [{name: s, image: x, resources: " + hamiLimits + "}]}\n",
			"1: SidecarSet s: converted false\n  line 4: spec.containers[0].resources.limits has " +
				"nvidia.com/gpumem" + place},
		{"a pod of another API", "apiVersion: example.com/v1\nkind: Pod\nspec: {containers: [{name: s, resources: " +
			hamiLimits + "}]}\n", "1: Pod : converted false\n  line 3: spec.containers[0].resources.limits has " +
			"nvidia.com/gpumem" + place},
		{"templates that accept no claims", "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: k}\n" +
			"spec: {template: {spec: {containers: [{resources: " + hamiLimits + "}]}}}\n",
			"1: Service k: converted false\n  line 4: spec.template.spec.containers[0].resources.limits has " +
				"nvidia.com/gpumem" + place},
		{"a quota, and a queue", "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: " +
			"{requests.nvidia.com/gpumem: 9, requests.nvidia.com/gpu: 1}}\n---\n" +
			"apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: c}\nspec:\n  resourceGroups:\n" +
			"    - coveredResources: [nvidia.com/gpu, nvidia.com/gpucores]\n",
			"1: ResourceQuota q: converted false\n  line 4: spec.hard has nvidia.com/gpumem" + place +
				"5: ClusterQueue c: converted false\n  line 11: spec.resourceGroups[0].coveredResources[1] has " +
				"nvidia.com/gpucores" + place},
		{"annotations of no pod", "kind: Workflow\nspec: {podMetadata: {annotations: {gpu-fraction: '0.5'}}, " +
			"gpu-memory: 5}\n",
			"1: Workflow : converted false\n  line 2: spec.podMetadata.annotations has gpu-fraction" + place},
		{"an object of an older system", "apiVersion: tensor-fusion.ai/v1\nkind: TensorFusionWorkload\nmetadata: " +
			"{name: t}\nspec: {resources: {requests: {tflops: 10}}}\n",
			"1: TensorFusionWorkload t: converted false\n  line 1: kind has TensorFusionWorkload t" + place},
		{"a manifest in a text", "kind: ConfigMap\nmetadata: {name: c, annotations: " +
			"{kubectl.kubernetes.io/last-applied-configuration: '{\"nvidia.com/gpumem\": 1}'}}\ndata:\n  pod.yaml: " +
			"|\n" +
			"    limits: {nvidia.com/gpumem-percentage: 50}\n", "1: ConfigMap c: converted false\n  line 4: " +
			"data.pod.yaml has nvidia.com/gpumem-percentage" + place},
		{"aliases", "kind: A\nx: &x {limits: {nvidia.com/gpumem: 1}}\ny: [*x, *x, *x]\n",
			"1: A : converted false\n  line 2: x.limits has nvidia.com/gpumem" + place},
		{"what is not YAML", "a: {{ .Values.a }}\n  b\n",
			"1: document: converted false\n  error yaml: line 1: did not find expected key\n"},
		{"a second document without a line before it", "a: 1\n...\nb: 1\n",
			"1: document: converted false\n  error it has a second document without the line ---\n"},
		{"a list of numbers", "kind: PodList\nitems: [1]\n",
			"1: document: converted false\n  error a list has an item that is not an object\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			said, out, err := told(converter{Driver: "gpu.nvidia.com", Families: Names()}, tc.in)
			if said != tc.told || err == nil {
				t.Errorf("got error %v and\n%s\nwant an error and\n%s", err, said, tc.told)
			}
			if out != "---\n"+tc.in && out != "---\n"+strings.ReplaceAll(tc.in, "\n---\n", "\n---\n\n") {
				t.Errorf("got\n%s\nwant it unchanged:\n%s", out, tc.in)
			}
		})
	}
}

// What asks for nothing is written as it was, and nothing is said.
func TestManifestsThatAskForNothing(t *testing.T) {
	for _, in := range []string{"# only a comment\n", "  a: 1 # indented\n  b: 2\n", "- 1\n- 2\n", "text\n",
		"kind: List\nitems: # none of them\n  - {kind: Service, spec: {n: 12345678901234567}}\n", "null # nothing\n",
		"{kind: InferenceService, spec: {model: {resources: {limits: {nvidia.com/gpu: 1}}}}}\n"} {
		said, out, err := told(converter{Driver: "gpu.nvidia.com", Families: Names()}, in)
		if err != nil || said != "" || out != "---\n"+in {
			t.Errorf("%q: got %q, %q, error %v", in, out, said, err)
		}
	}
}

func TestManifestsOfOwners(t *testing.T) {
	const crd = "  its CRD must have the pods of Kubernetes 1.31 or newer " +
		"(resourceClaims[].resourceClaimTemplateName); " +
		"otherwise the API server drops the claims\n"
	ray := func(parameters string) string {
		return "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r}\nspec: {number: 12345678901234567, " +
			"workerGroupSpecs: [{" + parameters + "template: {spec: {containers: [{name: w, resources: " + hamiLimits +
			"}]}}}]}\n"
	}
	rayOf := func(template string) string {
		return "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r}\nspec: {headGroupSpec: {template: {" +
			template + "}}}\n"
	}
	for _, tc := range []struct{ name, in, told, want string }{
		{"Ray gets its GPUs", ray(""), "1: RayCluster r: converted true\n  rayStartParams.num-gpus: 1 is added, " +
			"because " +
			"KubeRay counts only resources in limits\n" + crd, "rayStartParams:\n      num-gpus: \"1\"\n"},
		{"Ray gets the GPUs of annotations",
			rayOf("metadata: {annotations: {gpu-memory: '2000'}}, spec: {containers: [{name: w}]}"),
			"1: RayCluster r: converted true\n  rayStartParams.num-gpus: 1 is added, because KubeRay counts only " +
				"resources in limits\n" + crd, "rayStartParams:\n      num-gpus: \"1\"\n"},
		{"Ray gets the GPUs of a resource of another name",
			rayOf("spec: {containers: [{name: w, resources: {limits: {aliyun.com/gpu-mem: 2, " +
				"aliyun.com/gpu-count: 2}}}]}"),
			"1: RayCluster r: converted true\n  container w: GPUs with isolation mps do not give one container 2 " +
				"shares: MPS limits a process on one GPU only\n  container w: aliyun.com/gpu-mem: the driver " +
				"enforces the memory, unless the node has isolation none; gpushare does not\n  container w: " +
				"ALIYUN_COM_GPU_MEM_DEV and " +
				"ALIYUN_COM_GPU_MEM_IDX are not set: the GPU is chosen later\n  rayStartParams.num-gpus: 2 is added, " +
				"because KubeRay counts only resources in limits\n" + crd, "num-gpus: \"2\"\n"},
		{"Ray has its GPUs", ray("rayStartParams: {num-gpus: '2'}, "), "1: RayCluster r: converted true\n" + crd,
			"num-gpus: \"2\""},
		{"large numbers", ray("rayStartParams: {num-gpus: '2'}, "), "1: RayCluster r: converted true\n" + crd,
			"number: 12345678901234567\n"},
		{"a Job of Kueue", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, labels: " +
			"{kueue.x-k8s.io/queue-name: q}}\n" +
			"spec: {template: {spec: {containers: [{name: w, resources: " + hamiLimits + "}]}}}\n",
			"1: Job j: converted true\n  kueue.x-k8s.io/queue-name: quotas of the queue q on the resources that are " +
				"removed do not count it\n", "request: w"},
		{"a name that is not known", "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: w, " +
			"resources: {limits: {nvidia.com/vgpu: 1}}}]}}\n", "1: Pod p: converted false\n  container w: " +
			"nvidia.com/vgpu stays in its resources: nothing here provides it, unless another device plugin does. " +
			"If it is " +
			"a name that an administrator chose for an older system, controller.conversion.names says which\n",
			"limits: {nvidia.com/vgpu: 1}"},
		{"annotations that are not known", "{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: " +
			"{kai.scheduler/gpu-fraction: '0.2', nvidia.com/use-gputype: A100, hami.io/vgpu-node: a}}, spec: " +
			"{containers: " +
			"[{name: w}]}}\n", "1: Pod p: converted false\n  the annotation kai.scheduler/gpu-fraction has no effect\n",
			"gpu-fraction: '0.2'"},
	} {
		said, out, err := told(converter{Driver: "gpu.nvidia.com", Families: Names()}, tc.in)
		if err != nil || said != tc.told || strings.Count(out, tc.want) != 1 {
			t.Errorf("%s: got error %v and\n%s\n%s\nwant\n%s\nand %q", tc.name, err, said, out, tc.told, tc.want)
		}
	}
}

// Errors of what cannot be decoded name the field, the container and the value.
func TestManifestsThatCannotBeDecoded(t *testing.T) {
	for in, want := range map[string]string{
		"metadata: {annotations: {tencent.com/vcuda-core-limit: 50}}\nspec: {containers: []}": `metadata.annotations` +
			`[tencent.com/vcuda-core-limit]: Invalid value: 50: must be a text: write "50", with quotes`,
		"metadata: {labels: {a: true}}\nspec: {containers: [], nodeSelector: {gpu: true}}": `[metadata.labels[a]: ` +
			`Invalid value: true: must be a text: write "true", with quotes, spec.nodeSelector[gpu]: Invalid value: true: ` +
			`must be a text: write "true", with quotes]`,
		"spec: {containers: [{name: a}, {name: main, resources: {limits: {nvidia.com/gpumem: 4GB}}}]}": `spec.containers` +
			`[1][main].resources.limits[nvidia.com/gpumem]: Invalid value: "4GB": must be an amount, such as 3, 500m or 4Gi`,
		"spec: {containers: [], initContainers: [{name: main, image: 5}]}": "spec.initContainers[0][main].image: " +
			"Invalid " +
			"value: \"\": json: cannot unmarshal number into Go struct field Container.image of type string",
		"spec: {containers: [5]}": "spec.containers[0]: Invalid value: 5: must be an object",
		"spec: {containers: [], hostNetwork: 5}": "json: cannot unmarshal number into Go struct field " +
			"PodSpec.spec.hostNetwork of type bool",
	} {
		in = "apiVersion: v1\nkind: Pod\n" + in + "\n"
		said, out, err := told(converter{Driver: "gpu.nvidia.com", Families: Names()}, in)
		if err == nil || !strings.HasSuffix(said, "  error "+want+"\n") || out != "---\n"+in {
			t.Errorf("%s: got error %v and\n%s\n%s\nwant %s", in, err, said, out, want)
		}
	}
}

// FuzzManifests reads random files: nothing panics, and nothing gets lost.
func FuzzManifests(f *testing.F) {
	for _, text := range []string{"a: 1\n---\nb: 2\n", "--- {a: b}\n...\n", "---\n---\n# c\n--- |\n text\n",
		"{kind: Pod, spec: {containers: [{resources: {limits: {aliyun.com/gpu-mem: 3}}}]}}", "kind: List\nitems: [{}]",
		"&a [*a]", "? [a]\n: 1", "\xef\xbb\xbfa: 1", "a: &x {b: *x}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		said, out, err := told(converter{Driver: "gpu.nvidia.com", Families: Names()}, text)
		if said != "" || err != nil {
			return
		}
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.TrimSpace(strings.TrimPrefix(line, "---")))
		}
		for _, line := range lines {
			if !strings.Contains(out, line) {
				t.Errorf("%q is gone from %q", line, out)
			}
		}
	})
}
