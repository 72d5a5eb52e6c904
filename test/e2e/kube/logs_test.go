// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// restarted is a pod of the driver whose only container was started again.
func restarted() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-dra-driver", Name: "plugin-x", Labels: driverLabels},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "plugin", RestartCount: 1,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
}

// A failed test leaves what is needed to understand it, in a folder of its own.
func TestKeepLogs(t *testing.T) {
	pod := restarted()
	for _, row := range []struct {
		name     string
		machines map[string]string // files of a cluster of test/cluster
		want     []string
	}{
		{"a cluster of test/cluster", map[string]string{
			"control-plane/log/kube-apiserver.log":                                "1\n",
			"node-1/log/kubelet.log":                                              "2\n",
			"node-1/disk/var/log/pods/gpu-dra-driver_plugin-x_7f/plugin/0.log":    "before\n",
			"node-1/disk/var/log/pods/gpu-dra-driver_plugin-x_7f/plugin/1.log":    "after\n",
			"node-1/disk/var/log/pods/kube-system_kube-proxy_80/kube-proxy/0.log": "of another\n",
		}, []string{"claims.yaml", "control-plane_kube-apiserver.log", "events.yaml", "node-1_kubelet.log",
			"node-1_plugin-x_7f_plugin_0.log", "node-1_plugin-x_7f_plugin_1.log", "pods.yaml", "slices.yaml"}},
		{"another cluster", nil, []string{"claims.yaml", "events.yaml", "node-1_plugin-x_plugin.log",
			"node-1_plugin-x_plugin.previous.log", "pods.yaml", "slices.yaml"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			from, to := t.TempDir(), t.TempDir()
			for name, content := range row.machines {
				path := filepath.Join(from, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
					os.WriteFile(path, []byte(content), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv(LogsVariable, to)
			c := &Cluster{Client: clientfake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pod).Build(),
				set: fake.NewClientset(pod), kubeconfig: filepath.Join(from, "kubeconfig")}
			dir, err := c.KeepLogs(t.Context(), "TestCluster/a pod's claim")
			if want := filepath.Join(to, "TestCluster_a_pod_s_claim"); dir != want || err != nil {
				t.Errorf("got folder %s, error %v, want %s", dir, err, want)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
				if info, err := e.Info(); err != nil || info.Size() == 0 {
					t.Errorf("%s is empty, error %v", e.Name(), err)
				}
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
}

// The ends of the logs are printed: those of the driver, a few lines each.
func TestEnds(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"node-1_kubelet.log":              "of the node\n",
		"node-1_plugin-x_7f_plugin_0.log": "first\nsecond\n" + strings.Repeat("x", 2*mostOfLine) + "\n",
		"node-2_plugin-y_80_plugin_0.log": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := "--- node-1_plugin-x_7f_plugin_0.log\nsecond\n" + strings.Repeat("x", mostOfLine) + "\n"
	if got := Ends(dir, 2); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
