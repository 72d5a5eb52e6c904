// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

const (
	testRegistry = "registry.example.com/team"
	// releaseGo is the variable of make, here of the environment, that names the version of Go for a release.
	releaseGo = "RELEASE_GO"
)

// TestDist builds a release of the commit in as many clean clones as DIST says, and reads what a user gets.
func TestDist(t *testing.T) {
	number, _ := strconv.Atoi(os.Getenv("DIST"))
	if number == 0 {
		t.Skip("compiles everything for two processors: make test-dist")
	}
	clones := make([]string, number)
	for i := range clones { // before anybody commits
		clones[i] = clone(t)
	}
	first := makeDist(t, clones[0])
	version := strings.TrimSuffix(strings.TrimSpace(string(read(t, "../../VERSION"))), development)
	sums := string(read(t, first+"/SHA256SUMS"))
	for _, other := range clones[1:] {
		if got := string(read(t, makeDist(t, other)+"/SHA256SUMS")); got != sums {
			t.Errorf("two clones: got\n%s\nwant the same bytes\n%s", got, sums)
		}
	}
	var names strings.Builder
	for line := range strings.Lines(sums) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if got := checksum(read(t, filepath.Join(first, name))); got != sum {
			t.Errorf("%s: got checksum %s, want %s", name, got, sum)
		}
		fmt.Fprintln(&names, name)
	}
	want := "NOTES.md\ngpu-dra-driver-" + version[1:] + ".tgz\ngpu-dra-driver-" + version +
		".spdx.json\ngpu.yaml\nimages-" + version + ".tar\nkubectl-gpu-" + version +
		"-darwin-amd64.tar.gz\nkubectl-gpu-" + version + "-darwin-arm64.tar.gz\nkubectl-gpu-" + version +
		"-linux-amd64.tar.gz\nkubectl-gpu-" + version + "-linux-arm64.tar.gz\nprovenance.json\n"
	if got := names.String(); got != want {
		t.Errorf("got files\n%s\nwant\n%s", got, want)
	}

	modules := map[string]bool{} // module@version of all programs
	digest := checkImages(t, filepath.Join(first, "images-"+version+".tar"), version, modules)
	checkPlugins(t, first, version, modules)
	chart := map[string]string{}
	files(t, unzipped(t, filepath.Join(first, "gpu-dra-driver-"+version[1:]+".tgz")), func(name string, text []byte) {
		chart[name] = string(text)
	})
	for file, want := range map[string][]string{
		"Chart.yaml":  {"\nversion: " + version[1:] + "\n", "\nappVersion: " + version + "\n", "'" + digest + "'"},
		"values.yaml": {"  repository: " + testRegistry + "/gpu-dra-driver\n"},
	} {
		for _, text := range want {
			if got := chart["gpu-dra-driver/"+file]; !strings.Contains(got, text) {
				t.Errorf("%s of the chart: got\n%s\nwant in it %s", file, got, text)
			}
		}
	}
	compiler := os.Getenv(releaseGo)
	if compiler == "local" {
		compiler = runtime.Version()
	}
	for _, module := range slices.Sorted(maps.Keys(modules)) {
		if got, ok := strings.CutPrefix(module, "stdlib@"); ok && "go"+got != compiler {
			t.Errorf("got a program that is built with go%s, want %s", got, compiler)
		}
	}
	list := string(read(t, filepath.Join(first, "gpu-dra-driver-"+version+".spdx.json")))
	for _, module := range slices.Sorted(maps.Keys(modules)) {
		if !strings.Contains(list, `"pkg:golang/`+module+`"`) {
			t.Errorf("the SBOM lacks %s", module)
		}
	}
	var s statement
	if err := json.Unmarshal(read(t, filepath.Join(first, "provenance.json")), &s); err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(output(t, clones[0], "git", "rev-parse", "HEAD"))
	got := s.Predicate.BuildDefinition
	if got.ResolvedDependencies[0].Digest["gitCommit"] != commit ||
		got.InternalParameters["workingTreeChanged"] != "false" || got.InternalParameters["go"] != compiler {
		t.Errorf("got provenance %+v, want the clean commit %s and %s", got, commit, compiler)
	}
	if text := string(read(t, first+"/NOTES.md")); !strings.HasPrefix(text, "# "+version+"\n") {
		t.Errorf("got notes\n%s\nwant those of %s", text, version)
	}
}

func clone(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clone")
	output(t, "../..", "git", "clone", "--quiet", "--no-local", ".", dir)
	return dir
}

// makeDist runs make dist in the clone, and returns the directory with the release.
func makeDist(t *testing.T, clone string) string {
	t.Helper()
	// Variables on the command line of make test, such as PUSH, are not for this.
	output(t, clone, "env", "-u", "MAKEFLAGS", "-u", "PUSH", "-u", "VERSION", "make", "dist", "REGISTRY="+testRegistry,
		releaseGo+"="+os.Getenv(releaseGo))
	return filepath.Join(clone, "_output", "dist")
}

func output(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, text)
	}
	return string(text)
}

// checkImages compares the programs of both processors, adds their modules, and returns the digest of the driver.
func checkImages(t *testing.T, archive, version string, modules map[string]bool) (digest string) {
	t.Helper()
	dir := t.TempDir()
	output(t, dir, "tar", "-xf", archive)
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifest.Manifests {
		title := strings.TrimPrefix(m.Annotations[containerdName], testRegistry+"/")
		if title == "charts/gpu-dra-driver:"+version[1:] {
			continue
		}
		index, err := root.ImageIndex(m.Digest)
		if err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		programs := map[string]string{} // processor → names
		of, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range of.Manifests {
			image, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			programs[m.Platform.Architecture] = checkPrograms(t, image, m.Platform.Architecture, modules)
		}
		if len(programs) != 2 || programs["amd64"] != programs["arm64"] {
			t.Errorf("%s: got programs %q, want the same for both processors", title, programs)
		}
		switch title {
		case "gpu-dra-driver:" + version:
			digest = m.Digest.String()
		case "gpu-dra-demo:" + version:
		default:
			t.Errorf("got image %s, want those of driver and demos", title)
		}
	}
	return digest
}

// checkPrograms checks that all programs and libraries of an image are for the processor, and returns their names.
func checkPrograms(t *testing.T, image v1.Image, processor string, modules map[string]bool) string {
	t.Helper()
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[processor]
	var names strings.Builder
	content := mutate.Extract(image)
	defer content.Close()
	files(t, content, func(name string, text []byte) {
		if !bytes.HasPrefix(text, []byte(elf.ELFMAG)) {
			return
		}
		file, err := elf.NewFile(bytes.NewReader(text))
		if err != nil || file.Machine != want {
			t.Errorf("%s of %s: got %+v and %v, want it for %s", name, processor, file, err, want)
		}
		if strings.HasPrefix(name, "usr/bin/") {
			addModules(t, name, text, modules)
			fmt.Fprintln(&names, path.Base(name))
		}
	})
	return names.String()
}

// checkPlugins checks that the plugins of kubectl are for the systems in their names, and adds their modules.
func checkPlugins(t *testing.T, dir, version string, modules map[string]bool) {
	t.Helper()
	machine := map[string]func(io.ReaderAt) (any, error){
		"linux": func(r io.ReaderAt) (any, error) {
			f, err := elf.NewFile(r)
			if err != nil {
				return nil, err
			}
			return f.Machine, nil
		},
		"darwin": func(r io.ReaderAt) (any, error) {
			f, err := macho.NewFile(r)
			if err != nil {
				return nil, err
			}
			return f.Cpu, nil
		},
	}
	for name, want := range map[string]any{"linux-amd64": elf.EM_X86_64, "linux-arm64": elf.EM_AARCH64,
		"darwin-amd64": macho.CpuAmd64, "darwin-arm64": macho.CpuArm64} {
		archive, found := unzipped(t, filepath.Join(dir, pluginName+"-"+version+"-"+name+".tar.gz")), false
		files(t, archive, func(file string, text []byte) {
			if file != pluginName {
				return
			}
			found = true
			system, _, _ := strings.Cut(name, "-")
			if got, err := machine[system](bytes.NewReader(text)); err != nil || got != want {
				t.Errorf("%s for %s: got %v and %v, want %v", file, name, got, err, want)
			}
			addModules(t, name, text, modules)
		})
		if !found {
			t.Errorf("the archive for %s lacks %s", name, pluginName)
		}
	}
}

// addModules adds the modules that a program of Go says that it consists of.
func addModules(t *testing.T, name string, program []byte, modules map[string]bool) {
	t.Helper()
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Errorf("modules of %s: %v", name, err)
		return
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		modules[module.Path+"@"+module.Version] = true
	}
	modules["stdlib@"+strings.TrimPrefix(info.GoVersion, "go")] = true
}

func unzipped(t *testing.T, file string) io.Reader {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(read(t, file)))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return r
}

// files calls use with each file of a tar stream.
func files(t *testing.T, r io.Reader, use func(name string, text []byte)) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			use(strings.TrimPrefix(h.Name, "./"), text)
		}
	}
}
