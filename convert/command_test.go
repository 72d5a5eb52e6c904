// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/kubeconfig"
)

// program returns a program with the conversion, and its features.
func program() (*cobra.Command, *[]feature.Feature) {
	cmd, features := &cobra.Command{Use: "dra-controller", SilenceErrors: true}, &[]feature.Feature{}
	AddTo(cmd, features)
	return cmd, features
}

// runCommand runs the command convert. It returns standard output, standard error and the command's error.
func runCommand(t *testing.T, args ...string) (out, said string, err error) {
	t.Helper()
	cmd, _ := program()
	var stdout, stderr bytes.Buffer
	cmd.SetArgs(append([]string{"convert"}, args...))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func TestFlags(t *testing.T) {
	for _, tc := range []struct{ name, flags, want string }{
		{"nothing is converted", "", ""},
		{"families and models", "--convert-families=hami,kai --convert-model=15Gi/65 --convert-model=80Gi/989", ""},
		{"gpushare in MiB", "--gpushare-memory-unit=MiB", ""},
		{"an unknown family", "--convert-families=hamii",
			"--convert-families hamii: want some of gpu-manager, "},
		{"an unknown name", "--convert-name=a.com/b=a.com/c", "--convert-name: a.com/b: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd, features := program()
			if err := cmd.ParseFlags(strings.Fields(tc.flags)); err != nil {
				t.Fatal(err)
			}
			err := (*features)[0].Check()
			if got := err == nil; got != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestModels(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"15Gi/65", "15Gi/65"}, {"46068Mi/362", "46068Mi/362"}, {"15Gi", ""}, {"15Gi/", ""}, {"15/65", ""},
		{"-1Gi/65", ""}, {"15Gi/0", ""}, {"a/b", ""}, {"", ""},
	} {
		var m models
		if err := m.Set(tc.text); (err == nil) != (tc.want != "") || m.String() != tc.want {
			t.Errorf("%q: got %q, error %v, want %q", tc.text, m.String(), err, tc.want)
		}
	}
}

// A claim may get a partition only if the class of partitions exists: the scheduler allocates no list that names a
// missing class.
func TestConvertReadsTheCluster(t *testing.T) {
	list := resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1",
		Kind: "ResourceSliceList"}}
	for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"}) {
		list.Items = append(list.Items, *s)
	}
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(manifest, []byte("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: "+
		"[{name: main, resources: {limits: {resource.nvidia.com/tflops: 50}}}]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		code int // of the answer for the class
		want string
	}{
		{"with the class", http.StatusOK, "deviceClassName: mig.nvidia.com"},
		{"without the class", http.StatusNotFound, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if strings.HasSuffix(r.URL.Path, "/resourceslices") {
					_ = json.NewEncoder(w).Encode(list)
					return
				}
				w.WriteHeader(row.code)
				if row.code == http.StatusOK {
					_, _ = w.Write([]byte(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": ` +
						`{"name": "mig.nvidia.com"}}`))
				}
			}))
			defer server.Close()
			out, told, err := runCommand(t, "-f", manifest, "--kubeconfig", kubeconfig.Write(t, server.URL))
			if err != nil || !strings.Contains(out, "cores:") {
				t.Fatalf("got %v, %s\n%s\nwant a share of a GPU", err, told, out)
			}
			if strings.Contains(out, "mig.nvidia.com") != (row.want != "") || !strings.Contains(out, row.want) {
				t.Errorf("got\n%s\nwant %q and no other class of partitions", out, row.want)
			}
		})
	}
}

// What is not understood is told with its file and line, ends the command with an error, and is printed unchanged.
func TestConvertTellsPlaces(t *testing.T) {
	const other = "kind: InferenceService\nmetadata: {name: llm}\nspec: {model: {resources: {limits: " +
		"{acme.com/vgpu: 1}}}}\n"
	dir := t.TempDir()
	manifest := filepath.Join(dir, "all.yaml")
	text := other + "---\n{{ broken\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n" +
		"spec: {containers: [{name: main, resources: {limits: {acme.com/vgpu: 1}}}]}\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, said, err := runCommand(t, "-f", dir, "--name", "acme.com/vgpu=volcano.sh/vgpu-number")
	if err == nil || !strings.Contains(err.Error(), "all.yaml: not everything could be converted") {
		t.Errorf("got error %v", err)
	}
	for _, want := range []string{manifest + ":3: InferenceService llm: not converted: spec.model.resources.limits " +
		"has acme.com/vgpu, in a place", manifest + ":4: document: not converted: yaml: ", "Pod a: converted\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("got\n%s\nwant %s", said, want)
		}
	}
	for _, want := range []string{other, "{{ broken\n", "resourceClaimTemplateName: converted-manifest-"} {
		if strings.Count(out, want) != 1 {
			t.Errorf("got\n%s\nwant once %s", out, want)
		}
	}
	for _, names := range []string{"nvidia.com/gpu=nvidia.com/gpumem", "vgpu=nvidia.com/gpu", "a.com/b=a.com/c"} {
		if _, _, err := runCommand(t, "-f", dir, "--name", names); err == nil {
			t.Errorf("--name %s: no error", names)
		}
	}
}
