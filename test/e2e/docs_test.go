//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

var yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```")

// yamlBlocks returns the YAML blocks of a page.
func (s *suite) yamlBlocks(t *testing.T, file string) []string {
	t.Helper()
	page, err := os.ReadFile(file)
	s.must(t, err)
	var blocks []string
	for _, found := range yamlBlock.FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, found[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("%s shows no YAML", file)
	}
	return blocks
}

// gatesOf returns the feature gates that an example needs.
func gatesOf(block string) []string {
	var gates []string
	for text, gate := range map[string]string{
		"capacity:": "DRAConsumableCapacity", "distinctAttribute:": "DRAConsumableCapacity",
		"shared.gpu.nvidia.com": "DRAConsumableCapacity",
		"mig":                   "DRAPartitionableDevices", "tolerations:": "DRADeviceTaints",
		"nvidia.com/gpu:": "DRAExtendedResource", "nvidia.com/mig-": "DRAExtendedResource",
	} {
		if strings.Contains(block, text) {
			gates = append(gates, gate)
		}
	}
	return gates
}

// testDocs applies the YAML of the documentation, as readers do.
func (s *suite) testDocs(t *testing.T) {
	for i, block := range s.yamlBlocks(t, "../../README.md") {
		t.Run(fmt.Sprintf("README.md block %d", i+1), func(t *testing.T) {
			s.needs(t, gatesOf(block)...)
			s.applied(t, s.namespace(t, "readme"), block)
		})
	}
	for _, page := range []string{"docs/use/claims.md", "docs/use/partitions.md"} {
		for i, block := range s.yamlBlocks(t, "../../"+page) {
			t.Run(fmt.Sprintf("%s block %d", page, i+1), func(t *testing.T) {
				s.needs(t, gatesOf(block)...)
				ns := s.namespace(t, "docs")
				if strings.HasPrefix(block, "apiVersion: ") {
					s.applied(t, ns, block)
					return
				}
				// The spec of a claim, without a template around it.
				template := &resourceapi.ResourceClaimTemplate{
					TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
					ObjectMeta: metav1.ObjectMeta{Name: "block", Namespace: ns},
				}
				s.must(t, yaml.UnmarshalStrict([]byte(block), &template.Spec.Spec))
				s.must(t, s.ApplyTyped(t.Context(), template))
				s.running(t, s.pod(t, ns, template.Name, withTemplate(template.Name)))
			})
		}
	}
}

// publicImage is the image of all examples. Here, an image of ours replaces it, because nothing can be pulled.
const publicImage = `"ubuntu:24.04"`

// applied applies objects and waits until their pods have run. If there is no pod, a pod with a GPU must run beside
// them.
func (s *suite) applied(t *testing.T, namespace, documents string) {
	t.Helper()
	if strings.Count(documents, "image: ") != strings.Count(documents, publicImage) {
		t.Fatalf("an image is not %s, so this runs on few clusters:\n%s", publicImage, documents)
	}
	documents = strings.ReplaceAll(documents, publicImage, s.image)
	var pods []client.ObjectKey
	for _, document := range strings.Split(documents, "\n---\n") {
		object := &unstructured.Unstructured{}
		s.must(t, yaml.UnmarshalStrict([]byte(document), object))
		object.SetNamespace(namespace)
		s.must(t, s.Apply(t.Context(), object))
		if object.GetKind() == "Pod" {
			pods = append(pods, client.ObjectKeyFromObject(object))
		}
	}
	if len(pods) == 0 {
		s.running(t, s.pod(t, namespace, "beside", withTemplate(s.template(t, namespace, "one-gpu"))))
	}
	for _, pod := range pods {
		_, err := s.WaitPod(t.Context(), soon, pod, "finished", succeeded)
		s.must(t, err)
	}
}
