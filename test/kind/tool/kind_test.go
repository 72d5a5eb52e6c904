// SPDX-License-Identifier: Apache-2.0

// Package tool pins the version of kind and runs the scripts of the parent folder with it. Its docker is a fake,
// testdata/docker, so no node starts.
package tool

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kind/cmd/kind/app"
	"sigs.k8s.io/kind/pkg/apis/config/defaults"
)

// beKind makes this test binary act as kind.
const beKind = "TEST_IS_KIND"

func TestMain(m *testing.M) {
	if os.Getenv(beKind) != "" {
		app.Main()
		return
	}
	os.Exit(m.Run())
}

var labelOf = regexp.MustCompile(`- name: node-labels\n +value: (.*)`)

func TestUpAndDown(t *testing.T) {
	r := newRepository(t)
	r.run(t, "up.sh")
	t.Run("kind takes cluster.yaml and each node gets its profile", func(t *testing.T) {
		const label = "gpu.nvidia.com/sim-profile="
		want := map[string]string{
			"gpu-dra-control-plane": "", "gpu-dra-worker": label + "dgx-h100", "gpu-dra-worker2": label + "l40s-x4",
			"gpu-dra-worker3": label + "workstation", "gpu-dra-worker4": label + "mixed",
			"gpu-dra-worker5": label + "a16-x4",
		}
		got := map[string]string{}
		for _, node := range r.nodes(t) {
			got[node] = ""
			if found := labelOf.FindSubmatch(r.read(t, node, "kubeadm.conf")); found != nil {
				got[node] = strings.Trim(string(found[1]), `"`)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("the Kubernetes version is this kind's default",
		func(t *testing.T) { r.same(t, "image", defaults.Image+"\n") })
	t.Run("each node gets the images", func(t *testing.T) { r.same(t, "images", archive) })
	t.Run("only the owner can read the kubeconfig", func(t *testing.T) {
		info, err := os.Stat(filepath.Join(r.dir, "_output/kind/kubeconfig"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("got %v and error %v, want mode 0600", info, err)
		}
	})
	t.Run("a second run loads new images on the same nodes", func(t *testing.T) {
		before := r.calls(t, "run")
		r.write(t, "_output/images.tar", "newer")
		r.run(t, "up.sh")
		r.same(t, "images", "newer")
		if got := r.calls(t, "run"); got != before {
			t.Errorf("got %d nodes, want the %d that were there", got, before)
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		r.run(t, "down.sh")
		if left := r.nodes(t); len(left) > 0 {
			t.Errorf("got %v, want no nodes", left)
		}
	})
}

func TestNodeImage(t *testing.T) {
	const image = "kindest/node:v1.36.1"
	r := newRepository(t, "KIND_NODE_IMAGE="+image)
	r.run(t, "up.sh")
	r.same(t, "image", image+"\n")
}

// archive is the content of the fake _output/images.tar.
const archive = "an archive"

// repository is a copy of the files that the scripts use. testdata/docker writes into its folder fake.
type repository struct {
	dir string
	env []string
}

func newRepository(t *testing.T, env ...string) repository {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	docker, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	r := repository{dir: t.TempDir()}
	fake := filepath.Join(r.dir, "fake")
	r.env = append([]string{"PATH=" + docker + ":" + r.dir + "/bin:" + os.Getenv("PATH"), "HOME=" + r.dir, "FAKE=" +
		fake, "KIND=" + self, beKind + "=yes"}, env...)
	for _, file := range []string{"up.sh", "down.sh", "cluster.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, "test/kind/"+file, string(text))
	}
	r.write(t, "_output/images.tar", archive)
	r.write(t, "bin/kubectl", "#!/bin/sh\n")
	if err := os.MkdirAll(filepath.Join(fake, "nodes"), 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r repository) run(t *testing.T, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(r.dir, "test/kind", script))
	cmd.Env = r.env
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
}

// nodes returns the sorted names of the nodes that kind has started.
func (r repository) nodes(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, "fake/nodes"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return slices.Sorted(slices.Values(names))
}

// same checks that the file has this content on every node.
func (r repository) same(t *testing.T, file, want string) {
	t.Helper()
	nodes := r.nodes(t)
	if len(nodes) == 0 {
		t.Error("got no nodes")
	}
	for _, node := range nodes {
		if got := r.read(t, node, file); string(got) != want {
			t.Errorf("%s of %s: got %q, want %q", file, node, got, want)
		}
	}
}

// calls returns how often a docker command was run.
func (r repository) calls(t *testing.T, command string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "fake/calls"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"+command+" "))
}

func (r repository) read(t *testing.T, node, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "fake/nodes", node, file))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (r repository) write(t *testing.T, file, text string) {
	t.Helper()
	path := filepath.Join(r.dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
