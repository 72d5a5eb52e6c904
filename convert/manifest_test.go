// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, namespace: ml}
spec:
  template:
    spec:
      newField: kept
      containers: [{name: main, resources: {limits: {tencent.com/vcuda-core: %s, tencent.com/vcuda-memory: 20}}}]
`

const cronJob = `apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: ml}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 3}}}]}}}}}
`

// The controller deletes its templates when no pod with its label uses them. The pods of a converted manifest have no
// label, and a template that was applied over one of the controller's would keep the label.
func TestTemplatesOfManifests(t *testing.T) {
	c := converter{Driver: "gpu.nvidia.com", Families: Names()}
	var out strings.Builder
	if err := c.manifests(strings.NewReader(fmt.Sprintf(deployment, "first", "30")), &out,
		func(result) {}); err != nil {
		t.Fatal(err)
	}
	var template resourceapi.ResourceClaimTemplate
	if err := yaml.Unmarshal([]byte(strings.Split(out.String(), "---\n")[1]), &template); err != nil {
		t.Fatal(err)
	}
	own, err := templateName(&template.Spec.Spec, 0)
	if err != nil {
		t.Fatal(err)
	}
	template.Labels = map[string]string{FamilyLabel: "gpu-manager"}
	if template.Name == "" || template.Name == own || isTemplate(&template) {
		t.Errorf("template %s of a manifest looks like one of the controller's, %s", template.Name, own)
	}
	template.Name = own
	if !isTemplate(&template) {
		t.Errorf("template %s of the controller does not look like one", own)
	}
}

func TestManifests(t *testing.T) {
	c := converter{Driver: "gpu.nvidia.com", Families: Names()}
	const other = "apiVersion: v1\nkind: Service\nmetadata: {name: s} # a comment\n"
	first, second := fmt.Sprintf(deployment, "first", "30"), fmt.Sprintf(deployment, "second", "30")
	for _, tc := range []struct {
		name, in string
		told     string   // by object
		want     []string // each once in the output
		failed   bool
	}{
		{"what asks for nothing stays, with comments", other, "", []string{other}, false},
		{"two that ask for the same have one template", first + "---\n" + second + "---\n" + other,
			"Deployment first: converted\nDeployment second: converted\n",
			[]string{"kind: ResourceClaimTemplate", "name: first", "name: second", other}, false},
		{"fields that this program does not know stay", first, "Deployment first: converted\n",
			[]string{"newField: kept"}, false},
		{"a list", `{kind: List, apiVersion: v1, items: [{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: ` +
			`[{name: main, resources: {limits: {tencent.com/vcuda-core: 100}}}]}}, {apiVersion: v1, kind: Service, ` +
			`metadata: {name: s}}]}`, "Pod a: converted\n",
			[]string{"kind: Pod", "kind: Service", "kind: ResourceClaimTemplate"}, false},
		{"a mistake in the second of two templates of a list's object", `{kind: List, apiVersion: v1, items: [{kind: Job, ` +
			`metadata: {name: v}, spec: {tasks: [{template: {spec: {containers: [{name: a, resources: {limits: ` +
			`{volcano.sh/vgpu-number: 1}}}]}}}, {template: {spec: {containers: [{name: b, resources: {limits: ` +
			`{volcano.sh/vgpu-number: -1}}}]}}}]}}]}`, "Job v: spec.tasks[1].template: volcano: spec.containers[0].resources.limits" +
			"[volcano.sh/vgpu-number]: Invalid value: \"-1\": must be a whole number, at least 0\n",
			[]string{"volcano.sh/vgpu-number: 1}", "volcano.sh/vgpu-number: -1}"}, true},
		{"a CronJob", cronJob, "CronJob nightly: converted, 2 warnings\n",
			[]string{"memory: 3Gi", "request: main"}, false},
		{"an object of another API with two templates of pods", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: ` +
			`{name: v}, spec: {tasks: [{template: {spec: {containers: [{name: a, resources: {limits: ` +
			`{volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 2000}}}]}}}, {template: {spec: {containers: [{name: b, ` +
			`resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}}]}}`, "Job v: converted, 1 warnings\n",
			[]string{"request: a", "request: b", "memory: 2000Mi"}, false},
		{"an Elastic GPU", "{apiVersion: elasticgpu.io/v1alpha1, kind: ElasticGPUClaim, metadata: {name: e}, spec: {}}",
			"ElasticGPUClaim e: an ElasticGPUClaim is not converted: docs/migrate/old-manifests.md says what to write" +
				" in its place\n",
			[]string{"kind: ElasticGPUClaim"}, true},
		{"another ConfigMap", "kind: ConfigMap\ndata: {quota: '5'}\n", "", []string{"data: {quota: '5'}"}, false},
		{"values without a kind", "ml: {quota: {M40: 4}}\nother: {}\n", "", []string{"other: {}"}, false},
		{"one mistake does not keep the others from it", fmt.Sprintf(deployment, "wrong", "150") + "---\n" + second,
			"Deployment wrong: spec.template: gpu-manager: " +
				"spec.containers[0].resources.limits[tencent.com/vcuda-core]: Invalid " +
				"value: \"150\": must be less than 100 or a multiple of 100\nDeployment second: converted\n",
			[]string{"tencent.com/vcuda-core: 150", "name: second"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, told strings.Builder
			err := c.manifests(strings.NewReader(tc.in), &out, func(r result) {
				fmt.Fprint(&told, r.Object, ": ")
				switch {
				case r.Err != nil:
					fmt.Fprintln(&told, r.Err)
				case r.Converted && len(r.Warnings) > 0:
					fmt.Fprintf(&told, "converted, %d warnings\n", len(r.Warnings))
				case r.Converted:
					fmt.Fprintln(&told, "converted")
				}
				for _, p := range r.Passed {
					fmt.Fprintf(&told, "line %d: %s\n", p.Line, p)
				}
			})
			if (err != nil) != tc.failed {
				t.Errorf("got error %v", err)
			}
			if told.String() != tc.told {
				t.Errorf("got %q\nwant %q", told.String(), tc.told)
			}
			if strings.Contains(out.String(), "metadata: {}") || strings.Contains(out.String(), "status:") {
				t.Errorf("got an empty field in %s", out.String())
			}
			for _, want := range tc.want {
				if strings.Count(out.String(), want) != 1 {
					t.Errorf("got %s\nwant once %q", out.String(), want)
				}
			}
		})
	}
}
