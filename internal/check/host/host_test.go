// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/internal/check/host"
)

// tree returns the root of a host with these files. A content that begins with "->" is a symbolic link.
func tree(t *testing.T, files map[string]string) host.Root {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(content, "->"); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return host.Root(root)
}

const (
	config   = "etc/containerd/config.toml"
	oldPlace = "[plugins.\"io.containerd.grpc.v1.cri\"]\n"
	newPlace = "[plugins.'io.containerd.cri.v1.runtime']\n"
)

func TestLookUpRuntime(t *testing.T) {
	for _, row := range []struct {
		name    string
		files   map[string]string
		version string // as the Node object has it
		want    string // name, version, CDI, problems
	}{
		{"nothing is known", nil, "", "  unknown runtime-unknown"},
		{"the Node object says containerd 1.7", nil, "containerd://1.7.24", "containerd 1.7.24 off cdi-off"},
		{"the Node object says containerd 1.6", nil, "containerd://1.6.4",
			"containerd 1.6.4 unsupported cdi-unsupported"},
		{"the Node object says containerd 2", nil, "containerd://2.1.0-k3s1", "containerd 2.1.0-k3s1 on"},
		{"the Node object says CRI-O", nil, "cri-o://1.34.0", "cri-o 1.34.0 on"},
		{"Docker", nil, "docker://27.1", "docker 27.1 unsupported cdi-unsupported"},
		{"Docker, and the configuration of the host's containerd", map[string]string{config: "version = 3\n"},
			"docker://27.1", "docker 27.1 unsupported cdi-unsupported"},
		{"another runtime", nil, "isulad://2.1", "isulad 2.1 unknown runtime-unknown"},
		{"containerd 1.7 with CDI", map[string]string{config: "version = 2\n" + oldPlace + "enable_cdi = true\n"},
			"containerd://1.7.24", "containerd 1.7.24 on"},
		{"containerd 2 without", map[string]string{config: "version = 3\n" + newPlace + "enable_cdi = false\n"},
			"containerd://2.0.1", "containerd 2.0.1 off cdi-off"},
		{"containerd 2 by the format of its configuration", map[string]string{config: "version = 3\n"}, "",
			"containerd  on"},
		{"either version", map[string]string{config: "version = 2\n"}, "", "containerd  unknown runtime-unknown"},
		{"switched on in a file that is imported", map[string]string{config: "version = 2\nimports = " +
			"[\"conf.d/*.toml\"]\n",
			"etc/containerd/conf.d/cdi.toml": oldPlace + "enable_cdi = true\n"}, "containerd://1.7.24",
			"containerd 1.7.24 on"},
		{"it reads other directories", map[string]string{config: oldPlace +
			"enable_cdi = true\ncdi_spec_dirs = [\"/etc/cdi\"]\n"}, "containerd://1.7.24",
			"containerd 1.7.24 on cdi-dir-unread"},
		{"it reads the directory under its other name", map[string]string{config: oldPlace +
			"cdi_spec_dirs = [\"/run/cdi\"]\n"}, "containerd://2.0.0",
			"containerd 2.0.0 on"},
		{"a configuration that is none", map[string]string{config: "version = = 2\n"}, "containerd://2.0.0",
			"containerd 2.0.0 on runtime-config"},
		{"k3s beside the containerd of Docker", map[string]string{config: "disabled_plugins = [\"cri\"]\n",
			"var/lib/rancher/k3s/agent/etc/containerd/config.toml": "version = 2\n" + oldPlace + "enable_cdi = true\n"},
			"", "containerd  on"},
		{"the containerd of Docker alone", map[string]string{config: "disabled_plugins = [\"cri\"]\n"}, "",
			"  unknown runtime-unknown"},
		{"CRI-O that reads other directories",
			map[string]string{"etc/crio/crio.conf.d/10.conf": "[crio.runtime]\ncdi_spec_dirs = [\"/etc/cdi\"]\n"}, "",
			"cri-o  on cdi-dir-unread"},
		{"the configuration is a link on the host", map[string]string{config: "->/opt/containerd.toml",
			"opt/containerd.toml": "version = 3\n"}, "", "containerd  on"},
		{"a link that leads to itself", map[string]string{config: "->config.toml"}, "containerd://2.0.0",
			"containerd 2.0.0 on runtime-config"},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := host.Root("")
			if row.files != nil {
				root = tree(t, row.files)
			}
			r, problems := host.LookUpRuntime(root, row.version, "/var/run/cdi")
			got := fmt.Sprintf("%s %s %s", r.Name, r.Version, r.CDI)
			for _, p := range problems {
				got += " " + p.ID
				if p.What == "" || p.Remedy == "" || p.Severity == "" {
					t.Errorf("problem %+v is incomplete", p)
				}
			}
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// TestRuntimesWithoutCDI: each has its own cause.
func TestRuntimesWithoutCDI(t *testing.T) {
	for version, want := range map[string]string{
		"":                   "the container runtime was not found",
		"containerd://1.6.4": "containerd 1.6.4 knows no CDI: containers start without their GPUs",
		"containerd://": "containerd: its version is not known, and its configuration does not say whether CDI is " +
			"on",
		"isulad://2.1": "isulad 2.1: it is not known whether this runtime uses CDI",
		"docker://29.4.0": "docker 29.4.0 gets no CDI devices from cri-dockerd, unless that has its change #522: " +
			"containers start without their GPUs",
	} {
		problems := host.RuntimeProblems("", version, "/var/run/cdi")
		if len(problems) != 1 || problems[0].What != want {
			t.Errorf("%q: got %v, want %s", version, problems, want)
		}
	}
}

func TestRuntimeOfNodeVersion(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := tree(t, map[string]string{"usr/bin/containerd": "->" + self, self: "no Go program"})
	r, _ := host.LookUpRuntime(root, "", "/var/run/cdi")
	if r.Name != "containerd" || r.Version != "" {
		t.Errorf("got %q %q, want containerd of no version", r.Name, r.Version)
	}
}

// As on Talos and Bottlerocket, where the driver writes nothing to /etc and /usr.
func TestReadOnlyFileSystems(t *testing.T) {
	readOnly := func(dir string) error {
		if strings.Contains(dir, "/etc") || strings.Contains(dir, "/usr") {
			return unix.EROFS
		}
		return nil
	}
	root := tree(t, map[string]string{"var/lib/x": "", "etc/x": ""})
	if got := host.ReadOnlyDirs(root, []string{"/var/run/cdi", "/var/lib/kubelet/plugins/gpu.nvidia.com", "/dev/shm"},
		readOnly); len(got) > 0 {
		t.Errorf("got %v, want nothing", got)
	}
	got := host.ReadOnlyDirs(root, []string{"/etc/cdi"}, readOnly)
	if len(got) != 1 || got[0].ID != "read-only" || got[0].What != "/etc/cdi cannot be written to: read-only file "+
		"system" {
		t.Errorf("got %v", got)
	}
}

func TestWritable(t *testing.T) {
	dir := t.TempDir()
	if err := host.Writable(filepath.Join(dir, "a/b")); err != nil {
		t.Errorf("a directory that can be made: %v", err)
	}
	if err := host.Writable("/proc/self/x"); err == nil && os.Getuid() != 0 {
		t.Error("a directory that cannot be made can be written to")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := host.Writable(filepath.Join(file, "a")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

func TestCgroupVersion(t *testing.T) {
	hybrid := map[string]string{"memory/x": "", "unified/cgroup.controllers": ""} // memory is controlled by version 1
	for _, row := range []struct {
		name, dir string
		want      int
	}{
		{"none", filepath.Join(t.TempDir(), "none"), 0},
		{"v1", string(tree(t, map[string]string{"memory/x": ""})), 1},
		{"hybrid", string(tree(t, hybrid)), 1},
		{"v2", string(tree(t, map[string]string{"cgroup.controllers": "cpu memory"})), 2},
	} {
		if got := host.CgroupVersion(row.dir); got != row.want {
			t.Errorf("%s: got %d, want %d", row.name, got, row.want)
		}
	}
}

func TestPIDNamespace(t *testing.T) {
	for link, want := range map[string]bool{"pid:[4026531836]": true, "pid:[4026532281]": false} {
		if got := host.SeesAllPIDs(string(tree(t, map[string]string{"self/ns/pid": "->" + link}))); got != want {
			t.Errorf("%s: got %v, want %v", link, got, want)
		}
	}
}

func TestDevicePlugins(t *testing.T) {
	root := t.TempDir()
	if got := host.DevicePlugins(host.Root(root)); got != nil {
		t.Errorf("got %v, want nothing", got)
	}
	sockets := filepath.Join(root, "var/lib/kubelet/device-plugins")
	if err := os.MkdirAll(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nvidia-gpu.sock", "nvidia.com_mlnxnics.sock"} { // the latter is of network cards
		if err := os.WriteFile(filepath.Join(sockets, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := host.DevicePlugins(host.Root(root))
	const want = ": /var/lib/kubelet/device-plugins/nvidia-gpu.sock"
	if len(got) != 1 || got[0].ID != "device-plugin" || !strings.HasSuffix(got[0].What, want) {
		t.Errorf("got %v, want one socket", got)
	}
}

// NVIDIA's driver has the same name, and no UID in its socket. A driver that is killed leaves it.
func TestOtherDrivers(t *testing.T) {
	root := t.TempDir()
	registry := filepath.Join(root, "kubelet/plugins_registry")
	if err := os.MkdirAll(registry, 0o755); err != nil {
		t.Fatal(err)
	}
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(registry, name)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	found := func() []host.Problem {
		return host.OtherDrivers(host.Root(root), "/kubelet/plugins/gpu.nvidia.com", "gpu.nvidia.com")
	}
	listen("gpu.nvidia.com-0123-reg.sock")
	listen("compute-domain.nvidia.com-reg.sock")
	if got := found(); got != nil {
		t.Errorf("beside this driver and ComputeDomains: got %v, want nothing", got)
	}
	other := listen("gpu.nvidia.com-reg.sock")
	if got := found(); len(got) != 1 || got[0].ID != "other-driver" ||
		!strings.Contains(got[0].What, "/kubelet/plugins_registry/gpu.nvidia.com-reg.sock") {
		t.Errorf("got %v, want the socket", got)
	}
	other.SetUnlinkOnClose(false)
	_ = other.Close()
	if got := found(); got != nil {
		t.Errorf("after its end: got %v, want nothing", got)
	}
}
