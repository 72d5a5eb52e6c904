// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
	"github.com/gpudra/gpu-dra-driver/test/inotify"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

func TestMetadataFiles(t *testing.T) {
	dir := t.TempDir()
	m := Metadata{Dir: dir}
	file := filepath.Join(dir, "metadata.json")
	for _, content := range []string{"one", "two"} {
		if err := m.write(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("got mode %v, %v, want 0644", info.Mode(), err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.write(filepath.Join(dir, "taken"), nil, 0o644); err == nil {
		t.Error("replaced a directory")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v, want no temporary files", entries, err)
	}
}

// claimC is the claim of the test, and metadataOf what kubeletplugin writes of a claim.
var claimC = sharing.Claim{Namespace: "ns", Name: "c", UID: "1"}

func metadataOf(claim types.UID, device string) []byte {
	return fmt.Appendf(nil, "{\"metadata\": {\"uid\": %q},\n \"device\": %q}\n{}\n", claim, device)
}

// TestUnmounted: a claim has no container if nothing holds the only files that were ever written of its metadata. A
// descriptor holds the directory entry of a file, as a mount does.
func TestUnmounted(t *testing.T) {
	inotify.Need(t)
	for _, row := range []struct {
		name string
		does string // each with a request of the claim
		want bool
	}{
		{"never written", "", false},
		{"one request", "write a", true},
		{"two requests", "write a, write b", true},
		{"the same was written again", "write a, write a", true},
		{"mounted", "write a, hold a", false},
		{"one of two is mounted", "write a, write b, hold b", false},
		{"something else was written since", "write a, hold a, change a", false},
		{"written by another process before", "write a, hold a, restart a, change a", false},
		{"the same was written by another process before", "write a, restart a, write a", false},
		{"another process has written for another request", "write a, hold a, restart a, write b", false},
		{"one of two is lost", "write a, hold a, write b, lose a", false},
		{"lost, and written again by another process", "write a, hold a, restart a, lose a, write a", false},
		{"removed, and written again", "write a, hold a, remove a, write a", false},
		{"removed, and written again, of two", "write a, write b, hold a, remove a, write b, write a", false},
		{"changed, removed, and written again", "write a, hold a, change a, remove a, write a", false},
		{"replaced by another process", "write a, hold a, replace a", false},
		{"another claim of that name was there before", "other a, hold a, write a", false},
		{"another name of the file", "write a, link a", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := tmpfs.Dir(t)
			m := &Metadata{Dir: dir}
			defer func() { m.Close() }()
			for step := range strings.SplitSeq(row.does, ", ") {
				verb, request, _ := strings.Cut(step, " ")
				file := filepath.Join(dir, "ns_c", request, "metadata.json")
				must(t, m.mkdirAll(filepath.Dir(file), 0o755))
				switch verb {
				case "write":
					must(t, m.write(file, metadataOf("1", "gpu-0"), 0o640))
				case "change":
					must(t, m.write(file, metadataOf("1", "gpu-1"), 0o640))
				case "other":
					must(t, m.write(file, metadataOf("2", "gpu-0"), 0o640))
				case "hold":
					hold(t, file)
				case "restart":
					m.Close()
					m = &Metadata{Dir: dir}
				case "lose":
					must(t, os.Remove(file))
				case "remove":
					must(t, os.RemoveAll(filepath.Join(dir, "ns_c")))
				case "replace":
					must(t, os.WriteFile(file+".new", metadataOf("1", "gpu-0"), 0o600))
					must(t, os.Rename(file+".new", file))
				case "link":
					must(t, os.Link(file, filepath.Join(dir, "other")))
				}
			}
			if got := m.unmounted(claimC); got != row.want {
				t.Errorf("got %t, want %t", got, row.want)
			}
		})
	}
}

// TestUnmountedAgain: after an answer only a look at all processes tells more, until the claim is prepared again and
// no directory was left. Files and directories are removed if none is mounted; otherwise restore writes files again.
func TestUnmountedAgain(t *testing.T) {
	inotify.Need(t)
	for _, held := range []bool{false, true} {
		dir := tmpfs.Dir(t)
		m := &Metadata{Dir: dir}
		defer m.Close()
		files := []string{filepath.Join(dir, "ns_c/a/metadata.json"), filepath.Join(dir, "ns_c/b/metadata.json")}
		write := func(device string) {
			for _, file := range files {
				must(t, m.mkdirAll(filepath.Dir(file), 0o755))
				must(t, m.write(file, metadataOf("1", device), 0o640))
			}
		}
		write("gpu-0")
		release := func() {}
		if held {
			release = hold(t, files[1])
		}
		var got []bool
		ask := func() {
			if got = append(got, m.unmounted(claimC)); !got[len(got)-1] {
				must(t, m.restore("1"))
			}
		}
		ask()
		if kept := len(m.claims) > 0; kept != held {
			t.Errorf("held %t: remembers the claim: %t", held, kept)
		}
		must(t, m.removeAll(filepath.Join(dir, "none"))) // waits until directories are removed
		if _, err := os.Stat(filepath.Join(dir, "ns_c")); errors.Is(err, os.ErrNotExist) == held {
			t.Errorf("held %t: the directory of the claim has error %v", held, err)
		}
		for _, file := range files {
			if !held {
				continue
			}
			if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 1 {
				t.Errorf("got files %v and error %v, want one", entries, err)
			}
			data, err := os.ReadFile(file)
			info, failed := os.Stat(file)
			if errors.Join(err, failed) != nil || string(data) != string(metadataOf("1", "gpu-0")) ||
				info.Mode() != 0o640 {
				t.Errorf("got %q, %v, errors %v and %v, want the same file", data, info.Mode(), err, failed)
			}
		}
		release()
		ask()
		write("gpu-1")
		ask()
		m.forget("1")
		must(t, os.RemoveAll(filepath.Join(dir, "ns_c")))
		write("gpu-0")
		ask()
		if want := []bool{!held, false, !held, true}; !slices.Equal(got, want) {
			t.Errorf("held %t: got %v, want %v", held, got, want)
		}
	}
}

// TestGlob: the temporary files that a killed plugin has left of a claim's CDI specs are found, too.
func TestGlob(t *testing.T) {
	m, dir := &Metadata{}, t.TempDir()
	spec := filepath.Join(dir, "gpu.nvidia.com_metadata_1_gpu.json")
	must(t, m.write(spec, nil, 0o644))
	want := []string{spec}
	for _, name := range []string{spec, filepath.Join(dir, "gpu.nvidia.com_metadata_2_gpu.json")} {
		temporary, _, err := newFile(name, nil, 0o644)
		must(t, err)
		if name == spec {
			want = append(want, temporary)
		}
	}
	must(t, m.write(filepath.Join(dir, "of.gpu.nvidia.com_metadata_1_gpu.json"), nil, 0o644)) // of another driver
	got, err := m.glob(filepath.Join(dir, "gpu.nvidia.com_metadata_1_*.json"))
	if slices.Sort(want); err != nil || !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("got %v, error %v, want %v", got, err, want)
	}
	if got, err := m.glob(filepath.Join(dir, "none", "*")); len(got) > 0 || err != nil {
		t.Errorf("in a directory that does not exist: got %v, error %v", got, err)
	}
}

// TestUnmountedBesideALaterClaim: the file of a later claim with the same name stays.
func TestUnmountedBesideALaterClaim(t *testing.T) {
	m := &Metadata{Dir: tmpfs.Dir(t)}
	defer m.Close()
	file := filepath.Join(m.Dir, "ns_c/a/metadata.json")
	must(t, m.mkdirAll(filepath.Dir(file), 0o755))
	must(t, m.write(file, metadataOf("2", "gpu-0"), 0o644))
	if m.unmounted(claimC) {
		t.Error("nothing is known of the earlier claim, and it counts as unmounted")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestUnmountedByContainers: a mount in another mount namespace, as that of a container.
func TestUnmountedByContainers(t *testing.T) {
	inotify.Need(t)
	dir := tmpfs.Dir(t)
	m := &Metadata{Dir: dir}
	defer m.Close()
	file := filepath.Join(dir, "ns_c/a/metadata.json")
	must(t, m.mkdirAll(filepath.Dir(file), 0o755))
	must(t, m.write(file, metadataOf("1", "gpu-0"), 0o640))
	newContainer(t, "/nowhere", file)
	if m.unmounted(claimC) {
		t.Error("a mounted file counts as unmounted")
	}
}

// TestNoContainerStarts: a container that starts while a claim is released is found, or does not start, because it has
// no file to mount. If the claim is not released, containers start as before.
func TestNoContainerStarts(t *testing.T) {
	inotify.Need(t)
	for _, row := range []struct{ restarted, runs bool }{{}, {runs: true}, {restarted: true}, {true, true}} {
		t.Run(fmt.Sprintf("restarted %t, a container runs %t", row.restarted, row.runs), func(t *testing.T) {
			dir, proc := tmpfs.Dir(t), t.TempDir()
			r := Running{Proc: proc, Metadata: &Metadata{Dir: dir}}
			file := filepath.Join(dir, "ns_c/a/metadata.json")
			must(t, r.Metadata.mkdirAll(filepath.Dir(file), 0o755))
			must(t, r.Metadata.write(file, metadataOf("1", "gpu-0"), 0o644))
			end := newContainer(t, proc, file)
			if !row.runs {
				end()
			}
			if row.restarted {
				r.Metadata.Close()
				r.Metadata = &Metadata{Dir: dir}
			}
			defer r.Metadata.Close()

			// The look begins with this file, when the processes have been listed. Without a look, it is read below.
			mounts := filepath.Join(proc, "self/mountinfo")
			must(t, os.Mkdir(filepath.Dir(mounts), 0o755))
			must(t, unix.Mkfifo(mounts, 0o600))
			started := make(chan bool)
			go func() {
				f, err := os.OpenFile(mounts, os.O_WRONLY, 0)
				began := start(t, file)
				own, failed := os.ReadFile("/proc/self/mountinfo")
				if err = errors.Join(err, failed); err == nil {
					_, err = f.Write(own)
				}
				if err = errors.Join(err, f.Close()); err != nil {
					t.Error(err)
				}
				started <- began
			}()
			got, err := r.With(claimC)
			if err != nil || len(got) > 0 != row.runs {
				t.Errorf("got containers %v, error %v", got, err)
			}
			reader, err := os.OpenFile(mounts, os.O_RDWR, 0)
			must(t, err)
			defer reader.Close()
			if <-started {
				t.Error("a container has started and was not found")
			}
			if got := start(t, file); got != row.runs {
				t.Errorf("a container starts afterwards: got %t, want %t", got, row.runs)
			}
		})
	}
}

// TestFullDisk: metadata that cannot be written again is not lost, and nobody hears that the claim has no container.
func TestFullDisk(t *testing.T) {
	inotify.Need(t)
	dir, proc := t.TempDir(), procOf(t, "/", "/")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a small tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	own, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(proc, "self/mountinfo"), own, 0o600))
	r := Running{Proc: proc, Metadata: &Metadata{Dir: filepath.Join(dir, "metadata")}}
	defer r.Metadata.Close()
	file, fill, want := filepath.Join(r.Metadata.Dir, "ns_c/a/metadata.json"), filepath.Join(dir, "fill"),
		metadataOf("1", "gpu-0")
	must(t, r.Metadata.mkdirAll(filepath.Dir(file), 0o755))
	must(t, r.Metadata.write(file, want, 0o644))
	end := newContainer(t, proc, file)
	for _, again := range []string{"release", "prepare"} {
		hold(t, file) // without a holder, its space would be free when it is removed
		if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		for range 2 { // the content is known to the second call as to the first
			if got, err := r.With(claimC); len(got) != 1 || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("got containers %v, error %v, want one and %v", got, err, unix.ENOSPC)
			}
		}
		if err := r.Metadata.write(file, want, 0o644); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("prepared on a full disk: got error %v, want %v", err, unix.ENOSPC)
		}
		must(t, os.Remove(fill))
		if again == "prepare" {
			must(t, r.Metadata.write(file, want, 0o644))
		}
		if got, err := r.With(claimC); len(got) != 1 || err != nil {
			t.Errorf("got containers %v, error %v, want one", got, err)
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s again: got %q, error %v, want %q", again, got, err, want)
		}
		if files, err := os.ReadDir(filepath.Dir(file)); err != nil || len(files) != 1 {
			t.Errorf("%s again: got files %v, error %v, want one", again, files, err)
		}
	}
	end()
	if got, err := r.With(claimC); len(got) > 0 || err != nil {
		t.Errorf("got containers %v, error %v when it has ended", got, err)
	}
}

// start reports whether a container starts that mounts the file, in a mount namespace of its own.
func start(t *testing.T, file string) bool {
	target := filepath.Join(t.TempDir(), "target")
	return os.WriteFile(target, nil, 0o600) == nil && exec.Command("unshare", "--user", "--map-root-user", "--mount",
		"mount", "--bind", file, target).Run() == nil
}

// newContainer starts a container that mounts the file, in a mount namespace of its own, and shows it in a proc file
// system until end, or the end of the test.
func newContainer(t *testing.T, proc, file string) (end func()) {
	t.Helper()
	target := filepath.Join(t.TempDir(), "target")
	must(t, os.WriteFile(target, nil, 0o600))
	container := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		"mount --bind "+file+" "+target+" && echo mounted && read line")
	input, err := container.StdinPipe()
	must(t, err)
	output, err := container.StdoutPipe()
	must(t, err)
	must(t, container.Start())
	process := filepath.Join(proc, fmt.Sprint(container.Process.Pid))
	end = sync.OnceFunc(func() {
		_ = input.Close()
		_ = container.Wait()
		_ = os.RemoveAll(process)
	})
	t.Cleanup(end)
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Skipf("no mount namespaces here: got %q, error %v", line, err)
	}
	if proc != "/nowhere" {
		must(t, os.Mkdir(process, 0o755))
		group := []byte("0::/kubepods.slice/kubepods-pod0f.slice\n")
		must(t, os.WriteFile(filepath.Join(process, "cgroup"), group, 0o600))
		for _, name := range []string{"mountinfo", "ns"} {
			must(t, os.Symlink(fmt.Sprintf("/proc/%d/%s", container.Process.Pid, name), filepath.Join(process, name)))
		}
	}
	return end
}

// TestClosedMetadata: nothing is left open, and a closed one opens nothing and says that files may be mounted.
func TestClosedMetadata(t *testing.T) {
	inotify.Need(t)
	dir := tmpfs.Dir(t)
	m := &Metadata{Dir: dir}
	file := filepath.Join(dir, "ns_c/a/metadata.json")
	before := inotify.Count(t)
	for range 2 {
		must(t, m.mkdirAll(filepath.Dir(file), 0o755))
		must(t, m.write(file, metadataOf("1", "gpu-0"), 0o640))
		if got, want := m.unmounted(claimC), !m.closed; got != want {
			t.Errorf("closed %t: got unmounted %t, want %t", m.closed, got, want)
		} else if !got {
			must(t, m.restore("1"))
		}
		if _, err := os.Stat(file); (err == nil) != m.closed {
			t.Errorf("closed %t: the file has error %v", m.closed, err)
		}
		m.forget("1")
		must(t, os.RemoveAll(file))
		m.Close()
		m.Close()
		if after := inotify.Count(t); after != before {
			t.Errorf("%d instances are open, %d were before", after, before)
		}
	}
}

// TestRunningByMetadata: processes are looked at only where the files do not tell.
func TestRunningByMetadata(t *testing.T) {
	inotify.Need(t)
	dir := tmpfs.Dir(t)
	r := Running{Proc: "/nowhere", Metadata: &Metadata{Dir: dir}}
	defer r.Metadata.Close()
	file := filepath.Join(dir, "ns_c/a/metadata.json")
	must(t, r.Metadata.mkdirAll(filepath.Dir(file), 0o755))
	must(t, r.Metadata.write(file, metadataOf("1", "gpu-0"), 0o640))
	if got, err := r.With(claimC); len(got) > 0 || err != nil {
		t.Errorf("got %v and error %v, want no container", got, err)
	}
	if _, err := r.With(claimC); err == nil {
		t.Error("no error where nothing tells")
	}
}

// hold holds the directory entry of a file until release, or the end of the test.
func hold(t *testing.T, file string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(file, unix.O_PATH, 0)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return func() { must(t, f.Close()) }
}
