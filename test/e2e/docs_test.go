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

// yamlBlocks returns the YAML that a page shows.
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

// testDocs does what a reader would do with the pages: apply what they show.
func (s *suite) testDocs(t *testing.T) {
	t.Run("README.md", func(t *testing.T) {
		ns := s.namespace(t, "readme")
		var pods []client.ObjectKey
		for _, document := range strings.Split(s.yamlBlocks(t, "../../README.md")[0], "\n---\n") {
			object := &unstructured.Unstructured{}
			s.must(t, yaml.UnmarshalStrict([]byte(document), object))
			object.SetNamespace(ns)
			s.must(t, s.Apply(t.Context(), object))
			if object.GetKind() == "Pod" {
				pods = append(pods, client.ObjectKeyFromObject(object))
			}
		}
		for _, pod := range pods {
			_, err := s.WaitPod(t.Context(), soon, pod, "finished", succeeded)
			s.must(t, err)
		}
	})
	ns := s.namespace(t, "docs")
	for i, block := range s.yamlBlocks(t, "../../docs/claims.md") {
		t.Run(fmt.Sprintf("docs/claims.md block %d", i+1), func(t *testing.T) {
			template := &resourceapi.ResourceClaimTemplate{
				TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("block-%d", i+1), Namespace: ns},
			}
			s.must(t, yaml.UnmarshalStrict([]byte(block), &template.Spec.Spec))
			s.must(t, s.ApplyTyped(t.Context(), template))
			s.running(t, s.pod(t, ns, template.Name, withTemplate(template.Name)))
		})
	}
}
