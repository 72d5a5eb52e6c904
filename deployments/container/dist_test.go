// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"
)

// testRelease makes a release of programs that are copies of this test, and of an empty one for the other platform.
func testRelease(t *testing.T, prefix string) (assembled, string) {
	t.Helper()
	t.Chdir("../..") // where the chart is
	dir := t.TempDir()
	bins := map[platform]string{native: programs(t, filepath.Join(dir, "bin", string(native)))}
	if _, err := os.Stat(arm64.libraryDirs()[0] + "/libc.so.6"); err == nil && native != arm64 {
		bins[arm64] = copies(t, emptyProgram(t, arm64), filepath.Join(dir, "bin", string(arm64)))
	}
	plugin := filepath.Join(dir, "plugin", "linux-"+runtime.GOARCH, pluginName)
	write(t, plugin, read(t, filepath.Join(bins[native], "gpu-demo")))
	plugins := map[string]string{"linux/" + runtime.GOARCH: plugin}
	a, err := assemble(bins, plugins, options{output: dir, version: "v9.8.7", release: prefix},
		source{commit: "c0ffee", time: "2026-01-02T03:04:05Z", notes: []byte("# v9.8.7\n")})
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

// emptyProgram compiles a static program that does nothing.
func emptyProgram(t *testing.T, p platform) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", "program", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+string(p))
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return filepath.Join(dir, "program")
}

func TestReleaseInARegistry(t *testing.T) {
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("no helm in $HELM: make test-unit builds one")
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HELM_CACHE_HOME", t.TempDir())
	t.Setenv("HELM_CONFIG_HOME", t.TempDir())
	prefix := strings.TrimPrefix(server.URL, "http://") + "/team"
	a, dir := testRelease(t, prefix)
	if err := pushRelease(t.Context(), a.images, a.chart); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		output, err := exec.CommandContext(t.Context(), helm, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, output)
		}
		return string(output)
	}
	chart := "oci://" + prefix + "/charts/gpu-dra-driver"
	image, err := a.images[0].index.Digest()
	if err != nil {
		t.Fatal(err)
	}

	t.Run("every image has its platforms", func(t *testing.T) {
		for _, i := range a.images {
			tag, err := name.NewTag(i.name)
			if err != nil {
				t.Fatal(err)
			}
			index, err := i.index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(index.Manifests); got != 2 {
				t.Logf("%s: only %d platform: there is no cross compiler here", i.name, got)
			}
			for _, m := range index.Manifests {
				p := platform(m.Platform.Architecture)
				got, err := remote.Image(tag, remote.WithPlatform(p.oci()))
				if err != nil {
					t.Fatal(err)
				}
				if config, err := got.ConfigFile(); err != nil || config.Architecture != string(p) {
					t.Errorf("%s: got architecture %s and %v, want %s", i.name, config.Architecture, err, p)
				}
			}
		}
	})
	t.Run("helm pulls the chart", func(t *testing.T) {
		run(t, "pull", chart, "--version", "9.8.7", "--plain-http", "--destination", dir)
		if got := read(t, filepath.Join(dir, "gpu-dra-driver-9.8.7.tgz")); !bytes.Equal(got,
			a.files["gpu-dra-driver-9.8.7.tgz"]) {
			t.Error("got another chart than was pushed")
		}
	})
	t.Run("helm installs the digest of the version", func(t *testing.T) {
		got := run(t, "install", "x", chart, "--version", "9.8.7", "--plain-http", "--dry-run=client")
		for _, want := range []string{"image: " + prefix + "/gpu-dra-driver@" + image.String() + "\n",
			"helm.sh/chart: gpu-dra-driver-9.8.7\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("got\n%s\nwant in it %s", got, want)
			}
		}
	})
	t.Run("a tag in the values wins", func(t *testing.T) {
		got := run(t, "template", "x", chart, "--version", "9.8.7", "--plain-http", "--set", "image.tag=v1")
		if strings.Contains(got, image.String()) || !strings.Contains(got, prefix+"/gpu-dra-driver:v1\n") {
			t.Errorf("got\n%s\nwant the tag of the values", got)
		}
	})
	t.Run("the files that helm leaves out", func(t *testing.T) {
		packaged := filepath.Join(dir, "packaged")
		run(t, "package", chartDir, "--destination", packaged)
		files, err := filepath.Glob(packaged + "/*.tgz")
		if err != nil || len(files) != 1 {
			t.Fatalf("got %v and %v, want a chart", files, err)
		}
		if got, want := run(t, "show", "all", filepath.Join(dir, "gpu-dra-driver-9.8.7.tgz")), run(t, "show", "readme",
			files[0]); !strings.Contains(got, strings.TrimSpace(want)) {
			t.Errorf("got\n%s\nwant the README of the chart in it", got)
		}
		if got, want := fileNames(t, filepath.Join(dir, "gpu-dra-driver-9.8.7.tgz")), fileNames(t,
			files[0]); got != want {
			t.Errorf("got files\n%s\nwant those of helm package\n%s", got, want)
		}
	})
}

// fileNames are the sorted paths of the files of a chart.
func fileNames(t *testing.T, archive string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "sh", "-c", "tar tzf "+archive+" | grep -v '/$' | sort").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

func TestReleaseFiles(t *testing.T) {
	a, dir := testRelease(t, "registry.example.com/team")
	out := filepath.Join(dir, "dist")
	if err := a.write(out); err != nil {
		t.Fatal(err)
	}
	sums := string(read(t, filepath.Join(out, "SHA256SUMS")))
	files, err := filepath.Glob(out + "/*")
	if err != nil || len(files) != 8 {
		t.Fatalf("got %v and %v, want images, chart, plugin, its manifest, notes, SBOM, provenance, sums", files, err)
	}
	for _, file := range files {
		want := fmt.Sprintf("%x  %s\n", sha256.Sum256(read(t, file)), filepath.Base(file))
		if filepath.Base(file) != "SHA256SUMS" && !strings.Contains(sums, want) {
			t.Errorf("got\n%s\nwant in it %s", sums, want)
		}
	}

	t.Run("the archive of the plugin of kubectl has the program and the license", func(t *testing.T) {
		archive := filepath.Join(out, "kubectl-gpu-v9.8.7-linux-"+runtime.GOARCH+".tar.gz")
		list, err := exec.CommandContext(t.Context(), "tar", "-tvzf", archive).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"-rwxr-xr-x", " kubectl-gpu\n", " LICENSE\n"} {
			if !strings.Contains(string(list), want) {
				t.Errorf("got\n%s\nwant in it %q", list, want)
			}
		}
	})
	t.Run("the manifest of krew has each platform with the archive's checksum", func(t *testing.T) {
		programs := map[string]string{}
		for _, p := range pluginPlatforms {
			programs[p] = "VERSION"
		}
		packaged, err := packagePlugins(programs, "v9.8.7")
		if err != nil {
			t.Fatal(err)
		}
		want := `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: gpu
spec:
  homepage: https://github.com/gpudra/gpu-dra-driver
  platforms:
`
		for _, p := range pluginPlatforms {
			system, processor, _ := strings.Cut(p, "/")
			name := "kubectl-gpu-v9.8.7-" + system + "-" + processor + ".tar.gz"
			want += fmt.Sprintf(`  - bin: kubectl-gpu
    selector:
      matchLabels:
        arch: %s
        os: %s
    sha256: %s
    uri: https://github.com/gpudra/gpu-dra-driver/releases/download/v9.8.7/%s
`, processor, system, checksum(packaged[name]), name)
		}
		want += "  shortDescription: Shows GPUs and who holds them, and why a pod waits\n  version: v9.8.7\n"
		if got := string(packaged["gpu.yaml"]); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("the SBOM has the modules of each program", func(t *testing.T) {
		var document spdxDocument
		file := filepath.Join(out, "gpu-dra-driver-v9.8.7.spdx.json")
		if err := json.Unmarshal(read(t, file), &document); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		var listed strings.Builder
		for _, p := range document.Packages {
			if seen[p.ID] {
				t.Errorf("%s is there twice", p.ID)
			}
			seen[p.ID] = true
			for _, r := range p.References {
				fmt.Fprintln(&listed, r.Locator)
			}
			fmt.Fprintln(&listed, p.Name)
		}
		for _, r := range document.Relationships {
			if !seen[r.To] || !seen[r.From] && r.From != document.ID {
				t.Errorf("%v: want packages of the document", r)
			}
		}
		for _, want := range []string{"pkg:golang/github.com/google/go-containerregistry@v", "pkg:golang/stdlib@1.",
			string(native) + "/dra-kubelet-plugin\n",
			"linux-" + runtime.GOARCH + "/kubectl-gpu\n", string(native) + "/libc.so.6\n"} {
			if !strings.Contains(listed.String(), want) {
				t.Errorf("got\n%s\nwant in it %s", listed.String(), want)
			}
		}
	})
	t.Run("the provenance has the digests", func(t *testing.T) {
		var s statement
		if err := json.Unmarshal(read(t, filepath.Join(out, "provenance.json")), &s); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(s.Subject)
		image, err := a.images[0].index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"registry.example.com/team/gpu-dra-driver:v9.8.7", image.Hex,
			checksum(a.files["gpu-dra-driver-9.8.7.tgz"]), "registry.example.com/team/charts/gpu-dra-driver:9.8.7"} {
			if !strings.Contains(got, want) {
				t.Errorf("got %s, want %s in it", got, want)
			}
		}
		if commit := s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]; commit != "c0ffee" {
			t.Errorf("got commit %s, want c0ffee", commit)
		}
	})
	t.Run("the same sources give the same bytes", func(t *testing.T) {
		again, err := os.MkdirTemp(dir, "again")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.write(again); err != nil {
			t.Fatal(err)
		}
		if got := string(read(t, filepath.Join(again, "SHA256SUMS"))); got != sums {
			t.Errorf("got\n%s\nwant\n%s", got, sums)
		}
	})
}

// The supervisor's DaemonSet changes only in releases that change the supervisor.
func TestReleasedSupervisor(t *testing.T) {
	values := read(t, "../helm/gpu-dra-driver/values.yaml")
	for _, tc := range []struct{ name, release, want string }{
		{"a later release has the supervisor of an earlier one", "v9.8.7", string(supervisorVersion.Find(values))},
		{"a candidate has its own", "v0.0.1-rc.1", "    version: v0.0.1-rc.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := release{version: tc.release, repository: "r.example.com/x"}.editValues(values)
			if err != nil {
				t.Fatal(err)
			}
			if found := string(supervisorVersion.Find(got)); found != tc.want {
				t.Errorf("got %s, want %s", found, tc.want)
			}
		})
	}
}

// What Artifact Hub and the chart's templates read of a release.
func TestReleasedAnnotations(t *testing.T) {
	for version, prerelease := range map[string]string{"v9.8.7": "false", "v9.8.7-rc.1": "true"} {
		text, err := release{version: version, repository: "r.example.com:5000/x", digest: "sha256:00"}.editChart(
			read(t, "../helm/gpu-dra-driver/Chart.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var chart struct{ Annotations map[string]string }
		var images, links []map[string]string
		if err := errors.Join(yaml.Unmarshal(text, &chart),
			yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/images"]), &images),
			yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/links"]), &links)); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if got := chart.Annotations; got["artifacthub.io/prerelease"] != prerelease || len(images) != 1 ||
			images[0]["image"] != "r.example.com:5000/x@sha256:00" || len(links) == 0 || links[0]["url"] == "" ||
			got["gpu-dra-driver/image-digest"] != "sha256:00" {
			t.Errorf("%s: got %v, want links, the image, prerelease %s", version, got, prerelease)
		}
	}
}

func TestReleaseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    options
		want string
	}{
		{"no version", options{release: "r.example.com"}, `such as v0.2.0, got ""`},
		{"a version that no chart can have", options{version: "0.2", release: "r.example.com"}, `got "0.2"`},
		{"the version of a state before a release", options{version: "v0.2.0-dev", release: "r.example.com"},
			"before the release v0.2.0"},
		{"another processor", options{version: "v0.2.0", release: "r.example.com", only: "arm"},
			"-only arm: must be one of [amd64 arm64]"},
		{"another registry", options{version: "v0.2.0", release: "r.example.com", registry: "s.example.com"},
			"the chart of this release names r.example.com"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := dist(t.Context(), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	const changes = "# Changes\n\n## Unreleased\n\nNext.\n\n## 0.2.0\n\nFirst: [how](docs/a.md#b), " +
		"[here](LICENSE), [there](https://example.com/x).\n\n### More\n\n## 0.1.0\n\nOld.\n"
	for _, tc := range []struct{ name, version, want string }{
		{"a section with its links", "v0.2.0", "# v0.2.0\n\nFirst: [how](" + repository +
			"/blob/v0.2.0/docs/a.md#b), [here](" + repository + "/blob/v0.2.0/LICENSE), " +
			"[there](https://example.com/x).\n\n### More\n"},
		{"a candidate has the notes of its release", "v0.1.0-rc.1", "# v0.1.0-rc.1\n\nOld.\n"},
		{"a release without notes", "v0.3.0", `CHANGELOG.md has no section "## 0.3.0"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := notes([]byte(changes), tc.version)
			if err != nil {
				got = []byte(err.Error())
			}
			if string(got) != tc.want && (err == nil || !strings.HasPrefix(string(got), tc.want)) {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}
