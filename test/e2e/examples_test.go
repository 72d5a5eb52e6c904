//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/test/e2e/kube"
)

// exampleCRDs are the CRDs of the examples: files of Go modules.
var exampleCRDs = []struct{ module, file string }{
	{"sigs.k8s.io/jobset@v0.10.1", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"},
	{"github.com/ray-project/kuberay/ray-operator@v1.4.2", "config/crd/bases/ray.io_rayclusters.yaml"},
}

// exampleNeeds are the feature gates that examples need.
var exampleNeeds = map[string][]string{
	"vllm-fraction.yaml": {"DRAConsumableCapacity"}, "notebook.yaml": {"DRAConsumableCapacity"},
	"vllm-mig.yaml": {"DRAPartitionableDevices"},
}

// testExamples applies the manifests of examples/. Of each pod template, a pod must be placed and its claim prepared:
// their images cannot be pulled here, and the controllers of JobSet and Ray do not run.
func (s *suite) testExamples(t *testing.T) {
	for _, crd := range exampleCRDs {
		s.installCRD(t, crd.module, crd.file)
	}
	files, err := filepath.Glob("../../examples/*.yaml")
	s.must(t, err)
	if len(files) == 0 {
		t.Fatal("no examples")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s.needs(t, exampleNeeds[filepath.Base(file)]...)
			ns := s.namespace(t, "example")
			text, err := os.ReadFile(file)
			s.must(t, err)
			pods := 0
			for _, document := range strings.Split(string(text), "\n---\n") {
				object := &unstructured.Unstructured{}
				s.must(t, yaml.UnmarshalStrict([]byte(document), object))
				object.SetNamespace(ns)
				templates := podTemplates(object.Object)
				for _, template := range templates {
					neverPull(template)
				}
				strict := client.WithFieldValidation(s.Client, metav1.FieldValidationStrict)
				s.must(t, strict.Create(t.Context(), object.DeepCopy()))
				for _, template := range templates {
					pods++
					s.prepared(t, ns, fmt.Sprintf("template-%d", pods), template)
				}
			}
			if pods == 0 {
				t.Error("no pod template")
			}
		})
	}
}

// installCRD applies a CRD and waits until the API server serves it. It stays, because deleting it takes long.
func (s *suite) installCRD(t *testing.T, module, file string) {
	t.Helper()
	download, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	s.must(t, err)
	var downloaded struct{ Dir string }
	s.must(t, json.Unmarshal(download, &downloaded))
	text, err := os.ReadFile(filepath.Join(downloaded.Dir, file))
	s.must(t, err)
	crd := &unstructured.Unstructured{}
	s.must(t, yaml.Unmarshal(text, crd))
	s.must(t, s.Apply(t.Context(), crd))
	s.must(t, kube.Until(t.Context(), soon, module+" to be served", func(ctx context.Context) (bool, string, error) {
		if err := s.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return false, "", err
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return true, "", nil
			}
		}
		return false, fmt.Sprint(conditions), nil
	}))
}

// podTemplates returns the specs of all pod templates in an object.
func podTemplates(object map[string]any) []map[string]any {
	var found []map[string]any
	for key, value := range object {
		switch value := value.(type) {
		case map[string]any:
			if spec, ok := value["spec"].(map[string]any); ok && key == "template" && spec["containers"] != nil {
				found = append(found, spec)
				continue
			}
			found = append(found, podTemplates(value)...)
		case []any:
			for _, item := range value {
				if item, ok := item.(map[string]any); ok {
					found = append(found, podTemplates(item)...)
				}
			}
		}
	}
	return found
}

// prepared creates a pod and waits until its container only lacks its image: the claims are prepared before.
func (s *suite) prepared(t *testing.T, namespace, name string, spec map[string]any) {
	t.Helper()
	pod := &corev1.Pod{}
	s.must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(spec, &pod.Spec, true))
	pod.Name, pod.Namespace = name, namespace
	s.must(t, s.Create(t.Context(), pod))
	_, err := s.WaitPod(t.Context(), soon, client.ObjectKeyFromObject(pod), "placed, with its claims prepared",
		func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
				return c.State.Waiting != nil && c.State.Waiting.Reason == "ErrImageNeverPull"
			})
		})
	s.must(t, err)
}

// neverPull keeps the kubelet from pulling the images of a pod template, which would hang. The pods need no processors
// either: the test machine has fewer than they ask for.
func neverPull(template map[string]any) {
	for _, field := range []string{"containers", "initContainers"} {
		containers, _ := template[field].([]any)
		for _, c := range containers {
			if c, ok := c.(map[string]any); ok {
				c["imagePullPolicy"] = string(corev1.PullNever)
				for _, amounts := range []string{"requests", "limits"} {
					unstructured.RemoveNestedField(c, "resources", amounts, "cpu")
				}
			}
		}
	}
}
