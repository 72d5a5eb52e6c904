// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

const (
	chartName = "gpu-dra-driver"
	chartDir  = "deployments/helm/" + chartName
	// Media types of a chart in a registry: helm.sh/docs/topics/registries.
	chartConfigType  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContentType types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// release is what a chart says of the images that it installs.
type release struct {
	version    string // v0.2.0
	repository string // of the driver's image
	digest     string // of its index
}

// chartVersion is the version as charts have it.
func (r release) chartVersion() string { return strings.TrimPrefix(r.version, "v") }

// packageChart returns the chart in dir as `helm package` writes it, with the image of the release, and its metadata as
// JSON. The same sources give the same bytes.
func packageChart(dir string, r release) (archive, metadata []byte, err error) {
	var entries []entry
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || ignoredByHelm(d.Name()) {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		switch name, _ := filepath.Rel(dir, file); name {
		case "Chart.yaml":
			text, err = r.editChart(text)
			if err == nil {
				metadata, err = yaml.YAMLToJSON(text)
			}
		case "values.yaml":
			text, err = r.editValues(text)
		}
		name, _ := filepath.Rel(dir, file)
		entries = append(entries, entry{path: "/" + path.Join(chartName, filepath.ToSlash(name)), mode: 0o644,
			text: string(text)})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("package chart: %w", err)
	}
	content, err := tarOf(entries)
	if err != nil {
		return nil, nil, fmt.Errorf("package chart: %w", err)
	}
	archive, err = compressed(content)
	return archive, metadata, err
}

// compressed returns the content as gzip writes it, without a time.
func compressed(content []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// ignoredByHelm follows .helmignore. TestChart compares both.
func ignoredByHelm(name string) bool { return strings.HasPrefix(name, ".") || name == "icon.svg" }

// editChart sets the versions and the digest, which the chart uses unless the values name another tag or digest. The
// annotations are at the end of the file.
func (r release) editChart(text []byte) ([]byte, error) {
	text, err := edit(text, map[string]string{`(?m)^version: .*$`: "version: " + r.chartVersion(),
		`(?m)^appVersion: .*$`: "appVersion: " + r.version})
	return fmt.Appendf(text, "  gpu-dra-driver/image-digest: '%s'\n  artifacthub.io/prerelease: '%t'\n"+
		"  artifacthub.io/images: '[{name: %s, image: %s@%[1]s}]'\n", r.digest, strings.Contains(r.version, "-"),
		chartName, r.repository), err
}

// supervisorVersion finds the release whose supervisor the chart installs.
var supervisorVersion = regexp.MustCompile(`(?m)^    version: (v\S+)$`)

// editValues sets the driver's image. The supervisor stays that of an earlier release, unless it is to come later than
// this one, such as after a release candidate. The comments stay.
func (r release) editValues(text []byte) ([]byte, error) {
	found := supervisorVersion.FindSubmatch(text)
	if found == nil {
		return nil, errors.New("values.yaml has no mps.supervisor.version")
	}
	supervisor, err := version.ParseSemantic(string(found[1]))
	if err != nil {
		return nil, fmt.Errorf("mps.supervisor.version: %w", err)
	}
	this, err := version.ParseSemantic(r.version)
	if err != nil {
		return nil, fmt.Errorf("version of the release: %w", err)
	}
	changes := map[string]string{`(?m)^  repository: localhost/gpu-dra-driver$`: "  repository: " + r.repository}
	if this.LessThan(supervisor) {
		changes[supervisorVersion.String()] = "    version: " + r.version
	}
	return edit(text, changes)
}

// edit replaces what each pattern matches, which must be in the text once.
func edit(text []byte, changes map[string]string) ([]byte, error) {
	for pattern, to := range changes {
		found := regexp.MustCompile(pattern)
		if n := len(found.FindAll(text, -1)); n != 1 {
			return nil, fmt.Errorf("%s is there %d times, want once", pattern, n)
		}
		text = found.ReplaceAllLiteral(text, []byte(to))
	}
	return text, nil
}

// chartArtifact is a chart in a registry: the config is its metadata, the only layer its archive.
type chartArtifact struct {
	config, manifest []byte
	layer            v1.Layer
}

var _ partial.CompressedImageCore = chartArtifact{}

// MediaType is that of the manifest.
func (chartArtifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawConfigFile is the metadata as JSON.
func (c chartArtifact) RawConfigFile() ([]byte, error) { return c.config, nil }

// RawManifest is the manifest as JSON.
func (c chartArtifact) RawManifest() ([]byte, error) { return c.manifest, nil }

// LayerByDigest returns the archive, or the config.
func (c chartArtifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if digest, err := c.layer.Digest(); err != nil || digest == h {
		return c.layer, err
	}
	return static.NewLayer(c.config, chartConfigType), nil
}

// newChart makes the artifact that `helm pull oci://…` reads.
func newChart(prefix string, archive, metadata []byte, r release) (named, error) {
	var fields struct{ Description string }
	if err := json.Unmarshal(metadata, &fields); err != nil {
		return named{}, fmt.Errorf("read metadata of the chart: %w", err)
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: describe(metadata, chartConfigType), Layers: []v1.Descriptor{describe(archive, chartContentType)},
		Annotations: map[string]string{
			"org.opencontainers.image.title":       chartName,
			"org.opencontainers.image.version":     r.chartVersion(),
			"org.opencontainers.image.description": fields.Description,
		},
	})
	if err != nil {
		return named{}, fmt.Errorf("make manifest of the chart: %w", err)
	}
	image, err := partial.CompressedToImage(chartArtifact{metadata, manifest,
		static.NewLayer(archive, chartContentType)})
	if err != nil {
		return named{}, fmt.Errorf("make artifact of the chart: %w", err)
	}
	tag := strings.ReplaceAll(r.chartVersion(), "+", "_") // a tag has no "+"
	return named{prefix + "/charts/" + chartName + ":" + tag, image}, nil
}

func describe(content []byte, mediaType types.MediaType) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Size: int64(len(content)),
		Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(content))}}
}
