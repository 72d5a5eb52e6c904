// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// pluginName is the program of the plugin of kubectl.
const pluginName = "kubectl-gpu"

// pluginPlatforms are where people run kubectl: system and processor, as Go names them. Packages of the driver that it
// uses do not compile for Windows.
var pluginPlatforms = []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"}

// buildPlugins compiles the plugin of kubectl for the platforms below the directory, and returns the programs.
func buildPlugins(ctx context.Context, platforms []string, version, dir string) (map[string]string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	programs := map[string]string{}
	for _, p := range platforms {
		system, processor, _ := strings.Cut(p, "/")
		fmt.Println("build", p, pluginName)
		out := filepath.Join(dir, system+"-"+processor)
		if err := os.MkdirAll(out, 0o755); err != nil {
			return nil, fmt.Errorf("make output directory: %w", err)
		}
		b := build{[]string{"github.com/gpudra/gpu-dra-driver/" + pluginName}, "0", "-s -w -X main.version=" + version,
			""}
		if err := b.run(ctx, []string{"GOOS=" + system, "GOARCH=" + processor}, out); err != nil {
			return nil, err
		}
		programs[p] = filepath.Join(out, pluginName)
	}
	return programs, nil
}

// packagePlugins returns an archive of the plugin for each platform, by name: the program and the license. gpu.yaml is
// the manifest for krew: it expects the archives in the release of that version on GitHub.
func packagePlugins(programs map[string]string, version string) (map[string][]byte, error) {
	archives, platforms := map[string][]byte{}, []any{}
	for _, p := range slices.Sorted(maps.Keys(programs)) {
		content, err := tarOf([]entry{{path: "/" + pluginName, mode: 0o755, source: programs[p]},
			{path: "/LICENSE", mode: 0o644, source: "LICENSE"}})
		if err != nil {
			return nil, fmt.Errorf("package %s for %s: %w", pluginName, p, err)
		}
		archive, err := compressed(content)
		if err != nil {
			return nil, fmt.Errorf("package %s for %s: %w", pluginName, p, err)
		}
		name := fmt.Sprintf("%s-%s-%s.tar.gz", pluginName, version, strings.ReplaceAll(p, "/", "-"))
		archives[name] = archive
		system, processor, _ := strings.Cut(p, "/")
		platforms = append(platforms, map[string]any{"bin": pluginName, "sha256": checksum(archive),
			"uri":      repository + "/releases/download/" + version + "/" + name,
			"selector": map[string]any{"matchLabels": map[string]string{"os": system, "arch": processor}}})
	}
	var err error
	archives["gpu.yaml"], err = yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]string{"name": "gpu"},
		"spec": map[string]any{"version": version, "homepage": repository, "platforms": platforms,
			"shortDescription": "Shows GPUs and who holds them, and why a pod waits"},
	})
	return archives, err
}
