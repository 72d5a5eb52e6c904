//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/renameio/v2"
)

// upgradedFrom is the release from which upgrades are tested: 0.1.0, which has no tag yet. This is the first commit
// with its notes that make dist can build. When a release is tagged, this becomes the commit of its tag.
const upgradedFrom = "9dfd5ebf06289c181ed802dfd557c2be214dc8cf"

// releaseRegistry is the prefix for which that release is built.
const releaseRegistry = registryAddress + "/team"

// installRelease installs the release, and returns the image that its plugins have: the chart is the packaged one, and
// the nodes pull the image from a registry by its digest. In a clone without the commit of the release, such as a
// shallow one, it installs this version with another image, and the test's output says so.
func (s *suite) installRelease(t *testing.T) (image string) {
	t.Helper()
	archive, missing := buildRelease(t)
	if missing != "" {
		t.Logf("SKIPPED: the upgrade from a release, because this clone lacks its commit %s: %s\n"+
			"This version is upgraded to itself instead.", upgradedFrom, missing)
		repository, digest := s.serve(t, s.thisVersion(t))
		s.install(t, "image.repository="+repository, "image.digest="+digest)
		return repository + "@" + digest
	}
	chart, index := readRelease(t, archive)
	repository, digest := s.serve(t, index)
	// The chart may name the supervisor of an earlier release, which this registry lacks.
	s.upgradeTo(t, chart, "--set", "mps.supervisor.image.digest="+digest)
	return repository + "@" + digest
}

// thisVersion returns the driver's image of this version as an index like that of a release. It has another image ID
// than the image that the nodes have: if the kubelet has pulled an image itself, it does not trust its other names any
// more, although they were imported, and pulls them, too.
func (s *suite) thisVersion(t *testing.T) v1.ImageIndex {
	t.Helper()
	image, err := mutate.CreatedAt(s.driverImage(t), v1.Time{Time: time.Now()})
	must(t, err)
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
}

// buildRelease returns the archive of the release for this processor, which it builds from a clean clone unless the
// cache has it. missing is why git does not find the commit.
func buildRelease(t *testing.T) (archive, missing string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	archive = filepath.Join(cache, "gpu-dra-driver", "release-"+upgradedFrom[:10]+"-"+runtime.GOARCH+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, ""
	}
	if output, err := exec.CommandContext(t.Context(), "git", "cat-file", "-e",
		upgradedFrom+"^{commit}").CombinedOutput(); err != nil {
		return "", strings.TrimSpace(string(output))
	}
	start, clone := time.Now(), filepath.Join(t.TempDir(), "clone")
	run(t, "git", "clone", "--quiet", "--no-local", "../../..", clone)
	run(t, "git", "-C", clone, "checkout", "--quiet", upgradedFrom)
	run(t, "go", "run", "-C", clone, "./deployments/container", "-release", releaseRegistry, "-only", runtime.GOARCH)
	built, err := filepath.Glob(clone + "/_output/dist/images-*.tar")
	must(t, err)
	if len(built) != 1 {
		t.Fatalf("got archives %q of the release %s, want one", built, upgradedFrom)
	}
	content, err := os.ReadFile(built[0])
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(archive), 0o755))
	must(t, renameio.WriteFile(archive, content, 0o644))
	t.Logf("built the release %s in %.0f s: %s", upgradedFrom, time.Since(start).Seconds(), archive)
	return archive, ""
}

// readRelease returns the file of the packaged chart, and the driver's image.
func readRelease(t *testing.T, archive string) (chart string, image v1.ImageIndex) {
	t.Helper()
	dir := t.TempDir()
	run(t, "tar", "-C", dir, "-xf", archive)
	root, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	manifest, err := root.IndexManifest()
	must(t, err)
	for _, m := range manifest.Manifests {
		name := strings.TrimPrefix(m.Annotations["io.containerd.image.name"], releaseRegistry+"/")
		switch repository, _, _ := strings.Cut(name, ":"); repository {
		case "gpu-dra-driver":
			image, err = root.ImageIndex(m.Digest)
			must(t, err)
		case "charts/gpu-dra-driver":
			artifact, err := root.Image(m.Digest)
			must(t, err)
			content, err := artifact.Manifest()
			must(t, err)
			digest := content.Layers[0].Digest
			chart = filepath.Join(dir, "blobs", digest.Algorithm, digest.Hex)
		}
	}
	if chart == "" || image == nil {
		t.Fatalf("%s lacks the chart or the driver's image", archive)
	}
	return chart, image
}
