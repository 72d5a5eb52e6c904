// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/test/kubeconfig"
)

// runSlices runs the command slices and returns what it prints: output, warnings, error.
func runSlices(t *testing.T, flags ...string) (out, warnings string, err error) {
	t.Helper()
	return run(t, append([]string{slicesName}, flags...)...)
}

func run(t *testing.T, args ...string) (out, warnings string, err error) {
	t.Helper()
	cmd := command()
	var stdout, stderr bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SilenceErrors = true
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func TestSlicesOfAProfile(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\n" +
		"gpus: [{select: {index: 1}, sharing: exclusive}, {select: {index: 7}, sharing: exclusive}]"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, warnings, err := runSlices(t, "--profile", "t4-x2", "--node-config", config, "--driver-name",
		"gpu.example.com", "--node-name", "new")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"kind: ResourceSlice\n": 2, "driver: gpu.example.com\n": 2,
		"nodeName: new\n": 2, "name: new/monitor\n": 1, "string: exclusive\n": 1, "string: fractional\n": 1} {
		if got := strings.Count(out, text); got != want {
			t.Errorf("%q: got %d times, want %d, in\n%s", text, got, want, out)
		}
	}
	if want := "Warning: line 3: gpus[1]: selects no GPU of this node\n"; warnings != want {
		t.Errorf("got %q, want %q", warnings, want)
	}

	cmd := command()
	var piped bytes.Buffer
	cmd.SetArgs([]string{slicesName, "--profile", "t4-x2", "--node-config", "-", "--driver-name", "gpu.example.com",
		"--node-name", "new"})
	cmd.SetIn(strings.NewReader(text))
	cmd.SetOut(&piped)
	cmd.SetErr(io.Discard)
	if err := cmd.Execute(); err != nil || piped.String() != out {
		t.Errorf("with the configuration on standard input: got %v\n%s\nwant\n%s", err, piped.String(), out)
	}
}

func TestSlicesOfANode(t *testing.T) {
	var query string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Path + "?" + r.URL.Query().Get("fieldSelector")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "items": [{"metadata": `+
			`{"name": "00000-a-x7", "resourceVersion": "1"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "a", `+
			`"pool": {"name": "a", "generation": 3, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}}]}`)
	}))
	defer server.Close()
	out, warnings, err := runSlices(t, "--from-node", "a", "--kubeconfig", kubeconfig.Write(t, server.URL))
	if err != nil || warnings != "" {
		t.Fatal(err, warnings)
	}
	const want = `---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata:
  name: 00000-gpu.nvidia.com-template-0
spec:
  devices:
  - name: gpu-0
  driver: gpu.nvidia.com
  nodeName: template
  pool:
    generation: 1
    name: template
    resourceSliceCount: 1
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	if want := "/apis/resource.k8s.io/v1/resourceslices?spec.driver=gpu.nvidia.com,spec.nodeName=a"; query != want {
		t.Errorf("got request %s, want %s", query, want)
	}
}

func TestSlicesRefusals(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("gpus: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	const one = "one of --from-node and --profile is required, and not both"
	for _, row := range []struct{ name, flags, want string }{
		{"neither", "", one},
		{"both", "--from-node=a --profile=t4-x2", one},
		{"another profile", "--profile=t4", `no profile "t4"; known are a16-x4, a30-x2, `},
		{"a configuration that is not used", "--from-node=a --node-config=" + config, "--node-config is for --profile"},
		{"no configuration", "--profile=t4-x2 --node-config=" + config + "x", "--node-config: open "},
		{"a bad configuration", "--profile=t4-x2 --node-config=" + config, "--node-config " + config + ": line 1: "},
		{"a bad name", "--profile=t4-x2 --node-name=A", `--node-name "A": a lowercase RFC 1123 subdomain`},
		{"no cluster", "--from-node=a --kubeconfig=" + config + "x", "reach the API server (--kubeconfig "},
		{"more", "--profile=t4-x2 more", `unknown command "more"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			out, _, err := runSlices(t, strings.Fields(row.flags)...)
			if err == nil || !strings.HasPrefix(err.Error(), row.want) || out != "" {
				t.Errorf("got %v, want %s…, and no output: %q", err, row.want, out)
			}
		})
	}
}
