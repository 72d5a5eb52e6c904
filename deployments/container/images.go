// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// named is an image and the reference that a container runtime gives it.
type named struct {
	name  string
	image v1.Image
}

// content says what an image consists of.
type content struct {
	name     string
	platform platform
	config   v1.Config
	layers   [][]entry
}

// contents says what the driver's and the demos' image consist of, given the programs in bin.
func contents(p platform, bin, version string) ([]content, error) {
	base, err := baseEntries(p, filepath.Join(bin, "dra-kubelet-plugin"))
	if err != nil {
		return nil, err
	}
	program := func(name string) []entry {
		return []entry{{path: "/usr/bin/" + name, mode: 0o755, source: filepath.Join(bin, name)}}
	}
	return []content{
		{
			name: "gpu-dra-driver", platform: p,
			config: config("gpu-dra-driver", version, "/usr/bin/dra-kubelet-plugin"),
			// What changes often comes last, so that a runtime that has the rest fetches only that.
			layers: [][]entry{base, program("nvidia-cdi-hook"), program("cdi-hooks"), program("sim-nvidia-smi"),
				program("sim-nvidia-cuda-mps-control"), program("mps-supervisor"), program("gpu-remote"),
				program("dra-controller"), program("dra-kubelet-plugin-sim"), program("dra-kubelet-plugin")},
		},
		{
			name: "gpu-dra-demo", platform: p,
			config: config("gpu-dra-demo", version, "/usr/bin/gpu-demo", "show"),
			layers: [][]entry{base, program("gpu-demo")},
		},
	}, nil
}

// newImages makes the images; their layers are files of layerDir.
func newImages(contents []content, layerDir, version string) ([]named, error) {
	var images []named
	for _, c := range contents {
		image, err := newImage(layerDir, c)
		if err != nil {
			return nil, fmt.Errorf("make image %s: %w", c.name, err)
		}
		images = append(images, named{"localhost/" + c.name + ":" + version, image})
	}
	return images, nil
}

// baseEntries is what both images share: the C library that the plugin and the NVIDIA driver's programs need, and the
// few files that every C program expects.
func baseEntries(p platform, plugin string) ([]entry, error) {
	found, err := findRuntime([]string{plugin}, glibc, p.libraryDirs())
	if err != nil {
		return nil, err
	}
	entries := []entry{
		{path: "/etc/passwd", mode: 0o644,
			text: "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"},
		{path: "/etc/group", mode: 0o644, text: "root:x:0:\nnogroup:x:65534:\n"},
		{path: "/etc/nsswitch.conf", mode: 0o644, text: "passwd: files\ngroup: files\nhosts: files dns\n"},
		{path: "/tmp", mode: 0o1777},
		{path: "/bin", link: "usr/bin"},
		{path: "/lib", link: "usr/lib"},
		{path: "/lib64", link: "usr/lib64"},
	}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run", "/root", "/var/lib", "/usr/local/bin", "/usr/lib64"} {
		entries = append(entries, entry{path: dir, mode: 0o755})
	}
	entries = append(entries, entry{path: "/var/run", link: "../run"})
	if found.loader != "" {
		entries = append(entries, entry{path: filepath.Join("/usr", found.loader), mode: 0o755,
			source: p.loaderFile(found.loader)})
	}
	for _, name := range slices.Sorted(maps.Keys(found.libraries)) {
		target := filepath.Join("/usr/lib", p.multiarch(), name)
		entries = append(entries, entry{path: target, mode: 0o755, source: found.libraries[name]})
	}
	// The hook that updates the loader's cache asks this file which directories the loader searches by itself.
	if text, err := os.ReadFile("/etc/debian_version"); err == nil {
		entries = append(entries, entry{path: "/etc/debian_version", mode: 0o644, text: string(text)})
	}
	return entries, nil
}

func config(title, version string, command ...string) v1.Config {
	return v1.Config{
		Entrypoint: command[:1],
		Cmd:        command[1:],
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    title,
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/gpudra/gpu-dra-driver",
		},
	}
}

func newImage(layerDir string, c content) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, entries := range c.layers {
		layer, err := newLayer(layerDir, entries)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, fmt.Errorf("add layer: %w", err)
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", string(c.platform)
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = c.config
	return mutate.ConfigFile(image, file)
}
