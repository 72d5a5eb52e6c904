// SPDX-License-Identifier: Apache-2.0

// Package kind_test tests the scripts of this folder with fake programs that record their arguments. The folder tool
// tests them with the real kind.
package kind_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	kubeconfig = " --kubeconfig _output/kind/kubeconfig"
	list       = "kind get clusters\n"
	export     = "kind export kubeconfig --name gpu-dra" + kubeconfig + "\n"
	create     = "kind create cluster --config test/kind/cluster.yaml" + kubeconfig
	load       = "kind load image-archive --name gpu-dra _output/images.tar\n"
	wait       = "kubectl" + kubeconfig + " wait --for=condition=Ready nodes --all --timeout=15m\n"
)

func TestScripts(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		env          []string
		want         string // the calls
		fails        string // the expected message
	}{
		{"a new cluster", "up.sh", nil, list + create + "\n" + load + wait, ""},
		{"another Kubernetes", "up.sh", []string{"KIND_NODE_IMAGE=kindest/node:v1.36.1"}, list + create +
			" --image kindest/node:v1.36.1\n" + load + wait, ""},
		{"a cluster that runs gets the images", "up.sh", []string{"CLUSTERS=other gpu-dra"}, list + export + load +
			wait, ""},
		{"a cluster of a similar name is another one", "up.sh", []string{"CLUSTERS=gpu-dra-2"}, list + create + "\n" +
			load + wait, ""},
		{"nothing is started when Docker does not answer", "up.sh", []string{"FAIL=get"}, list, ""},
		{"nothing goes on without a cluster", "up.sh", []string{"FAIL=create"}, list + create + "\n", ""},
		{"nothing is started without kubectl", "up.sh", []string{"KUBECTL=no-such-kubectl"}, "",
			"kubectl is missing"},
		{"the end", "down.sh", nil, "kind delete cluster --name gpu-dra" + kubeconfig + "\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			calls := filepath.Join(dir, "calls")
			write(t, filepath.Join(dir, "test/kind", tc.script), read(t, tc.script))
			write(t, filepath.Join(dir, "bin/kind"), `#!/bin/sh
echo kind "$@" >>"$CALLS"
case $1 in
"$FAIL") exit 1 ;;
get) printf '%s\n' $CLUSTERS ;;
esac
`)
			write(t, filepath.Join(dir, "bin/kubectl"), "#!/bin/sh\necho kubectl \"$@\" >>\"$CALLS\"\n")
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test/kind", tc.script))
			cmd.Env = append([]string{"PATH=" + dir + "/bin:" + os.Getenv("PATH"), "CALLS=" + calls,
				"KUBECONFIG=/somebody/elses"}, tc.env...)
			output, err := cmd.CombinedOutput()
			if fails := tc.fails != "" || strings.Contains(strings.Join(tc.env, " "), "FAIL="); (err != nil) != fails {
				t.Errorf("got error %v and\n%s", err, output)
			}
			if !strings.Contains(string(output), tc.fails) {
				t.Errorf("got\n%s\nwant %q in it", output, tc.fails)
			}
			if got, _ := os.ReadFile(calls); string(got) != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestScriptsAreShort(t *testing.T) {
	scripts, err := filepath.Glob("*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("got scripts %v and error %v", scripts, err)
	}
	for _, script := range scripts {
		if lines := bytes.Count([]byte(read(t, script)), []byte("\n")); lines > 40 {
			t.Errorf("%s: got %d lines, want at most 40; what is longer is a program", script, lines)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// The way with kind is offered where a Docker engine answers, and not where there is only its command.
func TestOffer(t *testing.T) {
	for name, tc := range map[string]struct{ docker, want string }{
		"no Docker":           {"", ""},
		"no engine":           {"exit 1", ""},
		"an engine that runs": {"[ \"$1\" = info ]", "make kind-up && make demo KUBECONFIG="},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.docker != "" {
				write(t, filepath.Join(dir, "docker"), "#!/bin/sh\n"+tc.docker+"\n")
			}
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "offer.sh")
			cmd.Env = []string{"PATH=" + dir}
			output, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatal(err)
			}
			if got := string(output); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
