//go:build e2e

// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// olderCommit is the environment variable that overrides the version of the downgrade.
const olderCommit = "SURVIVE_OLDER_COMMIT"

const (
	// olderNodes are the nodes whose profiles older simulations can read: they do not know the fields for partitions.
	olderNodes = `kubeletPlugin.nodeSelector.gpu\.nvidia\.com/sim-profile=l40s-x4`
	// firstValues are the values of the first chart.
	firstValues = "../../../deployments/helm/testdata/values/9b10e18.yaml"
)

// testDowngrade installs the oldest possible version of the plugin, with the values of the first chart, while claims of
// this one are prepared and pods come and go. It can release them and prepare others, but does not touch records of
// newer formats. Then this version replaces the old one in the same way, and releases those. The older version has the
// monitor device in the pool of the node.
func (s *suite) testDowngrade(t *testing.T) {
	image := s.olderImage(t)
	s.control(t, "load", image)
	ns := s.adminNamespace(t, "downgrade")
	n := s.node("node-1")
	ours, kept := n.pod(t, ns, "ours", ""), n.pod(t, ns, "kept", "")
	s.running(t, ours)
	container := s.running(t, kept).Status.ContainerStatuses[0].ContainerID
	ownPool, monitor := n.name+"/monitor", n.monitor(t, ns, "monitor")
	endsUnderOlder := n.monitor(t, ns, "monitor-that-ends")
	s.running(t, endsUnderOlder)
	s.running(t, monitor)
	goesOn := s.sameContainer(t, monitor)
	if got := s.poolOf(t, monitor); got != ownPool {
		t.Errorf("the monitor: got pool %s, want %s", got, ownPool)
	}

	s.underPods(t, n, ns, "down", func() {
		s.upgrade(t, "--values", firstValues, "--set", "image.tag=older", "--set", olderNodes)
	})
	// This version would release the claims, which do not exist. So the older one gets their records at its next start.
	newer := s.node("node-2")
	records := newer.keptRecords(t)
	older := client.ObjectKeyFromObject(newer.plugin(t))
	s.remove(t, older)
	s.gone(t, older)
	refused := newer.pod(t, ns, "refused", "")
	theirs := n.pod(t, ns, "theirs", "")
	s.running(t, theirs)
	n.waitMonitor(t, "monitor", "")
	olderMonitor := n.monitor(t, ns, "monitor-of-older")
	s.running(t, olderMonitor)
	olderGoesOn := s.sameContainer(t, olderMonitor)
	if got := s.poolOf(t, olderMonitor); got != n.name {
		t.Errorf("the monitor of the older version: got pool %s, want %s", got, n.name)
	}
	s.remove(t, ours, endsUnderOlder)
	s.gone(t, ours, endsUnderOlder)
	s.recorded(t, n, kept, theirs, monitor, olderMonitor)
	goesOn()
	// It does not touch a record that it cannot read, and reports it to pods whose GPU may be affected.
	eventually(t, soon, "an event of the pod that names a record", func() string {
		events, err := s.Events(t.Context(), refused)
		must(t, err)
		got := strings.Join(events, "\n")
		for file := range records {
			if strings.Contains(got, filepath.Base(file)) {
				return ""
			}
		}
		return is(got, "the name of a file of "+fmt.Sprint(slices.Sorted(maps.Keys(records))))
	})
	for file, text := range records {
		left, err := os.ReadFile(file)
		must(t, err)
		if got := string(left); got != text {
			t.Errorf("%s: %s", file, is(got, text))
		}
	}

	s.underPods(t, n, ns, "up", func() { s.install(t) })
	s.running(t, refused) // the claims of those records do not exist, so they have been released
	s.remove(t, refused)
	s.gone(t, refused)
	newer.clean(t)
	newer.endProhibition(t)
	n.waitMonitor(t, "", "monitor")
	nextMonitor := n.monitor(t, ns, "next-monitor")
	s.running(t, nextMonitor)
	olderGoesOn()
	if got := s.poolOf(t, nextMonitor); got != ownPool {
		t.Errorf("the monitor after the upgrade: got pool %s, want %s", got, ownPool)
	}
	goesOn()
	next := n.pod(t, ns, "next", "")
	s.running(t, next)
	s.remove(t, theirs, monitor)
	s.gone(t, theirs, monitor)
	s.recorded(t, n, kept, next, olderMonitor, nextMonitor)
	s.remove(t, olderMonitor)
	s.gone(t, olderMonitor)
	if got := s.running(t, kept).Status.ContainerStatuses[0]; got.ContainerID != container || got.RestartCount != 0 {
		t.Errorf("the pod that goes on: got container %s after %d restarts, want %s", got.ContainerID, got.RestartCount,
			container)
	}
	s.remove(t, kept, next, nextMonitor)
	s.gone(t, kept, next, nextMonitor)
	n.clean(t)
}

// sameContainer returns a function that checks that the pod still runs in the same container.
func (s *suite) sameContainer(t *testing.T, pod client.ObjectKey) func() {
	t.Helper()
	before := s.running(t, pod).Status.ContainerStatuses[0].ContainerID
	return func() {
		t.Helper()
		if got := s.running(t, pod).Status.ContainerStatuses[0].ContainerID; got != before {
			t.Errorf("%s, which goes on: got container %s, want %s", pod.Name, got, before)
		}
	}
}

// underPods makes a change of the driver while short-lived pods come and go on the node.
func (s *suite) underPods(t *testing.T, n node, namespace, name string, change func()) {
	t.Helper()
	ctx, finish := context.WithCancel(t.Context())
	defer finish()
	pods := shortPods{name: name}
	var work sync.WaitGroup
	work.Go(func() { pods.run(ctx, t, n, namespace) })
	change()
	finish()
	work.Wait()
	t.Logf("%s: %d pods came and went", name, pods.count)
	if pods.count == 0 {
		t.Errorf("%s: no pod came and went on %s", name, n.name)
	}
	if pods.err != nil {
		t.Errorf("%s: pod %d on %s: %v", name, pods.count, n.name, pods.err)
	}
}

// keptRecords writes a record of every format that the older version cannot read, with GPUs of the node, and returns
// their texts by file. The older plugin's simulation cannot read a machine that has what the records tell of.
func (n node) keptRecords(t *testing.T) map[string]string {
	t.Helper()
	names := []string{`"boot"`, `"` + n.boot(t) + `"`, `"node-1"`, `"` + n.name + `"`}
	for i, gpu := range strings.Split(n.gpus(t), "\n") {
		var bus uint8
		if _, err := fmt.Sscanf(gpu, "gpu-%02x-", &bus); err != nil {
			t.Fatalf("%s: %v", gpu, err)
		}
		names = append(names, fmt.Sprintf("gpu-%02d-00-0", i+1), gpu, fmt.Sprintf(`"GPU-%d"`, i+1),
			`"`+n.uuid(t, gpu)+`"`, fmt.Sprintf(`"Bus": %d,`, i+1), fmt.Sprintf(`"Bus": %d,`, bus))
	}
	files, err := filepath.Glob("../../../pkg/checkpoint/testdata/v[2-9]/*.json")
	must(t, err)
	records := map[string]string{}
	for _, kept := range files {
		data, err := os.ReadFile(kept)
		must(t, err)
		file := n.disk(pluginDir + "/claims/" + filepath.Base(kept))
		records[file] = strings.NewReplacer(names...).Replace(string(data))
		// Atomic, because a plugin is running.
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must(t, os.WriteFile(file+".new", []byte(records[file]), 0o600))
		must(t, os.Rename(file+".new", file))
	}
	if len(records) == 0 {
		t.Fatal("no record is kept")
	}
	return records
}

// endProhibition lets programs use the first GPU of the node. Of the kept records that have it, one has found the mode
// PROHIBITED: if its claim ends last, that mode is restored, and stays until somebody changes it.
func (n node) endProhibition(t *testing.T) {
	t.Helper()
	gpu := strings.Fields(n.gpus(t))[0] // its taints follow
	n.simctl(t, "set", gpu, "compute-mode=DEFAULT")
	eventually(t, soon, "the taint to go", func() string {
		first, _, _ := strings.Cut(n.gpus(t), "\n")
		return is(first, gpu)
	})
}

// recorded waits until exactly these pods' claims have records.
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

// olderImage writes an archive with the driver's image, tag older, with an older plugin. Its simulation was not a
// program of its own but a flag, which an environment variable of the image sets. Compiling is fast after the first
// time.
func (s *suite) olderImage(t *testing.T) string {
	t.Helper()
	plugin := s.olderPlugin(t)
	image := s.driverImage(t)
	for _, path := range []string{"usr/bin/dra-kubelet-plugin", "usr/bin/dra-kubelet-plugin-sim"} {
		layer, err := fileLayer(path, plugin)
		must(t, err)
		image, err = mutate.AppendLayers(image, layer)
		must(t, err)
	}
	config, err := image.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.Config.Env = append(config.Config.Env, "SIMULATE=true")
	image, err = mutate.ConfigFile(image, config)
	must(t, err)
	const containerdName = "io.containerd.image.name"
	oci, err := layout.Write(filepath.Join(t.TempDir(), "oci"), empty.Index)
	must(t, err)
	must(t, oci.AppendImage(image, layout.WithAnnotations(
		map[string]string{containerdName: "localhost/gpu-dra-driver:older"})))
	archive := filepath.Join(t.TempDir(), "older.tar")
	run(t, "tar", "-C", string(oci), "-cf", archive, ".")
	return archive
}

// olderPlugin compiles the plugin of the oldest suitable commit: it compiles, its simulation can read the existing
// machine, and it has device metadata, whose files would otherwise remain.
func (s *suite) olderPlugin(t *testing.T) string {
	t.Helper()
	commits := []string{os.Getenv(olderCommit)}
	if commits[0] == "" {
		first := strings.Fields(run(t, "git", "log", "--diff-filter=A", "--format=%H", "--",
			":/internal/plugin/sweep.go"))
		if len(first) == 0 { // a shallow clone
			t.Skip("not tested: the history of this clone has no older version that suits")
		}
		all := strings.Fields(run(t, "git", "log", "--reverse", "--format=%H"))
		commits = all[slices.Index(all, first[len(first)-1]):]
	}
	plugin := filepath.Join(t.TempDir(), "dra-kubelet-plugin")
	var output []byte
	for _, commit := range commits {
		tree := t.TempDir()
		run(t, "git", "-C", "../../..", "archive", "--output", tree+".tar", commit)
		run(t, "tar", "-C", tree, "-xf", tree+".tar")
		// Without paths, so that the next run finds the results in Go's cache.
		build := exec.Command("go", "build", "-C", tree, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o",
			plugin, "./cmd/dra-kubelet-plugin")
		build.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
		var err error
		if output, err = build.CombinedOutput(); err != nil {
			continue
		}
		for _, name := range []string{"node-1", "node-2"} {
			if err == nil {
				output, err = exec.Command(plugin, "simctl", "--dir", s.node(name).disk(simDir),
					"print").CombinedOutput()
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

// driverImage returns the driver's image from the archive that the cluster was loaded with.
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

// fileLayer returns a layer with one program.
func fileLayer(name, file string) (v1.Layer, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755,
		Size: int64(len(data))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser,
		error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	})
}
