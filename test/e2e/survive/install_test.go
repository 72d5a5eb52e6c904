//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testInstallScript runs deployments/install.sh on a cluster without the driver, whose nodes do not have the image: it
// says what is missing, and nothing changes. Then it installs the driver with the commands of the pages.
func (s *suite) testInstallScript(t *testing.T) {
	const image = "localhost/gpu-dra-driver"
	for i := range s.profiles {
		s.node(nodeName(i)).sh(t, `ctr --namespace k8s.io images ls --quiet | grep '^`+image+`' |
			xargs --no-run-if-empty ctr --namespace k8s.io images rm --sync`)
	}
	install := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "deployments/install.sh", args...)
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "KUBECTL="+s.tool(t, "kubectl"),
			"HELM="+s.tool(t, "helm"))
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	onNode := "'" + *program + "' exec --name " + s.name + " $NODE --"
	label := func() string {
		var node corev1.Node
		must(t, s.Get(t.Context(), client.ObjectKey{Name: "node-2"}, &node))
		return node.Labels["nvidia.com/gpu.present"]
	}
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"no GPUs", []string{"--on-node", onNode, "--check"}, "a node with GPUs"},
		{"no driver of NVIDIA", []string{"--on-node", onNode, "--nodes", "node-2"}, "NVIDIA's driver on node node-2"},
		{"no such node", []string{"--image", image + ":v0", "--nodes", "node-2,node-9"}, "node node-9"},
		{"no way to a node", []string{"--on-node", "false"}, "a way to import images on node node-3"},
		{"no such value", []string{"--image", image + ":v0", "--nodes", "node-2", "--", "--set", "odd=1"}, "'odd'"},
		{"another namespace", []string{"--image", image + ":v0", "--", "--namespace", "x"},
			"values after --, not --namespace"},
		{"no tag", []string{"--image", "localhost:5000/x"}, "a tag in --image"},
		{"two ways", []string{"--image", image + ":v0", "--push", "x"}, "one of --push, --on-node and --image"},
	} {
		output, err := install(test.args...)
		if err == nil || !strings.Contains(output, test.want) || !strings.HasSuffix(output, "Nothing was changed.\n") {
			t.Errorf("%s: got %v and\n%s\nwant what is missing: %s", test.name, err, output, test.want)
		}
	}
	if got := label(); got != "" {
		t.Errorf("got the label %q, want none: something was missing", got)
	}
	plugins := &metav1.PartialObjectMetadata{}
	plugins.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	key := client.ObjectKey{Namespace: release, Name: release + "-kubelet-plugin"}
	if err := s.Get(t.Context(), key, plugins); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want nothing installed", err)
	}
	s.testStartPages(t)
}
