// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestTarOf(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		entries []entry
		want    string
	}{
		{"a file brings the directories above it",
			[]entry{{path: "/usr/bin/program", mode: 0o755, source: source}},
			"usr/ 755\nusr/bin/ 755\nusr/bin/program 755 ELF\n"},
		{"an entry of its own decides a directory's mode, wherever it stands",
			[]entry{{path: "/tmp/x", mode: 0o644, text: "x"}, {path: "/tmp", mode: 0o1777}},
			"tmp/ 1777\ntmp/x 644 x\n"},
		{"the order is by path and links keep their target",
			[]entry{{path: "/lib64", link: "usr/lib64"}, {path: "/lib", link: "usr/lib"}},
			"lib 777 -> usr/lib\nlib64 777 -> usr/lib64\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			content, err := tarOf(tc.entries)
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(t, bytes.NewReader(content)); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestFindRuntime(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name              string
		programs, sonames []string
		want              string
	}{
		{"the C library is found with what it needs", nil, []string{"libm.so.6"}, "libm.so.6 libc.so.6"},
		{"a library that is nowhere is named", nil, []string{"libnowhere.so.1"},
			"find library libnowhere.so.1: not in"},
		{"a program that is no ELF file is named", []string{"images_test.go"}, nil, "read ELF file images_test.go"},
		{"this program, static or not", []string{self}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, err := findRuntime(tc.programs, tc.sonames, native.libraryDirs())
			got := fmt.Sprint(found.libraries, err)
			for _, want := range strings.Fields(tc.want) {
				if !strings.Contains(got, want) {
					t.Errorf("got %s, want %q in it", got, want)
				}
			}
		})
	}
}

func TestArchive(t *testing.T) {
	build := func() string {
		dir := t.TempDir()
		bin := programs(t, filepath.Join(dir, "bin"))
		images := testImages(t, bin, filepath.Join(dir, "layers"))
		file := filepath.Join(dir, "images.tar")
		if _, err := writeArchive(file, images); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := build()

	t.Run("the same programs give the same bytes", func(t *testing.T) {
		if !bytes.Equal(read(t, file), read(t, build())) {
			t.Error("two builds differ")
		}
	})
	t.Run("containerd finds both names", func(t *testing.T) {
		var index v1.IndexManifest
		if err := json.Unmarshal(member(t, file, "index.json"), &index); err != nil {
			t.Fatal(err)
		}
		var got string
		for _, m := range index.Manifests {
			got += fmt.Sprintln(m.Annotations[containerdName], m.MediaType)
		}
		const manifest = " application/vnd.oci.image.manifest.v1+json\n"
		if want := "localhost/gpu-dra-driver:v1" + manifest + "localhost/gpu-dra-demo:v1" + manifest; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("a registry gets both images", func(t *testing.T) {
		server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		defer server.Close()
		t.Setenv("DOCKER_CONFIG", t.TempDir())
		dir := t.TempDir()
		bin := programs(t, filepath.Join(dir, "bin"))
		images := testImages(t, bin, filepath.Join(dir, "layers"))
		prefix := strings.TrimPrefix(server.URL, "http://") + "/team"
		if err := push(t.Context(), prefix, images); err != nil {
			t.Fatal(err)
		}
		for _, image := range []string{"gpu-dra-driver", "gpu-dra-demo"} {
			got, err := http.Get(server.URL + "/v2/team/" + image + "/manifests/v1")
			if err != nil {
				t.Fatal(err)
			}
			got.Body.Close()
			if got.StatusCode != http.StatusOK {
				t.Errorf("%s: got %s, want it in the registry", image, got.Status)
			}
		}
	})
	t.Run("layers of earlier builds go, those in use stay", func(t *testing.T) {
		dir := t.TempDir()
		bin := programs(t, filepath.Join(dir, "bin"))
		images := testImages(t, bin, dir)
		if err := os.RemoveAll(bin); err != nil {
			t.Fatal(err)
		}
		before, _ := filepath.Glob(dir + "/*")
		write(t, filepath.Join(dir, "old.tar.gz"), nil)
		if err := prune(dir, images); err != nil {
			t.Fatal(err)
		}
		if after, _ := filepath.Glob(dir + "/*"); !slices.Equal(after, before) {
			t.Errorf("got %v, want %v", after, before)
		}
	})
	t.Run("nothing is left beside the archive", func(t *testing.T) {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*"))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(left); got != 3 {
			t.Errorf("got %v, want bin, images.tar and layers", left)
		}
	})
}

// listing prints a tar stream. It fails on anything that makes builds differ.
func listing(t *testing.T, r io.Reader) string {
	t.Helper()
	var b strings.Builder
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s: time %v, owner %d:%d", h.Name, h.ModTime, h.Uid, h.Gid)
		}
		fmt.Fprintf(&b, "%s %o", h.Name, h.Mode)
		if h.Linkname != "" {
			fmt.Fprintf(&b, " -> %s", h.Linkname)
		}
		if text, _ := io.ReadAll(tr); len(text) > 0 {
			fmt.Fprintf(&b, " %s", text)
		}
		b.WriteString("\n")
	}
}

func member(t *testing.T, file, name string) []byte {
	t.Helper()
	for tr := tar.NewReader(bytes.NewReader(read(t, file))); ; {
		h, err := tr.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", name, file, err)
		}
		if h.Name == name {
			text, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func testImages(t *testing.T, bin, layers string) []named {
	t.Helper()
	contents, err := contents(native, bin, "v1")
	if err != nil {
		t.Fatal(err)
	}
	images, err := newImages(contents, layers, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// programs fills a directory with programs that are copies of this test.
func programs(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return copies(t, self, dir)
}

// copies fills a directory with programs that are copies of one.
func copies(t *testing.T, program, dir string) string {
	t.Helper()
	for _, name := range []string{"dra-kubelet-plugin", "gpu-demo", "nvidia-cdi-hook", "cdi-hooks", "sim-nvidia-smi",
		"sim-nvidia-cuda-mps-control", "mps-supervisor", "gpu-remote", "dra-controller",
		"dra-kubelet-plugin-sim"} {
		write(t, filepath.Join(dir, name), read(t, program))
	}
	return dir
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o755); err != nil {
		t.Fatal(err)
	}
}
