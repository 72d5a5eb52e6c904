// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/nodetemplate"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

// The demo of a claim that nothing satisfies shows what the command says about it on the demo's nodes.
func TestDemo(t *testing.T) {
	const folder = "../../demo/unsatisfiable/"
	s := demoNodes(t)
	manifest, err := os.ReadFile(folder + "unsatisfiable.yaml")
	if err != nil {
		t.Fatal(err)
	}
	template, p := &resourceapi.ResourceClaimTemplate{}, &corev1.Pod{}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		for kind, into := range map[string]any{"ResourceClaimTemplate": template, "Pod": p} {
			if strings.Contains(document, "\nkind: "+kind+"\n") {
				if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s.Templates, s.Pods = append(s.Templates, template), append(s.Pods, p)
	r, err := Pod(t.Context(), s, p.Namespace, p.Name)
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(folder + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := "```text\n" + text(t, r) + "```\n"; !strings.Contains(string(readme), got) {
		t.Errorf("the README of the demo lacks\n%s", got)
	}
}

// demoNodes returns the nodes of make demo.
func demoNodes(t *testing.T) *cluster.Snapshot {
	t.Helper()
	text, err := os.ReadFile("../../demo/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		NodeConfigs struct{ Default any }
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.Marshal(values.NodeConfigs.Default); err != nil {
		t.Fatal(err)
	}
	config, err := nodeconfig.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s := fleet(t)
	for i, profile := range []string{"dgx-h100", "l40s-x4", "mixed"} { // those of hack/dev
		node := fmt.Sprint("node-", i+1)
		of, err := nodetemplate.FromProfile(profile, config, nodetemplate.Target{Driver: driver, Name: node})
		if err != nil {
			t.Fatal(err)
		}
		s.Slices = append(s.Slices, of.Slices...)
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	return s
}
