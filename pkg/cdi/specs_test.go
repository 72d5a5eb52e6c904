// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

var (
	common = gpu.Access{
		Nodes: []gpu.DeviceNode{{Path: "/dev/nvidiactl", HostPath: "/root/dev/nvidiactl", Type: "c", Major: 60,
			Minor: 255, Permissions: "rw"}},
		Mounts: []gpu.Mount{{HostPath: "/root/usr/bin/nvidia-smi", ContainerPath: "/usr/bin/nvidia-smi",
			Options: []string{"ro", "rbind"}}},
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Hooks: []gpu.Hook{{Name: "createContainer", Path: "/hook", Args: []string{"hook", "update-ldcache"},
			Env: []string{"A=1"}}},
		Groups: []uint32{44},
	}
	first = Device{Name: "u1-gpu-01-00-0", Access: gpu.Access{
		Nodes: []gpu.DeviceNode{{Path: "/dev/nvidia0", Type: "c", Major: 60, Minor: 0}}, Env: []string{"B=2"}}}
	second = Device{Name: "u1-gpu-02-00-0", Access: gpu.Access{
		Nodes: []gpu.DeviceNode{{Path: "/dev/nvidia1", Type: "c", Major: 60, Minor: 1}}}}
)

func newSpecs(t *testing.T) (*Specs, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cdi")
	s, err := NewSpecs("gpu.nvidia.com", dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func write(t *testing.T, s *Specs) (driver string, devices []string) {
	t.Helper()
	driver, err := s.WriteDriver(common)
	if err != nil {
		t.Fatal(err)
	}
	ofClaim := gpu.Access{Env: []string{"CLAIM=1"}, Mounts: []gpu.Mount{{HostPath: "/h/u1", ContainerPath: "/run/ipc"}}}
	if err := s.WriteClaim("u1", ofClaim, []Device{first, second}); err != nil {
		t.Fatal(err)
	}
	return driver, []string{s.ClaimDevice(first.Name), s.ClaimDevice(second.Name)}
}

// What a runtime makes of the specs: every container gets the driver's part and that of each of its claims once, and
// its own devices only.
func TestInjection(t *testing.T) {
	s, dir := newSpecs(t)
	driver, devices := write(t, s)
	other := Device{Name: "u2-gpu-02-00-0", Access: second.Access}
	if err := s.WriteClaim("u2", gpu.Access{}, []Device{other}); err != nil {
		t.Fatal(err)
	}
	runtime, err := cdiapi.NewCache(cdiapi.WithSpecDirs(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		ids  []string
		want string
	}{
		{"one device", []string{driver, devices[0]}, "env NVIDIA_VISIBLE_DEVICES=void CLAIM=1 B=2\nnodes " +
			"/dev/nvidiactl /dev/nvidia0\nmounts /run/ipc /usr/bin/nvidia-smi\nhooks 1 groups [44]"},
		{"two devices, each with the driver's", []string{driver, devices[0], driver, devices[1]},
			"env NVIDIA_VISIBLE_DEVICES=void CLAIM=1 B=2\nnodes /dev/nvidiactl /dev/nvidia0 /dev/nvidia1\nmounts " +
				"/run/ipc /usr/bin/nvidia-smi\nhooks 1 groups [44]"},
		{"devices of two claims", []string{driver, devices[0], driver, s.ClaimDevice(other.Name)},
			"env NVIDIA_VISIBLE_DEVICES=void CLAIM=1 B=2\nnodes /dev/nvidiactl /dev/nvidia0 /dev/nvidia1\nmounts " +
				"/run/ipc /usr/bin/nvidia-smi\nhooks 1 groups [44]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
			// The nodes of the test do not exist: their numbers must come from the spec.
			if _, err := runtime.InjectDevices(spec, row.ids...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(injected(spec), row.want); diff != "" {
				t.Errorf("got - want +\n%s", diff)
			}
		})
	}
}

func injected(spec *oci.Spec) string {
	var nodes, mounts []string
	for _, d := range spec.Linux.Devices {
		nodes = append(nodes, d.Path)
	}
	for _, m := range spec.Mounts {
		mounts = append(mounts, m.Destination)
	}
	return fmt.Sprintf("env %s\nnodes %s\nmounts %s\nhooks %d groups %v",
		strings.Join(spec.Process.Env, " "), strings.Join(nodes, " "), strings.Join(mounts, " "),
		len(spec.Hooks.CreateContainer), spec.Process.User.AdditionalGids)
}

// TestPlantedLink: a link in place of a spec is replaced, and what it leads to stays as it is.
func TestPlantedLink(t *testing.T) {
	s, dir := newSpecs(t)
	host := filepath.Join(t.TempDir(), "file")
	const claim = "k8s.gpu.nvidia.com-claim_u1.json"
	for _, err := range []error{os.WriteFile(host, []byte("of the host"), 0o600), os.Mkdir(dir, 0o755),
		os.Symlink(host, filepath.Join(dir, claim))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write(t, s)
	if info, err := os.Lstat(filepath.Join(dir, claim)); err != nil || !info.Mode().IsRegular() {
		t.Errorf("got mode %v, error %v, want a file", info.Mode(), err)
	}
	if got, err := os.ReadFile(host); err != nil || string(got) != "of the host" {
		t.Errorf("the file of the host has become %q, error %v", got, err)
	}
}

func TestClaimSpecFile(t *testing.T) {
	s, dir := newSpecs(t)
	write(t, s)
	got, err := os.ReadFile(filepath.Join(dir, "k8s.gpu.nvidia.com-claim_u1.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
 "cdiVersion": "0.3.0",
 "kind": "k8s.gpu.nvidia.com/claim",
 "devices": [
  {
   "name": "u1-gpu-01-00-0",
   "containerEdits": {
    "env": [
     "B=2"
    ],
    "deviceNodes": [
     {
      "path": "/dev/nvidia0",
      "type": "c",
      "major": 60
     }
    ]
   }
  },
  {
   "name": "u1-gpu-02-00-0",
   "containerEdits": {
    "deviceNodes": [
     {
      "path": "/dev/nvidia1",
      "type": "c",
      "major": 60,
      "minor": 1
     }
    ]
   }
  }
 ],
 "containerEdits": {
  "env": [
   "CLAIM=1"
  ],
  "mounts": [
   {
    "hostPath": "/h/u1",
    "containerPath": "/run/ipc"
   }
  ]
 }
}`
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
}

// TestRuntimesNotice: a runtime reads all specs once for each that is written, with any version of the CDI library.
func TestRuntimesNotice(t *testing.T) {
	inotify.Need(t)
	s, dir := newSpecs(t)
	write(t, s)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteClaim("u2", gpu.Access{}, []Device{first}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "end"), 0o755); err != nil {
		t.Fatal(err)
	}
	var oldLibrary, newLibrary int
	for event := range watcher.Events {
		if filepath.Base(event.Name) == "end" {
			break
		}
		isSpec := filepath.Ext(event.Name) == ".json"
		if event.Has(fsnotify.Rename|fsnotify.Remove) || event.Has(fsnotify.Write) && isSpec { // up to 1.1.0
			oldLibrary++
		}
		if isSpec { // since 1.1.1
			newLibrary++
		}
	}
	if oldLibrary != 1 || newLibrary != 1 {
		t.Errorf("an old runtime reads the specs %d times, a new one %d times", oldLibrary, newLibrary)
	}
}

// TestRefused: what no runtime would read is not written.
func TestRefused(t *testing.T) {
	for name, d := range map[string]Device{
		"a name with a space": {"gpu 1", first.Access},
		"a node without path": {"gpu-1", gpu.Access{Nodes: []gpu.DeviceNode{{HostPath: "/dev/x"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newSpecs(t)
			if err := s.WriteClaim("u1", gpu.Access{}, []Device{d}); err == nil {
				t.Error("got no error")
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("there is something")
			}
		})
	}
}

// Runtimes read every spec again when one changes, so what is already there is not written.
func TestDriverSpecIsWrittenWhenItChanges(t *testing.T) {
	s, dir := newSpecs(t)
	write(t, s)
	file := filepath.Join(dir, "k8s.gpu.nvidia.com-driver.json")
	inode := func() uint64 {
		t.Helper()
		var stat unix.Stat_t
		if err := unix.Stat(file, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	before := inode()
	write(t, s)
	if inode() != before {
		t.Error("written again without a change")
	}
	changed := common
	changed.Env = []string{"NEW=1"}
	if _, err := s.WriteDriver(changed); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); !strings.Contains(string(data), "NEW=1") {
		t.Errorf("not written after a change: %s", data)
	}
}

func TestClaimSpec(t *testing.T) {
	s, dir := newSpecs(t)
	write(t, s)
	file := filepath.Join(dir, "k8s.gpu.nvidia.com-claim_u1.json")
	inode := func() uint64 {
		t.Helper()
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	before := inode()
	if write(t, s); inode() != before {
		t.Error("written again without a change")
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if write(t, s); inode() == before {
		t.Error("not written although somebody had changed it")
	}
	for range 2 {
		if err := s.RemoveClaim("u1"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("the spec of a claim that was removed is still there")
		}
	}
}

func TestDriverNameThatIsNoVendor(t *testing.T) {
	if _, err := NewSpecs("gpu/nvidia", t.TempDir()); err == nil || !strings.Contains(err.Error(),
		`driver name "gpu/nvidia"`) {
		t.Errorf("got %v", err)
	}
}

// TestTemporaryFiles: what a plugin leaves that is killed while it writes specs goes when it is old.
func TestTemporaryFiles(t *testing.T) {
	s, dir := newSpecs(t)
	write(t, s)
	const ofClaim = ".gpu.nvidia.com_metadata_u2_gpu.json.4.tmp" // a file of kubeletplugin, which goes with the claim
	old := time.Now().Add(-2 * orphanAge)
	for name, file := range map[string]struct {
		text string
		at   time.Time
	}{
		ofClaim:      {"", old},
		"spec.1.tmp": {`{"kind":"k8s.gpu.nvidia.com/cl`, old}, "spec.2.tmp": {"", old},
		"spec.3.tmp": {`{"kind":"k8s.gpu.nvidia.com/claim"`, time.Now()}, // may be written now
		"spec.4.tmp": {`{"kind":"example.com/other"`, old},
	} {
		path := filepath.Join(dir, name)
		err := errors.Join(os.WriteFile(path, []byte(file.text), 0o600), os.Chtimes(path, file.at, file.at))
		if err != nil {
			t.Fatal(err)
		}
	}
	orphans, err := s.Orphans(func(types.UID) bool { return false })
	if err != nil || len(orphans) != 1 || orphans[0] != "u2" {
		t.Errorf("orphans: got %v, error %v, want u2, which has an old temporary file", orphans, err)
	}
	for range 2 {
		if err := s.RemoveTemporary(); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			names = append(names, e.Name())
		}
	}
	if want := []string{ofClaim, "spec.3.tmp", "spec.4.tmp"}; err != nil || !cmp.Equal(names, want) {
		t.Errorf("got %v, error %v, want %v", names, err, want)
	}
}
