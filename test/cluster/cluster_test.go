// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/gpudra/gpu-dra-driver/test/cluster/internal/components"
)

// TestCluster uses a cluster as users and tests do.
func TestCluster(t *testing.T) {
	requireMachine(t)
	name, other := ours+"-a", ours+"-b"
	ending(t, name)
	ending(t, other)
	up := []string{
		"up", "--name", name, "--nodes", "3", "--profile", "node-1=dgx-h100", "--profile", "node-2=t4-x2",
		"--feature-gates", "DRAResourcePoolStatus=true", "--runtime-config", "resource.k8s.io/v1beta2=true",
	}
	must(t, up...)
	kubectl := newKubectl(t, name)

	t.Run("kubectl works in the plain shell and nodes carry their profile", func(t *testing.T) {
		got := kubectl("", "get", "nodes", "-o", "jsonpath="+
			`{range .items[*]}{.metadata.name} {.metadata.labels.gpu\.nvidia\.com/sim-profile} {.status.nodeInfo.kubeletVersion}{"\n"}{end}`)
		const want = "node-1 dgx-h100 v1.37.2\nnode-2 t4-x2 v1.37.2\nnode-3  v1.37.2\n"
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("the kubeconfig is for its owner only", func(t *testing.T) {
		info, err := os.Stat(strings.TrimSpace(must(t, "kubeconfig", "--name", name)))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("got mode %o, want 600", got)
		}
	})
	t.Run("feature gates and runtime config are applied", func(t *testing.T) {
		if got := kubectl("", "api-versions"); !strings.Contains(got, "resource.k8s.io/v1beta2\n") {
			t.Errorf("got no resource.k8s.io/v1beta2 in\n%s", got)
		}
		const want = `kubernetes_feature_enabled{name="DRAResourcePoolStatus",stage="ALPHA"} 1`
		if got := kubectl("", "get", "--raw", "/metrics"); !strings.Contains(got, want) {
			t.Errorf("got no %s in the API server's metrics", want)
		}
		got := kubectl("", "get", "--raw", "/api/v1/nodes/node-1/proxy/configz")
		if !strings.Contains(got, `"DRAResourcePoolStatus":true`) {
			t.Errorf("got kubelet configuration\n%s", got)
		}
	})
	t.Run("a pod of a loaded image runs on every node", func(t *testing.T) {
		archive := writeArchive(t, "localhost/load-test:1")
		must(t, "load", archive, "--name", name)
		kubectl(daemonSet, "apply", "-f", "-")
		kubectl("", "rollout", "status", "daemonset/load-test", "--timeout="+hangs.String())
	})
	testControl(t, name, kubectl)
	t.Run("exec runs on the node and returns the exit status", func(t *testing.T) {
		got := must(t, "exec", "--name", name, "node-2", "--", "hostname")
		if got != "node-2\n" {
			t.Errorf("got host name %q, want node-2", got)
		}
		err := command(t, "exec", "--name", name, "node-1", "--", "sh", "-c", "exit 7").Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Errorf("got %v, want exit status 7", err)
		}
	})
	t.Run("device nodes below /var work", func(t *testing.T) {
		must(t, "exec", "--name", name, "node-1", "--", "sh", "-c",
			"mkdir -p /var/lib/device-test && mknod /var/lib/device-test/null c 1 3 && echo x > "+
				"/var/lib/device-test/null")
	})
	t.Run("a killed kubelet comes back", func(t *testing.T) {
		must(t, "exec", "--name", name, "node-3", "--", "sh", "-c",
			`old=$(cat /run/kubelet.pid); kill -9 $old
			 until new=$(cat /run/kubelet.pid 2>/dev/null) && [ -n "$new" ] && [ "$new" != $old ]; do sleep 0.1; done`)
	})
	t.Run("logs exist", func(t *testing.T) {
		if got := must(t, "logs", "--name", name, "node-1/kubelet"); !strings.Contains(got,
			"Successfully registered node") {
			t.Errorf("got no registration in the kubelet's log")
		}
		if got := fails(t, "logs", "--name", name, "node-1/nothing"); !strings.Contains(got, "node-1/kubelet") {
			t.Errorf("got %q, want the names of the logs", got)
		}
	})
	t.Run("up again changes nothing, and refuses other settings", func(t *testing.T) {
		before := must(t, "status", "--name", name)
		must(t, up...)
		if got := must(t, "status", "--name", name); got != before {
			t.Errorf("got status\n%s\nwant\n%s", got, before)
		}
		if got := fails(t, "up", "--name", name, "--nodes", "2"); !strings.Contains(got, "run down first") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a second cluster starts and ends independently", func(t *testing.T) {
		must(t, "up", "--name", other, "--nodes", "1")
		if got := newKubectl(t, other)("", "get", "nodes", "-o", "name"); got != "node/node-1\n" {
			t.Errorf("got nodes %q", got)
		}
		must(t, "down", "--name", other)
		must(t, "status", "--name", name)
		kubectl("", "get", "--raw", "/readyz")
	})
	t.Run("after down there is nothing to use", func(t *testing.T) {
		must(t, "down", "--name", name)
		for _, args := range [][]string{{"status"}, {"kubeconfig"}, {"exec", "node-1", "--", "true"},
			{"load", "x.tar"}} {
			if got := fails(t, append(args[:1:1], append([]string{"--name", name},
				args[1:]...)...)...); !strings.Contains(got, "cluster is not up") {
				t.Errorf("%s: got %q", args[0], got)
			}
		}
	})
}

// TestStartThatCannotSucceed checks that `up` detects the failure, reports the reason, and cleans up.
func TestStartThatCannotSucceed(t *testing.T) {
	requireMachine(t)
	name := ours + "-gate"
	ending(t, name)
	leavesNothing(t, func(t *testing.T) {
		got := fails(t, "up", "--name", name, "--nodes", "1", "--feature-gates", "NoSuchGate=true")
		for _, want := range []string{"unrecognized feature gate: NoSuchGate", "machine control-plane ended"} {
			if !strings.Contains(got, want) {
				t.Errorf("got\n%s\nwant it to say: %s", got, want)
			}
		}
	})
}

const daemonSet = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: load-test}
spec:
  selector: {matchLabels: {app: load-test}}
  template:
    metadata: {labels: {app: load-test}}
    spec:
      containers:
      - {name: pause, image: "localhost/load-test:1"}
`

// newKubectl returns a function that runs kubectl with the input on stdin.
func newKubectl(t *testing.T, name string) func(input string, args ...string) string {
	t.Helper()
	tool := filepath.Join(strings.TrimSpace(must(t, "tools")), "kubectl")
	config := strings.TrimSpace(must(t, "kubeconfig", "--name", name))
	return func(input string, args ...string) string {
		t.Helper()
		cmd := exec.Command(tool, append([]string{"--kubeconfig", config}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
		}
		return stdout.String()
	}
}

// writeArchive writes the pause image under another name as an OCI archive.
func writeArchive(t *testing.T, name string) string {
	t.Helper()
	cache, err := components.Open("", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	pause, err := cache.BuildPause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(pause, components.PauseArchive), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	oci, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := oci.AppendImage(image, layout.WithAnnotations(
		map[string]string{"io.containerd.image.name": name})); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := tar.NewWriter(file)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}
