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

// olderNodes are those whose machines older simulations understand: what can be partitioned is described in words that they do not know.
const olderNodes = `kubeletPlugin.nodeSelector.gpu\.nvidia\.com/sim-profile=l40s-x4`

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

	s.install(t, "image.tag=older", olderNodes)
	// This version would release the claim, which nobody has, so the older one comes upon its record when it starts once more.
	newer := s.node("node-2")
	record, text := newer.partitionRecord(t)
	older := client.ObjectKeyFromObject(newer.plugin(t))
	s.remove(t, older)
	s.gone(t, older)
	refused := newer.pod(t, ns, "refused", "")
	theirs := n.pod(t, ns, "theirs", "")
	s.running(t, theirs)
	s.remove(t, ours)
	s.gone(t, ours)
	s.recorded(t, n, kept, theirs)
	// What it cannot read it leaves alone, and says so to those whose GPU that may be about.
	eventually(t, soon, "an event of the pod that names the record", func() string {
		events, err := s.Events(t.Context(), refused)
		must(t, err)
		if got := strings.Join(events, "\n"); !strings.Contains(got, filepath.Base(record)) {
			return is(got, filepath.Base(record))
		}
		return ""
	})
	left, err := os.ReadFile(record)
	must(t, err)
	if got := string(left); got != text {
		t.Errorf("the record of a partition: %s", is(got, text))
	}

	s.install(t)
	s.running(t, refused) // nobody has the claim of that record, so it has been released
	s.remove(t, refused)
	s.gone(t, refused)
	newer.clean(t)
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

// partitionRecord puts the record of a claim for a partition on the node, and returns its file and its text. A partition itself is not
// made: the older plugin's simulation does not understand a machine that has one.
func (n node) partitionRecord(t *testing.T) (file, text string) {
	t.Helper()
	gpu, _, _ := strings.Cut(n.gpus(t), "\n")
	const uid = "33333333-2222-3333-4444-555555555555"
	file = n.disk(pluginDir + "/claims/" + uid + ".json")
	text = fmt.Sprintf(`{"version": 3, "claim": {"namespace": "newer", "name": "partition", "uid": %q}, "phase": "Prepared", "bootID": %q,
		"plan": {"assignments": [{"request": "gpu", "pool": %q, "device": "%s-mig-1g10gb-0", "gpu": %q,
			"partition": {"parent": %[5]q, "profile": "1g.10gb", "start": 0, "size": 1, "uuid": "MIG-1"}}]}}`,
		uid, n.boot(t), n.name, gpu, n.uuid(t, gpu))
	// In one piece, for the plugin that runs.
	must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file+".new", []byte(text), 0o600))
	must(t, os.Rename(file+".new", file))
	return file, text
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
// there: the hardware is not what goes back. Nor does it go back to before device metadata, the files of which would stay for ever.
func (s *suite) olderPlugin(t *testing.T) string {
	t.Helper()
	commits := []string{os.Getenv(olderCommit)}
	if commits[0] == "" {
		first := strings.Fields(run(t, "git", "log", "--diff-filter=A", "--format=%H", "--", ":/internal/plugin/sweep.go"))
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
		for _, name := range []string{"node-1", "node-2"} {
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
