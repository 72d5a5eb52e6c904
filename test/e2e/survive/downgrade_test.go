//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// olderCommit overrides the version to go back to.
const olderCommit = "SURVIVE_OLDER_COMMIT"

// testDowngrade goes back to the oldest version of the plugin that can be installed, with claims prepared by this one: it can
// release them and prepare others. Then this version takes over from the old one in the same way.
func (s *suite) testDowngrade(t *testing.T) {
	image := s.olderImage(t)
	s.control(t, "load", image)
	ns := s.namespace(t, "downgrade")
	n := s.node("node-1")
	ours, kept := n.pod(t, ns, "ours", ""), n.pod(t, ns, "kept", "")
	s.running(t, ours)
	container := s.running(t, kept).Status.ContainerStatuses[0].ContainerID

	s.install(t, "image.tag=older")
	theirs := n.pod(t, ns, "theirs", "")
	s.running(t, theirs)
	s.remove(t, ours)
	s.gone(t, ours)
	s.recorded(t, n, kept, theirs)

	s.install(t)
	next := n.pod(t, ns, "next", "")
	s.running(t, next)
	s.remove(t, theirs)
	s.gone(t, theirs)
	s.recorded(t, n, kept, next)
	if got := s.running(t, kept).Status.ContainerStatuses[0]; got.ContainerID != container || got.RestartCount != 0 {
		t.Errorf("the pod that goes on: got container %s after %d restarts, want %s", got.ContainerID, got.RestartCount, container)
	}
	s.remove(t, kept, next)
	s.gone(t, kept, next)
	n.clean(t)
}

// recorded waits until there are records of these pods' claims and no others.
func (s *suite) recorded(t *testing.T, n node, pods ...client.ObjectKey) {
	t.Helper()
	want := map[string]bool{}
	for _, pod := range pods {
		want[s.claim(t, pod).Name] = true
	}
	eventually(t, soon, "the records to be those of the pods", func() string {
		records := n.records(t)
		for _, rec := range records {
			if !want[rec.Claim.Name] {
				return "there is one of " + rec.Claim.Name
			}
		}
		return is(fmt.Sprint(len(records)), fmt.Sprint(len(want)))
	})
}

// olderImage writes an archive with the driver's image, tag older, in which the plugin is an older one. Compiling that is quick
// after the first time.
func (s *suite) olderImage(t *testing.T) string {
	t.Helper()
	plugin := s.olderPlugin(t)
	layer, err := fileLayer("usr/bin/dra-kubelet-plugin", plugin)
	must(t, err)
	image, err := mutate.AppendLayers(s.driverImage(t), layer)
	must(t, err)
	const containerdName = "io.containerd.image.name"
	oci, err := layout.Write(filepath.Join(t.TempDir(), "oci"), empty.Index)
	must(t, err)
	must(t, oci.AppendImage(image, layout.WithAnnotations(map[string]string{containerdName: "localhost/gpu-dra-driver:older"})))
	archive := filepath.Join(t.TempDir(), "older.tar")
	run(t, "tar", "-C", string(oci), "-cf", archive, ".")
	return archive
}

// olderPlugin compiles the plugin of the first commit at which that succeeds, and whose simulation understands the machine that is
// there: the hardware is not what goes back.
func (s *suite) olderPlugin(t *testing.T) string {
	t.Helper()
	commits := []string{os.Getenv(olderCommit)}
	if commits[0] == "" {
		first := strings.Fields(run(t, "git", "log", "--diff-filter=A", "--format=%H", "--", ":/cmd/dra-kubelet-plugin/main.go"))
		all := strings.Fields(run(t, "git", "log", "--reverse", "--format=%H"))
		commits = all[slices.Index(all, first[len(first)-1]):]
	}
	plugin := filepath.Join(t.TempDir(), "dra-kubelet-plugin")
	var output []byte
	for _, commit := range commits {
		tree := t.TempDir()
		run(t, "git", "-C", "../../..", "archive", "--output", tree+".tar", commit)
		run(t, "tar", "-C", tree, "-xf", tree+".tar")
		// Without the path, so that the next run finds the results in Go's cache.
		build := exec.Command("go", "build", "-C", tree, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", plugin, "./cmd/dra-kubelet-plugin")
		build.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
		var err error
		if output, err = build.CombinedOutput(); err != nil {
			continue
		}
		for _, name := range []string{"node-1", "node-2", "node-3"} {
			if err == nil {
				output, err = exec.Command(plugin, "simctl", "--dir", s.node(name).disk(simDir), "print").CombinedOutput()
			}
		}
		if err == nil {
			t.Logf("the older version is %s", commit)
			return plugin
		}
	}
	t.Fatalf("the plugin of none of %d commits can be installed; the last one:\n%s", len(commits), output)
	return ""
}

// driverImage is the image of the driver in the archive that the cluster was loaded with.
func (s *suite) driverImage(t *testing.T) v1.Image {
	t.Helper()
	dir := t.TempDir()
	run(t, "tar", "-C", dir, "-xf", *images)
	index, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	for _, m := range manifest.Manifests {
		if strings.HasPrefix(m.Annotations["io.containerd.image.name"], "localhost/gpu-dra-driver:") {
			image, err := index.Image(m.Digest)
			must(t, err)
			return image
		}
	}
	t.Fatalf("%s does not have the driver's image", *images)
	return nil
}

// fileLayer is a layer with one program.
func fileLayer(name, file string) (v1.Layer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
}
