// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/test/nodemetrics"
)

// pluginPod returns the driver's plugin on the node.
func pluginPod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "driver", Name: "plugin-" + node,
			Labels: map[string]string{"app.kubernetes.io/component": "kubelet-plugin"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8081}}}}},
	}
}

// metricsOfA are the metrics of node a: of a container that is measured, and of one that is not.
func metricsOfA() string {
	const train = `{namespace="ml",pod="train",container="main",uuid="GPU-1",device="gpu-3b-00-0"}`
	const chat = `{namespace="web",pod="chat",container="main",uuid="GPU-1",device="gpu-3b-00-0"}`
	return strings.Join([]string{
		"# TYPE " + memoryRequestedMetric + " gauge",
		memoryRequestedMetric + train + " 5.36870912e+09", memoryRequestedMetric + chat + " 1.073741824e+09",
		"# TYPE " + coresRequestedMetric + " gauge",
		coresRequestedMetric + train + " 0.29", coresRequestedMetric + chat + " 0",
		"# TYPE " + memoryUsedMetric + " gauge", memoryUsedMetric + train + " 1.073741824e+09",
		"# TYPE " + utilizationMetric + " gauge", utilizationMetric + train + " 0.5", "",
	}, "\n")
}

// plain answers with plain text.
func plain(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func proxy(node string) string {
	return "/api/v1/namespaces/driver/pods/http:plugin-" + node + ":8081/proxy/metrics"
}

func TestTop(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(s *apiServer)
		args   string
		want   string
		stderr string
		err    string
	}{
		{"all namespaces", nil, "-A", "NAMESPACE POD CONTAINER NODE GPU MEMORY CORES UTILIZATION\n" +
			"ml train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%\n" +
			"web chat main a gpu-3b-00-0 ?/1Gi no limit ?", "", ""},
		{"the namespace of the context", nil, "--no-headers",
			"train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%", "", ""},
		{"another namespace", nil, "-n web --no-headers", "chat main a gpu-3b-00-0 ?/1Gi no limit ?", "", ""},
		{"the greatest first", func(s *apiServer) {
			s.answers[proxy("a")] = plain(strings.ReplaceAll(metricsOfA(), `"ml"`, `"web"`))
		}, "-n web --no-headers --sort-by memory", "train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%\n" +
			"chat main a gpu-3b-00-0 ?/1Gi no limit ?", "", ""},
		{"an order that there is not", nil, "--sort-by cores", "", "", `--sort-by "cores": want memory, utilization`},
		{"an order of what is idle", nil, "--idle --sort-by memory", "", "", "leave one out"},
		{"a node", nil, "--no-headers a", "train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%", "", ""},
		{"a node, and the plugin of another one does not answer", func(s *apiServer) {
			s.Pods = append(s.Pods, pluginPod("b"))
		}, "--no-headers a/gpu-3b-00-0", "train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%", "", ""},
		{"another node", nil, "b", "", "No containers with GPUs found in the namespace ml.\n", ""},
		{"a namespace without GPUs", nil, "-n none", "", "No containers with GPUs found in the namespace none.\n", ""},
		{"a plugin that does not answer", func(s *apiServer) {
			s.Pods = append(s.Pods, pluginPod("b"))
			s.answers[proxy("b")] = func(w http.ResponseWriter, _ *http.Request) {
				refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
					"dial tcp: i/o timeout")
			}
		}, "--no-headers", "train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%", "",
			"node b: metrics of the plugin driver/plugin-b: dial tcp: i/o timeout"},
		{"two plugins of a node, during an update", func(s *apiServer) {
			s.Pods = append(s.Pods, pluginPod("a"))
			s.Pods[1].Name = "plugin-new"
			s.answers[proxy("new")] = s.answers[proxy("a")]
		}, "--no-headers", "train main a gpu-3b-00-0 ██░░░░░░░░ 1Gi/5Gi 29% 50%", "", ""},
		{"no right to use the proxy", func(s *apiServer) { s.forbidden = []string{proxy("a")} }, "", "",
			"No containers with GPUs found in the namespace ml.\n",
			`the missing right is the verb "get" on pods/proxy in the namespace driver`},
		{"no right to list pods", func(s *apiServer) { s.forbidden = []string{"/api/v1/pods"} }, "", "", "",
			`the missing right is the verb "list" on pods in a ClusterRole`},
		{"a pod without the port", func(s *apiServer) { s.Pods[0].Spec.Containers = nil }, "", "",
			"No containers with GPUs found in the namespace ml.\n", "no container has a port with the name http"},
		{"what is not Prometheus", func(s *apiServer) {
			s.answers[proxy("a")] = plain("<html>\n")
		}, "", "", "No containers with GPUs found in the namespace ml.\n",
			"node a: metrics of the plugin driver/plugin-a: read"},
		{"labels that would break the table or change the terminal", func(s *apiServer) {
			s.answers[proxy("a")] = plain("# TYPE " + memoryUsedMetric + " gauge\n" + memoryUsedMetric +
				"{namespace=\"ml\",pod=\"x\x1b[31m\\ny\",container=\"main\",device=\"gpu\"} 1073741824\n")
		}, "--no-headers", "x [31m y main a gpu 1Gi <none> ?", "", ""},
		{"a figure that makes no sense", func(s *apiServer) {
			s.answers[proxy("a")] = plain(strings.ReplaceAll(metricsOfA(), " 1.073741824e+09", " -5.36870912e+09"))
		}, "--no-headers", "train main a gpu-3b-00-0 ░░░░░░░░░░ -5120Mi/5Gi 29% 50%", "", ""},
		{"an error that would change the terminal", func(s *apiServer) {
			s.answers[proxy("a")] = func(w http.ResponseWriter, _ *http.Request) {
				refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "x\x1b[31m\ny")
			}
		}, "", "", "No containers with GPUs found in the namespace ml.\n", "driver/plugin-a: x [31m y"},
		{"no plugins", func(s *apiServer) { s.Pods = nil }, "", "", "",
			"no pod has the labels of the driver's plugin (app.kubernetes.io/component=kubelet-plugin)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := &apiServer{answers: map[string]http.HandlerFunc{}}
			s.Pods = []*corev1.Pod{pluginPod("a")}
			s.answers[proxy("a")] = plain(metricsOfA())
			if row.change != nil {
				row.change(s)
			}
			out, errOut, err := s.run(t, append([]string{"top"}, strings.Fields(row.args)...)...)
			if got := squeezed(out); got != row.want || errOut != row.stderr {
				t.Errorf("got\n%s%s\nwant\n%s%s", got, errOut, row.want, row.stderr)
			}
			if (err != nil) != (row.err != "") || err != nil && !strings.Contains(err.Error(), row.err) {
				t.Errorf("got error %v, want %q", err, row.err)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	s := &apiServer{answers: map[string]http.HandlerFunc{"/version": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"gitVersion": "v1.37.2"}`)
	}}}
	for _, node := range []string{"a", "b", "c"} {
		pod := pluginPod(node)
		pod.Spec.Containers[0].Name, pod.Spec.Containers[0].Image = "plugin", "example.com/driver:v0.2.0"
		s.Pods = append(s.Pods, pod)
	}
	s.Pods[1].Spec.Containers[0].Image = "example.com/driver:v0.1.0"
	s.Pods[2].Spec.NodeName = "a" // during an update
	const here = "PROGRAM VERSION NODES\nkubectl-gpu v0.0.0-test <none>\nKubernetes v1.37.2 <none>"
	out, _, err := s.run(t, "version")
	want := here + "\ndriver example.com/driver:v0.1.0 1\ndriver example.com/driver:v0.2.0 1"
	if squeezed(out) != want || err != nil {
		t.Errorf("got %v and\n%s\nwant\n%s", err, out, want)
	}
	s.forbidden = []string{"/api/v1/pods"}
	out, _, err = s.run(t, "version")
	if squeezed(out) != here || err == nil || !strings.Contains(err.Error(), "pods") {
		t.Errorf("got %v and\n%s\nwant what can be read, and the missing right", err, out)
	}
}

// The plugin exports the metrics that the command reads.
func TestMetricNames(t *testing.T) {
	registry := nodemetrics.Example(t)
	for _, name := range []string{memoryRequestedMetric, coresRequestedMetric, memoryUsedMetric, utilizationMetric} {
		if n, err := testutil.GatherAndCount(registry, name); err != nil || n != 1 {
			t.Errorf("%s: got %d, %v, want 1", name, n, err)
		}
	}
}
