// SPDX-License-Identifier: Apache-2.0

package helm_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

// application is what TestProductionPage reads of an Application of Argo CD.
type application struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		Destination       struct{ Namespace string }
		IgnoreDifferences []struct{ Kind, Name string }
	}
}

// TestProductionPage: the chart renders with the values of docs/operate/production.md, the driver can read their node
// configurations, and the chart has the objects whose differences Argo CD ignores.
func TestProductionPage(t *testing.T) {
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").
		FindAllStringSubmatch(read(t, "../../docs/operate/production.md"), -1)
	if len(blocks) != 2 {
		t.Fatalf("got %d YAML blocks, want the values and the Application", len(blocks))
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(blocks[0][1]), 0o600); err != nil {
		t.Fatal(err)
	}
	var app application
	if err := yaml.Unmarshal([]byte(blocks[1][1]), &app); err != nil {
		t.Fatal(err)
	}
	text, err := helm(t, "template", app.Metadata.Name, chart, "--namespace", app.Spec.Destination.Namespace,
		"--values", values, "--api-versions", mutatingPolicies)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	configurations := 0
	objects := map[string]bool{}
	for _, document := range strings.Split(text, "\n---\n") {
		var object corev1.ConfigMap
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			continue // no ConfigMap
		}
		objects[object.Kind+" "+object.Name] = true
		if object.Kind != "ConfigMap" || !strings.HasSuffix(object.Name, "-node-config") {
			continue
		}
		for name, text := range object.Data {
			configurations++
			if _, err := nodeconfig.Parse([]byte(text)); err != nil {
				t.Errorf("node configuration %s: %v", name, err)
			}
		}
	}
	if configurations != 2 {
		t.Errorf("got %d node configurations, want 2", configurations)
	}
	if len(app.Spec.IgnoreDifferences) == 0 {
		t.Error("the Application ignores nothing")
	}
	for _, ignored := range app.Spec.IgnoreDifferences {
		if !objects[ignored.Kind+" "+ignored.Name] {
			t.Errorf("the chart has no %s %s", ignored.Kind, ignored.Name)
		}
	}
	for _, want := range []string{"PodMonitor gpu-dra-driver-kubelet-plugin",
		"PrometheusRule gpu-dra-driver-controller"} {
		if !objects[want] {
			t.Errorf("the values give no %s", want)
		}
	}
}
