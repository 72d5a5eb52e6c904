// SPDX-License-Identifier: Apache-2.0

package simulator_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpudra/gpu-dra-driver/simulator"
)

// laidOut returns a node with its driver root. It skips the test if device nodes cannot be created.
func laidOut(t *testing.T, profile string) *simulator.Node {
	t.Helper()
	n := open(t, profile)
	layOut(t, n)
	return n
}

func layOut(t *testing.T, n *simulator.Node) {
	t.Helper()
	needMknod(t)
	program := filepath.Join(t.TempDir(), "nvidia-smi")
	must(t, os.WriteFile(program, []byte("a program\n"), 0o755))
	must(t, n.LayOut(simulator.Programs{NvidiaSMI: program, MPSControl: program}))
}

func needMknod(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("device nodes cannot be made here: %v", err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Skipf("device nodes cannot be used here: %v", err)
	}
	f.Close()
}

// tree is what is in a directory as text; the state file only by name, and device nodes without their major number.
func tree(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(root, path)
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			fmt.Fprintf(&b, "%s -> %s\n", name, target)
			return err
		case e.Type()&fs.ModeCharDevice != 0:
			var st unix.Stat_t
			err := unix.Stat(path, &st)
			fmt.Fprintf(&b, "%s %s minor %d\n", name, info.Mode(), unix.Minor(st.Rdev))
			return err
		case strings.HasPrefix(name, "sys/"), strings.HasSuffix(name, "/mig-minors"):
			content, err := os.ReadFile(path)
			fmt.Fprintf(&b, "%s: %s", name, content)
			return err
		}
		fmt.Fprintf(&b, "%s %s\n", name, info.Mode())
		return nil
	}))
	return b.String()
}

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("got (%v):\n%s\nwant:\n%s", err, got, want)
	}
}

func TestLayOut(t *testing.T) {
	n := laidOut(t, "t4-x2")
	root := n.DriverRoot()
	want := tree(t, root)
	golden(t, "t4-x2-root.txt", want)
	v, err := n.View()
	must(t, err)
	devices, err := os.ReadFile(filepath.Join(n.Proc(), "devices"))
	must(t, err)
	majors := regexp.MustCompile(`(?m)^ *(\d+) nvidia(?:-caps(?:-imex-channels)?)?$`).FindAllSubmatch(devices, -1)
	if len(majors) != 3 || string(majors[0][1]) != string(majors[1][1]) ||
		string(majors[1][1]) == string(majors[2][1]) {
		t.Errorf("IMEX channels need a major number of their own: got\n%s", devices)
	}
	for _, tt := range []struct {
		name  string
		spoil func() error
	}{
		{"nothing", func() error { return nil }},
		{"a device node is gone", func() error { return os.Remove(filepath.Join(root, "dev/nvidia1")) }},
		{"a device node is a file", func() error {
			return errors.Join(os.Remove(filepath.Join(root, "dev/nvidia0")),
				os.WriteFile(filepath.Join(root, "dev/nvidia0"), nil, 0o666))
		}},
		{"a device node is another", func() error {
			path := filepath.Join(root, "dev/nvidiactl")
			return errors.Join(os.Remove(path), unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		}},
		{"a device node may not be opened by all", func() error {
			return os.Chmod(filepath.Join(root, "dev/nvidia0"), 0o600)
		}},
		{"the node of a GPU that is gone", func() error {
			return unix.Mknod(filepath.Join(root, "dev/nvidia7"), unix.S_IFCHR|0o666,
				int(unix.Mkdev(uint32(v.Major), 7)))
		}},
		{"a library is gone", func() error {
			return os.Remove(filepath.Join(root,
				"usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"))
		}},
		{"a library of an older driver is left", func() error {
			return os.WriteFile(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.570.1"), nil, 0o644)
		}},
		{"a link leads elsewhere", func() error {
			path := filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1")
			return errors.Join(os.Remove(path), os.Symlink("/nowhere", path))
		}},
		{"nvidia-smi cannot be executed", func() error {
			return os.Chmod(filepath.Join(root, "usr/bin/nvidia-smi"), 0o644)
		}},
		{"nvidia-smi is cut off", func() error { return os.Truncate(filepath.Join(root, "usr/bin/nvidia-smi"), 1) }},
		{"the PCI bus is empty", func() error { return os.RemoveAll(filepath.Join(root, "sys/bus")) }},
		{"a GPU says another NUMA node", func() error {
			path := filepath.Join(root, "sys/bus/pci/devices/0000:af:00.0/numa_node")
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("7\n"), 0o444))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, tt.spoil())
			layOut(t, n)
			if got := tree(t, root); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if after, err := n.View(); err != nil || after.Major != v.Major {
				t.Errorf("major %d, want %d (%v)", after.Major, v.Major, err)
			}
		})
	}
}

func TestLayOutIsIdempotent(t *testing.T) {
	n := laidOut(t, "t4-x2")
	inodes := func() map[string]uint64 {
		out := map[string]uint64{}
		must(t, filepath.WalkDir(n.DriverRoot(), func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			out[path] = 0
			if err == nil {
				err = unix.Lstat(path, &st)
				out[path] = st.Ino
			}
			return err
		}))
		return out
	}
	before := inodes()
	layOut(t, n)
	for path, inode := range inodes() {
		if before[path] != inode {
			t.Errorf("%s has been made anew", path)
		}
	}
}

func TestLayOutOfOtherProfile(t *testing.T) {
	n := laidOut(t, "dgx-h100")
	must(t, swap(t, n.Dir(), "t4-x2"))
	layOut(t, n)
	golden(t, "t4-x2-root.txt", tree(t, n.DriverRoot()))
}

func TestDeviceNodesHaveNoDriver(t *testing.T) {
	n := laidOut(t, "dgx-h100")
	nodes, err := filepath.Glob(filepath.Join(n.DriverRoot(), "dev/*"))
	must(t, err)
	if len(nodes) != 12 {
		t.Errorf("%d device nodes, want 12: %v", len(nodes), nodes)
	}
	for _, path := range nodes {
		if _, err := os.OpenFile(path, os.O_RDWR, 0); !errors.Is(err, unix.ENXIO) {
			t.Errorf("open %s: error %v, want ENXIO", path, err)
		}
	}
}

func TestLayOutWithoutPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may make device nodes")
	}
	err := open(t, "t4-x2").LayOut(simulator.Programs{})
	if err == nil || !strings.Contains(err.Error(), "root with CAP_MKNOD") {
		t.Errorf("error %v, want one that names CAP_MKNOD", err)
	}
}

func TestKubernetesHelperReadsSysfs(t *testing.T) {
	n := laidOut(t, "mixed")
	sys := deviceattribute.WithFSFromRoot(filepath.Join(n.DriverRoot(), "sys"))
	var got []string
	for _, address := range []string{"0000:41:00.0", "0000:61:00.0", "0000:81:00.0", "0000:a1:00.0"} {
		root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(address, sys)
		must(t, err)
		numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(address, deviceattribute.ScalarAttribute, sys)
		must(t, err)
		got = append(got, fmt.Sprint(address, " ", *root.Value.StringValue, " ", *numa.Value.IntValue))
	}
	want := []string{"0000:41:00.0 pci0000:40 0", "0000:61:00.0 pci0000:60 0", "0000:81:00.0 pci0000:80 1",
		"0000:a1:00.0 pci0000:a0 1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// quiet discards the log.
type quiet struct{}

func (quiet) Debugf(string, ...any)   {}
func (quiet) Errorf(string, ...any)   {}
func (quiet) Infof(string, ...any)    {}
func (quiet) Warningf(string, ...any) {}
func (quiet) Tracef(string, ...any)   {}

// nvcdi returns what the driver requests for the edits of a container.
func TestNVCDIFindsDriverRootAndDeviceNodes(t *testing.T) {
	n := laidOut(t, "dgx-h100")
	root := n.DriverRoot()
	lib, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(n.NVML()),
		nvcdi.WithDriverRoot(root),
		nvcdi.WithDevRoot(root),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithLogger(quiet{}),
	)
	must(t, err)
	common, err := lib.GetCommonEdits()
	must(t, err)
	var got []string
	for _, d := range common.DeviceNodes {
		got = append(got, "node "+d.Path)
	}
	for _, m := range common.Mounts {
		if m.HostPath == os.DevNull {
			continue // tells NVIDIA's runtime to add no GPUs
		}
		got = append(got, "mount "+m.ContainerPath)
		if m.HostPath != filepath.Join(root, m.ContainerPath) {
			t.Errorf("%s is mounted from %s", m.ContainerPath, m.HostPath)
		}
	}
	want := strings.Fields(`nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidiactl`)
	for i, name := range want {
		want[i] = "node /dev/" + name
	}
	for _, name := range strings.Fields(`cuda cudadebugger nvcuvid nvidia-allocator nvidia-cfg nvidia-encode nvidia-gpucomp nvidia-ml
		nvidia-nvvm nvidia-opencl nvidia-opticalflow nvidia-ptxjitcompiler`) {
		want = append(want, "mount /usr/lib/x86_64-linux-gnu/lib"+name+".so.580.95.05")
	}
	want = append(want, "mount /usr/bin/nvidia-cuda-mps-control", "mount /usr/bin/nvidia-smi")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("common edits:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	links := linksMadeByHooks(common.Hooks)
	for _, link := range []string{"libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so",
		"libcuda.so.580.95.05::/usr/lib/x86_64-linux-gnu/libcuda.so.1",
		"libnvidia-ml.so.580.95.05::/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"} {
		if !slices.Contains(links, link) {
			t.Errorf("no hook makes the link %s; links: %q", link, links)
		}
	}

	v, err := n.View()
	must(t, err)
	for _, c := range v.GPUs {
		devices, err := lib.GetDeviceSpecsByID(c.UUID)
		must(t, err)
		var nodes []string
		for _, d := range devices {
			for _, node := range d.ContainerEdits.DeviceNodes {
				nodes = append(nodes, node.Path+" "+node.HostPath)
			}
		}
		path := fmt.Sprintf("/dev/nvidia%d", c.Minor)
		if want := []string{path + " " + root + path}; !slices.Equal(nodes, want) {
			t.Errorf("%s: device nodes %q, want %q", c.UUID, nodes, want)
		}
	}
}

// linksMadeByHooks are the links that the hook create-symlinks is told to make, each as "target::path".
func linksMadeByHooks(hooks []*specs.Hook) []string {
	var out []string
	for _, h := range hooks {
		for i, arg := range h.Args {
			if arg == "--link" && slices.Contains(h.Args, "create-symlinks") {
				out = append(out, h.Args[i+1])
			}
		}
	}
	return out
}
