// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// semantic is a version that charts can have.
var semantic = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// dist builds a release below the output directory: the images of all platforms as one index, the chart with their
// digest, the plugin of kubectl with its manifest for krew, the notes, a list of what is in the programs, the
// provenance, and checksums of all files. With push, images and chart go to the registry.
func dist(ctx context.Context, o options) error {
	if !semantic.MatchString(o.version) {
		return fmt.Errorf("a release needs a version such as v0.2.0, got %q", o.version)
	}
	if strings.HasSuffix(o.version, development) {
		return fmt.Errorf("%s is the state before the release %s", o.version,
			strings.TrimSuffix(o.version, development))
	}
	if o.registry != "" && o.registry != o.release {
		return fmt.Errorf("push to %s: the chart of this release names %s", o.registry, o.release)
	}
	bins, platforms, systems := map[platform]string{}, released, pluginPlatforms
	if o.only != "" {
		if !slices.Contains(released, platform(o.only)) {
			return fmt.Errorf("-only %s: must be one of %v", o.only, released)
		}
		platforms, systems = []platform{platform(o.only)}, []string{"linux/" + o.only}
	}
	s, err := readSource(ctx)
	if err != nil {
		return err
	}
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return fmt.Errorf("read the notes of the release: %w", err)
	}
	if s.notes, err = notes(changes, o.version); err != nil {
		return err
	}
	for _, p := range platforms {
		bins[p] = filepath.Join(o.output, "release", string(p))
		if err := buildPrograms(ctx, p, bins[p]); err != nil {
			return err
		}
	}
	plugins, err := buildPlugins(ctx, systems, o.version, filepath.Join(o.output, "release", pluginName))
	if err != nil {
		return err
	}
	r, err := assemble(bins, plugins, o, s)
	if err != nil {
		return err
	}
	dir := filepath.Join(o.output, "dist")
	if err := r.write(dir); err != nil {
		return err
	}
	fmt.Println("the release is in", dir)
	if o.registry == "" {
		return nil
	}
	return pushRelease(ctx, r.images, r.chart)
}

// assembled is a release in memory, but for the layers of its images.
type assembled struct {
	images []indexed
	chart  named
	files  map[string][]byte // what is written beside the OCI layout: name → content
	layout string            // name of the OCI layout
}

// assemble makes a release of the programs. plugins are those of kubectl.
func assemble(bins map[platform]string, plugins map[string]string, o options, s source) (assembled, error) {
	var images [][]named
	var programs []string
	libraries := map[string]bool{}
	platforms := slices.Sorted(maps.Keys(bins))
	for _, p := range platforms {
		contents, err := contents(p, bins[p], o.version)
		if err != nil {
			return assembled{}, err
		}
		made, err := newImages(contents, filepath.Join(o.output, "release", "layers"), o.version)
		if err != nil {
			return assembled{}, err
		}
		images = append(images, made)
		for _, e := range slices.Concat(slices.Concat(contents[0].layers...), slices.Concat(contents[1].layers...)) {
			switch {
			case strings.HasPrefix(e.source, bins[p]+"/") && !slices.Contains(programs, e.source):
				programs = append(programs, e.source)
			case e.source != "" && !strings.HasPrefix(e.source, bins[p]):
				libraries[string(p)+"/"+path.Base(e.path)] = true
			}
		}
	}
	a := assembled{images: newIndexes(o.release, o.version, platforms, images), files: map[string][]byte{},
		layout: "images-" + o.version + ".tar"}
	digest, err := a.images[0].index.Digest()
	if err != nil {
		return assembled{}, fmt.Errorf("digest of %s: %w", a.images[0].name, err)
	}
	r := release{version: o.version, repository: o.release + "/" + chartName, digest: digest.String()}
	archive, metadata, err := packageChart(chartDir, r)
	if err != nil {
		return assembled{}, err
	}
	if a.chart, err = newChart(o.release, archive, metadata, r); err != nil {
		return assembled{}, err
	}
	a.files[chartName+"-"+r.chartVersion()+".tgz"] = archive
	archives, err := packagePlugins(plugins, o.version)
	if err != nil {
		return assembled{}, err
	}
	maps.Copy(a.files, archives)
	for _, p := range slices.Sorted(maps.Keys(plugins)) {
		programs = append(programs, plugins[p])
	}
	list, err := sbom(programs, slices.Sorted(maps.Keys(libraries)), o.version, s.time)
	if err != nil {
		return assembled{}, err
	}
	a.files["NOTES.md"] = s.notes
	if err := a.add(chartName+"-"+o.version+".spdx.json", list); err != nil {
		return assembled{}, err
	}
	subjects, err := a.subjects()
	if err != nil {
		return assembled{}, err
	}
	return a, a.add("provenance.json", newStatement(subjects, s, o.version, o.release))
}

func (a assembled) add(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	a.files[name] = append(text, '\n')
	return nil
}

// subjects are the images, the chart and the files so far, with their digests.
func (a assembled) subjects() ([]subject, error) {
	var subjects []subject
	for _, i := range a.images {
		digest, err := i.index.Digest()
		if err != nil {
			return nil, fmt.Errorf("digest of %s: %w", i.name, err)
		}
		subjects = append(subjects, subject{i.name, map[string]string{digest.Algorithm: digest.Hex}})
	}
	digest, err := a.chart.image.Digest()
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", a.chart.name, err)
	}
	subjects = append(subjects, subject{a.chart.name, map[string]string{digest.Algorithm: digest.Hex}})
	for _, name := range slices.Sorted(maps.Keys(a.files)) {
		subjects = append(subjects, subject{name, map[string]string{"sha256": checksum(a.files[name])}})
	}
	return subjects, nil
}

func checksum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// write replaces the directory by the release.
func (a assembled) write(dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return fmt.Errorf("make directory of the release: %w", err)
	}
	folder, err := os.MkdirTemp(dir, "layout-")
	if err != nil {
		return fmt.Errorf("make directory for the OCI layout: %w", err)
	}
	defer os.RemoveAll(folder)
	if err := writeReleaseLayout(folder, a.images, a.chart); err != nil {
		return fmt.Errorf("write OCI layout: %w", err)
	}
	if _, err := tarDirectory(filepath.Join(dir, a.layout), folder); err != nil {
		return fmt.Errorf("write %s: %w", a.layout, err)
	}
	archive, err := os.ReadFile(filepath.Join(dir, a.layout))
	if err != nil {
		return fmt.Errorf("read %s: %w", a.layout, err)
	}
	sums := map[string]string{a.layout: checksum(archive)}
	for name, content := range a.files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		sums[name] = checksum(content)
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&text, "%s  %s\n", sums[name], name)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(text.String()), 0o644)
}
