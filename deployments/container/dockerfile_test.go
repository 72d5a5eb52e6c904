// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestDockerfile compares the duplicated configuration of the images, the version, and the version of Go.
func TestDockerfile(t *testing.T) {
	dockerfile := string(read(t, "Dockerfile"))
	version := strings.TrimSpace(string(read(t, "../../VERSION")))
	contents, err := contents(native, programs(t, t.TempDir()), version)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(dockerfile, "\nFROM scratch AS "), len(contents); got != want {
		t.Errorf("got %d images, want %d", got, want)
	}
	for _, c := range contents {
		t.Run(c.name, func(t *testing.T) {
			got, copied := stage(t, dockerfile, c.name)
			if diff := cmp.Diff(c.config, got, cmp.Transformer("empty",
				func(s []string) string { return strings.Join(s, "\n") })); diff != "" {
				t.Errorf("-%s is made with, +the Dockerfile says:\n%s", c.name, diff)
			}
			if want := "--from=build /out/rootfs/" + c.name + "/ /"; copied != want {
				t.Errorf("COPY: got %s, want %s", copied, want)
			}
		})
	}
	module := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindSubmatch(read(t, "../../go.mod"))
	if want := fmt.Sprintf("\nARG GO_IMAGE=golang:%s-", module[1]); !strings.Contains(dockerfile, want) {
		t.Errorf("want %q as in go.mod", strings.TrimSpace(want))
	}
}

// stage returns the image configuration of a stage in a Dockerfile, and what it copies.
func stage(t *testing.T, dockerfile, name string) (config v1.Config, copied string) {
	t.Helper()
	_, text, ok := strings.Cut(dockerfile, "\nFROM scratch AS "+name+"\n")
	if !ok {
		t.Fatalf("no stage %s", name)
	}
	text, _, _ = strings.Cut(text, "\nFROM ")
	config.Labels = map[string]string{}
	variables := map[string]string{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "":
		case "ARG":
			key, value, _ := strings.Cut(rest, "=")
			variables[key] = value
		case "COPY":
			copied = rest
		case "ENV":
			config.Env = append(config.Env, rest)
		case "WORKDIR":
			config.WorkingDir = rest
		case "LABEL":
			for _, found := range regexp.MustCompile(`(\S+)="([^"]*)"`).FindAllStringSubmatch(rest, -1) {
				config.Labels[found[1]] = os.Expand(found[2], func(name string) string { return variables[name] })
			}
		case "ENTRYPOINT":
			config.Entrypoint = words(t, rest)
		case "CMD":
			config.Cmd = words(t, rest)
		default:
			t.Errorf("%s in stage %s: images made without Docker have nothing of it", instruction, name)
		}
	}
	return config, copied
}

func words(t *testing.T, text string) []string {
	t.Helper()
	var words []string
	if err := json.Unmarshal([]byte(text), &words); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return words
}

// TestRootfs compares the files for the Dockerfile with the layers.
func TestRootfs(t *testing.T) {
	dir := t.TempDir()
	contents, err := contents(native, programs(t, filepath.Join(dir, "bin")), "v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRootfs(filepath.Join(dir, "rootfs"), contents); err != nil {
		t.Fatal(err)
	}
	for _, c := range contents {
		var all []entry
		for _, layer := range c.layers {
			all = append(all, layer...)
		}
		layers, err := tarOf(all)
		if err != nil {
			t.Fatal(err)
		}
		var written bytes.Buffer
		w := tar.NewWriter(&written)
		if err := errors.Join(w.AddFS(os.DirFS(filepath.Join(dir, "rootfs", c.name))), w.Close()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(members(t, layers), members(t, written.Bytes())); diff != "" {
			t.Errorf("%s: -layers +files:\n%s", c.name, diff)
		}
	}
}

// members returns the content of a tar stream by path.
func members(t *testing.T, stream []byte) map[string]string {
	t.Helper()
	members := map[string]string{}
	for tr := tar.NewReader(bytes.NewReader(stream)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		hash, size, err := v1.SHA256(tr)
		if err != nil {
			t.Fatal(err)
		}
		members[strings.TrimSuffix(h.Name, "/")] = fmt.Sprintf("%c %o %s %d %s", h.Typeflag, h.Mode&0o7777, h.Linkname,
			size, hash)
	}
}
