// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/simulator/smi"
)

var update = flag.Bool("update", false, "write the golden files")

var uuid = regexp.MustCompile(`(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

var serial = regexp.MustCompile(`<serial>[0-9]+`)

// run is what nvidia-smi prints, and its exit code, with the UUIDs masked.
func run(root string, args ...string) string {
	var out, errOut strings.Builder
	code := smi.Run(smi.Machine{Roots: []string{root}}, args, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), &out,
		&errOut)
	return uuid.ReplaceAllString(fmt.Sprintf("%s%sexit %d\n", out.String(), errOut.String(), code), "$1-…")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}

func laidOut(t *testing.T, profile string) *simulator.Node {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("device nodes cannot be made here: %v", err)
	}
	if f, err := os.Open(path); err != nil {
		t.Skipf("device nodes cannot be used here: %v", err)
	} else {
		f.Close()
	}
	p, err := simulator.BuiltIn(profile)
	must(t, err)
	n, err := simulator.Open(t.TempDir(), p)
	must(t, err)
	must(t, n.LayOut(simulator.Programs{}))
	return n
}

// container creates a directory with the library and device nodes of a container with these GPUs, by minor number.
func container(t *testing.T, n *simulator.Node, minors ...int) string {
	t.Helper()
	root := t.TempDir()
	const library = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"
	must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(library)), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "dev"), 0o755))
	// the same file, as a bind mount is
	must(t, os.Link(filepath.Join(n.DriverRoot(), library), filepath.Join(root, library)))
	v, err := n.View()
	must(t, err)
	for _, minor := range minors {
		must(t, unix.Mknod(filepath.Join(root, fmt.Sprintf("dev/nvidia%d", minor)), unix.S_IFCHR|0o666,
			int(unix.Mkdev(uint32(v.Major), uint32(minor)))))
	}
	return root
}

func TestListNeedsDeviceNodes(t *testing.T) {
	n := laidOut(t, "mixed")
	v, err := n.View()
	must(t, err)
	dev := func(root, name string) string { return filepath.Join(root, "dev", name) }
	for _, tt := range []struct {
		name   string
		minors []int
		do     func(root string) error
		want   string
	}{
		{"all nodes", []int{0, 1, 2, 3}, nil, "GPU 0: NVIDIA H100 PCIe (UUID: GPU-…)\nGPU 1: NVIDIA L40S (UUID: " +
			"GPU-…)\n" +
			"GPU 2: NVIDIA A100-PCIE-40GB (UUID: GPU-…)\nGPU 3: Tesla T4 (UUID: GPU-…)\nexit 0\n"},
		{"one node", []int{2}, nil, "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-…)\nexit 0\n"},
		{"no node", nil, nil, "No devices were found\nexit 6\n"},
		{"a node is taken away", []int{0, 3}, func(root string) error { return os.Remove(dev(root, "nvidia0")) },
			"GPU 0: Tesla T4 (UUID: GPU-…)\nexit 0\n"},
		{"a file in place of a node", nil, func(root string) error {
			return os.WriteFile(dev(root, "nvidia0"), nil, 0o666)
		}, "No devices were found\nexit 6\n"},
		{"the node of another GPU", nil, func(root string) error {
			return unix.Mknod(dev(root, "nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(v.Major), 1)))
		}, "No devices were found\nexit 6\n"},
		{"a node with a driver behind it", nil, func(root string) error {
			return unix.Mknod(dev(root, "nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
		}, "No devices were found\nexit 6\n"},
		{"a link to a node", []int{1}, func(root string) error {
			return os.Rename(dev(root, "nvidia1"), dev(root, "x"))
		}, "No devices were found\nexit 6\n"},
		{"no library", []int{0}, func(root string) error { return os.RemoveAll(filepath.Join(root, "usr")) },
			"NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA " +
				"Display Driver is properly installed and " +
				"present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to your " +
				"system PATH.\nexit 12\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := container(t, n, tt.minors...)
			if tt.do != nil {
				must(t, tt.do(root))
			}
			if got := run(root, "-L"); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

// allow makes the device nodes for the partitions in a container: those that their minor numbers follow from.
func allow(t *testing.T, n *simulator.Node, root string, minors ...int) {
	t.Helper()
	v, err := n.View()
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(root, "dev/nvidia-caps"), 0o755))
	for _, minor := range minors {
		must(t, unix.Mknod(filepath.Join(root, "dev", node.CapabilityNode(minor)), unix.S_IFCHR|0o666,
			int(unix.Mkdev(uint32(v.Major), uint32(minor)))))
	}
}

func TestPartitionsNeedDeviceNodes(t *testing.T) {
	n := laidOut(t, "mixed")
	must(t, n.SwitchMIG("0", hwprofile.Enabled))
	for _, place := range []string{"1g.10gb@4", "2g.20gb@0"} {
		_, err := n.CreatePartition("0", place)
		must(t, err)
	}
	v, err := n.View()
	must(t, err)
	c := v.GPUs[0]
	first, second := c.Capabilities(c.Partitions()[0]), c.Capabilities(c.Partitions()[1])
	const gpu, big, small = "GPU 0: NVIDIA H100 PCIe (UUID: GPU-…)\n", "  MIG 2g.20gb     Device  %d: (UUID: MIG-…)\n",
		"  MIG 1g.10gb     Device  %d: (UUID: MIG-…)\n"
	for _, tt := range []struct {
		name      string
		minors    []int
		want      string
		reachable int
	}{
		{"none", nil, gpu, 0},
		{"one", first[:], gpu + fmt.Sprintf(big, 0), 1},
		{"the other", second[:], gpu + fmt.Sprintf(small, 0), 1},
		{"both", append(first[:], second[:]...), gpu + fmt.Sprintf(big, 0) + fmt.Sprintf(small, 1), 2},
		{"half of one", first[:1], gpu, 0},
		{"half of each", []int{first[0], second[1]}, gpu, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := container(t, n, 0)
			allow(t, n, root, tt.minors...)
			if got := run(root, "-L"); got != tt.want+"exit 0\n" {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
			got, err := smi.Machine{Roots: []string{root}}.Reachable()
			if err != nil || len(got) != tt.reachable {
				t.Errorf("%d devices (%v), want %d", len(got), err, tt.reachable)
			}
		})
	}
	if got, want := run(n.DriverRoot(), "-L", "-i", "0"), gpu+fmt.Sprintf(big, 0)+fmt.Sprintf(small, 1)+
		"exit 0\n"; got != want {
		t.Errorf("on the node, got:\n%s\nwant:\n%s", got, want)
	}
}

// TestLibraryInContainer checks that NVML in a container has only the GPU and partition whose device nodes are there.
func TestLibraryInContainer(t *testing.T) {
	n := laidOut(t, "dgx-h100")
	must(t, n.SwitchMIG("2", hwprofile.Enabled))
	for _, place := range []string{"1g.10gb@4", "2g.20gb@0"} {
		_, err := n.CreatePartition("2", place)
		must(t, err)
	}
	v, err := n.View()
	must(t, err)
	c := v.GPUs[2]
	mine := c.Partitions()[1]
	root := container(t, n, 2)
	minors := c.Capabilities(mine)
	allow(t, n, root, minors[:]...)

	found, at, err := smi.Machine{Roots: []string{root}}.Node()
	must(t, err)
	lib := simulator.Within(found, at).NVML()
	succeed(t, lib.Init())
	count, ret := lib.DeviceGetCount()
	succeed(t, ret)
	d, ret := lib.DeviceGetHandleByIndex(0)
	succeed(t, ret)
	id, ret := d.GetUUID()
	succeed(t, ret)
	if count != 1 || id != c.UUID {
		t.Errorf("got %d GPUs, the first is %s, want only %s", count, id, c.UUID)
	}
	if _, ret := lib.DeviceGetHandleByUUID(v.GPUs[0].UUID); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("GPU of others: %v, want %v", ret, nvml.ERROR_NOT_FOUND)
	}
	partition, ret := d.GetMigDeviceHandleByIndex(0)
	succeed(t, ret)
	if id, ret = partition.GetUUID(); ret != nvml.SUCCESS || id != mine.Compute.UUID {
		t.Errorf("first partition: %s, %v, want %s", id, ret, mine.Compute.UUID)
	}
	if _, ret := d.GetMigDeviceHandleByIndex(1); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("partition of others: %v, want %v", ret, nvml.ERROR_NOT_FOUND)
	}
}

func succeed(t *testing.T, ret nvml.Return) {
	t.Helper()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
}

func TestMIGListings(t *testing.T) {
	n := laidOut(t, "mixed")
	const none = "No MIG-enabled devices found.\nexit 6\n"
	if got := run(n.DriverRoot(), "mig", "-lgip"); got != none {
		t.Errorf("got %s, want %s", got, none)
	}
	must(t, n.SwitchMIG("0", hwprofile.Enabled))
	if got, want := run(n.DriverRoot(), "mig", "-lgi"), "No GPU instances found: Not Found\nexit 6\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, err := n.CreatePartition("0", "3g.40gb@4")
	must(t, err)
	_, err = n.CreatePartition("0", "1g.10gb+me@2")
	must(t, err)
	path := filepath.Join("testdata", "mig.txt")
	var got string
	for _, option := range []string{"-lgip", "-lgipp", "-lgi"} {
		got += run(n.DriverRoot(), "mig", option)
	}
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("got (%v):\n%s\nwant:\n%s", err, got, want)
	}
	for _, tt := range []struct{ args, want string }{
		{"mig -lgi -i 1", none},
		{"mig -lgi -i 9", "No devices were found\nexit 6\n"},
		{"mig -cgi 19", "nvidia-smi mig: option \"-cgi\" is not one that the simulated nvidia-smi has; see " +
			"nvidia-smi mig -h\nexit 2\n"},
		{"--query-gpu=mig.mode.current --format=csv,noheader -i 0", "Enabled\nexit 0\n"},
	} {
		if got := run(n.DriverRoot(), strings.Fields(tt.args)...); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.args, got, tt.want)
		}
	}
}

func TestContainerSeesHostChanges(t *testing.T) {
	n := laidOut(t, "t4-x2")
	root := container(t, n, 1)
	must(t, n.SetMemoryUsed("gpu-af-00-0", 5<<30))
	must(t, n.SetComputeMode("gpu-af-00-0", 3))
	const query = "--query-gpu=memory.used,compute_mode"
	if got, want := run(root, query, "--format=csv,noheader"), "5120 MiB, Exclusive_Process\nexit 0\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	must(t, n.Fail("gpu-af-00-0", "all", "ERROR_GPU_IS_LOST"))
	if got, want := run(root, "-L"), "Unable to determine the device handle for GPU0: 0000:AF:00.0: GPU is "+
		"lost\nexit 15\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUnplugAndPlug(t *testing.T) {
	n := laidOut(t, "t4-x2")
	root, inside := n.DriverRoot(), container(t, n, 1)
	const first, second, last = "GPU 0: Tesla T4 (UUID: GPU-…)\n", "GPU 1: Tesla T4 (UUID: GPU-…)\n",
		"GPU 2: Tesla T4 (UUID: GPU-…)\n"
	const lost = "Unable to determine the device handle for GPU%d: 0000:AF:00.0: GPU is lost\n"
	for _, tt := range []struct {
		name                     string
		do                       func() error
		list, query, inContainer string
	}{
		{"all there", func() error { return nil }, first + second + "exit 0\n", "0, 3B\n1, AF\nexit 0\n",
			first + "exit 0\n"},
		{"one added", func() error { _, err := n.Add("0", hwprofile.Address{}); return err }, first + second + last +
			"exit 0\n",
			"0, 3B\n1, 3C\n2, AF\nexit 0\n", first + "exit 0\n"},
		{"one unplugged", func() error { return n.Unplug("gpu-af-00-0") }, first + second + fmt.Sprintf(lost, 2) +
			"exit 15\n",
			fmt.Sprintf(lost, 2) + "exit 15\n", fmt.Sprintf(lost, 0) + "exit 15\n"},
		{"it is back", func() error { return n.Plug("gpu-af-00-0") }, first + second + last + "exit 0\n",
			"0, 3B\n1, 3C\n2, AF\nexit 0\n", first + "exit 0\n"},
		{"it is removed", func() error { return n.Remove("gpu-af-00-0") }, first + second + "exit 0\n",
			"0, 3B\n1, 3C\nexit 0\n", "No devices were found\nexit 6\n"},
		{"slow", func() error { return n.Slow("0", "GetName", time.Nanosecond) }, first + second + "exit 0\n",
			"0, 3B\n1, 3C\nexit 0\n",
			"No devices were found\nexit 6\n"},
	} {
		must(t, tt.do())
		bus := regexp.MustCompile(`00000000:(..):00\.0`)
		query := bus.ReplaceAllString(run(root, "--query-gpu=index,pci.bus_id", "--format=csv,noheader"), "$1")
		if got, want := run(root, "-L")+query+run(inside, "-L"), tt.list+tt.query+tt.inContainer; got != want {
			t.Errorf("%s: got:\n%s\nwant:\n%s", tt.name, got, want)
		}
	}
}

func TestConfigure(t *testing.T) {
	old, err := simulator.BuiltIn("t4-x2")
	must(t, err)
	yaml := strings.Replace(old.YAML(), "{major: 7, minor: 5}", "{major: 7, minor: 0}", 1)
	old, err = simulator.ParseProfile([]byte(yaml))
	must(t, err)
	const frame = "+-------------------------------------+\n"
	const head = frame + "| GPU compute policies:               |\n| GPU     Name             Value      " +
		"|\n|=====================================|\n"
	for _, tt := range []struct{ name, args, want, node string }{
		{"set all", "compute-policy --set-timeslice 3", "Set timeslice policy to Long for GPU 0\nSet timeslice " +
			"policy to Long for GPU 1\nexit 0\n", "Long Long"},
		{"set one", "compute-policy -i 1 --set-timeslice=1", "Set timeslice policy to Short for GPU 1\nexit 0\n",
			"Default Short"},
		{"set one by UUID", "compute-policy --id UUID --set-timeslice 2",
			"Set timeslice policy to Medium for GPU 0\nexit 0\n", "Medium Default"},
		{"list", "compute-policy --list", head + "|   0     Timeslice        Default    |\n|   1     Timeslice       " +
			" Default    |\n" + frame + "exit 0\n", "Default Default"},
		{"list in a container", "container compute-policy -l", head + "|   0     Timeslice        Default    |\n" +
			frame + "exit 0\n", "Default Default"},
		{"a GPU that is not there", "compute-policy -i 2 --set-timeslice 1", "No devices were found\nexit 6\n",
			"Default Default"},
		{"no number", "compute-policy --set-timeslice Long", "Invalid timeslice \"Long\": 0=DEFAULT, 1=SHORT, " +
			"2=MEDIUM, 3=LONG\nexit 2\n", "Default Default"},
		{"a number that is none of them", "compute-policy --set-timeslice 4",
			"Invalid timeslice \"4\": 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG\nexit 2\n", "Default Default"},
		{"an unknown option", "compute-policy --timeslice 1",
			"nvidia-smi: option \"--timeslice\" is not one that compute-policy has; see nvidia-smi compute-policy " +
				"-h\nexit 2\n", "Default Default"},
		{"from a container", "container compute-policy --set-timeslice 1",
			"Failed to set timeslice policy with value Short for GPU 0 : Insufficient Permissions\n" +
				"Failed to set timeslice for requested devices : Insufficient Permissions\nexit 4\n",
			"Default Default"},
		{"a card without", "old compute-policy --set-timeslice 0", "Failed to set timeslice policy with value " +
			"Default for GPU 0 : Not Supported\n" +
			"Failed to set timeslice for requested devices : Not Supported\nexit 3\n", "Default Default"},
		{"list a card without", "old compute-policy -l -i 0", head + "|   0     Timeslice        N/A        |\n" +
			frame + "exit 0\n", "Default Default"},
		{"a lost GPU", "lost compute-policy --set-timeslice 1", "Failed to set timeslice policy with value Short for " +
			"GPU 0 : GPU is lost\n" +
			"Failed to set timeslice for requested devices : GPU is lost\nexit 15\n", "Default Default"},
		{"compute mode", "-c EXCLUSIVE_PROCESS -i 0", "Set compute mode to EXCLUSIVE_PROCESS for GPU " +
			"00000000:3B:00.0.\nAll done.\nexit 0\n", "E Default Default"},
		{"compute mode by number", "--compute-mode=2 -i 0", "Set compute mode to PROHIBITED for GPU " +
			"00000000:3B:00.0.\nAll done.\nexit 0\n", "P Default Default"},
		{"the compute mode that it has", "-c 0 -i 0", "Compute mode is already set to DEFAULT for GPU " +
			"00000000:3B:00.0.\nAll done.\nexit 0\n", "Default Default"},
		{"a compute mode that is none", "-c 1", "compute mode \"1\" is not one of DEFAULT, EXCLUSIVE_PROCESS, " +
			"PROHIBITED\nexit 2\n", "Default Default"},
		{"compute mode from a container", "container -c 3", "Unable to set the compute mode for GPU " +
			"00000000:3B:00.0: Insufficient Permissions\n" +
			"Terminating early due to previous errors.\nexit 4\n", "Default Default"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := laidOut(t, "t4-x2")
			v, err := n.View()
			must(t, err)
			args := strings.Fields(strings.ReplaceAll(tt.args, "UUID", v.GPUs[0].UUID))
			root := n.DriverRoot()
			switch args[0] {
			case "container":
				root, args = container(t, n, 0), args[1:]
			case "lost":
				must(t, n.Fail("0", "all", "ERROR_GPU_IS_LOST"))
				args = args[1:]
			case "old":
				n, err = simulator.Open(t.TempDir(), old)
				must(t, err)
				root, args = n.DriverRoot(), args[1:]
			}
			if got := run(root, args...); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
			v, err = n.View()
			must(t, err)
			got := fmt.Sprintf("%s %s", v.GPUs[0].State.TimeSlice, v.GPUs[1].State.TimeSlice)
			if mode := v.GPUs[0].State.ComputeMode; mode != 0 {
				got = mode.String()[:1] + " " + got
			}
			if got != tt.node {
				t.Errorf("the node has %s, want %s", got, tt.node)
			}
		})
	}
}

// Processes are listed only if they are visible, which they are not from another PID namespace.
func TestProcesses(t *testing.T) {
	n := laidOut(t, "t4-x2")
	name, err := os.ReadFile("/proc/self/comm")
	must(t, err)
	must(t, n.SetProcesses("1", []node.Process{
		{PID: os.Getpid(), Name: strings.TrimSpace(string(name)), Memory: 5 << 30, Threads: 30},
		{PID: 1 << 30, Name: "x", Memory: 1 << 30},
	}))
	got := run(n.DriverRoot())
	row := fmt.Sprintf("|    1   N/A  N/A %15d    M+C   %-35s    5120MiB |\n", os.Getpid(),
		strings.TrimSpace(string(name)))
	if !strings.Contains(got, row) || strings.Contains(got, " x ") || strings.Contains(got, "No running processes") ||
		!strings.Contains(got, " 6144MiB / ") {
		t.Errorf("got:\n%s\nwant the row:\n%s", got, row)
	}
	width := len(strings.Split(got, "\n")[1])
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "|") && len(line) != width+1 {
			t.Errorf("not as wide as the others: %s", line)
		}
	}
}

func TestCommandLine(t *testing.T) {
	n := laidOut(t, "mixed")
	for _, tt := range []struct{ name, args, want string }{
		{"a query", "--query-gpu=index,name,memory.total,compute_cap,pci.bus_id,driver_version --format=csv",
			"index, name, memory.total [MiB], compute_cap, pci.bus_id, driver_version\n" +
				"0, NVIDIA H100 PCIe, 81559 MiB, 9.0, 00000000:41:00.0, 580.95.05\n1, NVIDIA L40S, 46068 MiB, 8.9, " +
				"00000000:61:00.0, 580.95.05\n" +
				"2, NVIDIA A100-PCIE-40GB, 40960 MiB, 8.0, 00000000:81:00.0, 580.95.05\n3, Tesla T4, 15360 MiB, 7.5, " +
				"00000000:A1:00.0, 580.95.05\nexit 0\n"},
		{"without header and units, one GPU",
			"--query-gpu=gpu_uuid,memory.free,power.limit,fan.speed,mig.mode.current --format=csv,noheader,nounits " +
				"-i 3",
			"GPU-…, 14915, 70.00, [N/A], [N/A]\nexit 0\n"},
		{"a GPU by its address", "--id=0000:81:00.0 -L", "GPU 2: NVIDIA A100-PCIE-40GB (UUID: GPU-…)\nexit 0\n"},
		{"a GPU by its long address", "--id 00000000:81:00.0 --list-gpus",
			"GPU 2: NVIDIA A100-PCIE-40GB (UUID: GPU-…)\nexit 0\n"},
		{"a GPU that is not there", "-L -i 4", "No devices were found\nexit 6\n"},
		{"version", "--version", "NVIDIA-SMI version  : 580.95.05\nNVML version        : 580.95\nDRIVER version      " +
			": 580.95.05\nCUDA Version        : 13.0\nexit 0\n"},
		{"a full query as text", "-q", "nvidia-smi: the simulated nvidia-smi has -q and -x only together\nexit 2\n"},
		{"an unknown option", "-z", "nvidia-smi: option \"-z\" is not one that the simulated nvidia-smi has; see " +
			"nvidia-smi -h\nexit 2\n"},
		{"an unknown command", "topo -m", "nvidia-smi: option \"topo\" is not one that the simulated nvidia-smi has; " +
			"see nvidia-smi -h\nexit 2\n"},
		{"a query without format", "--query-gpu=name", "nvidia-smi: --query-gpu needs " +
			"--format=csv[,noheader][,nounits]\nexit 2\n"},
		{"a format without query", "--format=csv", "nvidia-smi: --format is for --query-gpu\nexit 2\n"},
		{"a format that does not exist", "--query-gpu=name --format=csv,x",
			"nvidia-smi: --format: \"x\" is not one of noheader, nounits\nexit 2\n"},
		{"an option without value", "--query-gpu=name --format", "nvidia-smi: option --format: its value is " +
			"missing\nexit 2\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := run(n.DriverRoot(), strings.Fields(tt.args)...); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
	t.Run("a field that does not exist", func(t *testing.T) {
		want := "Field \"memory\" is not a valid field to query.\nThe simulated nvidia-smi knows clocks.max.mem,"
		if got := run(n.DriverRoot(), "--query-gpu=memory", "--format=csv"); !strings.HasPrefix(got, want) {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
	t.Run("XML", func(t *testing.T) {
		got := serial.ReplaceAllString(run(n.DriverRoot(), "-q", "-x"), "<serial>…")
		if *update {
			must(t, os.WriteFile("testdata/mixed.xml", []byte(got), 0o644))
		}
		if want, err := os.ReadFile("testdata/mixed.xml"); err != nil || got != string(want) {
			t.Errorf("got (%v):\n%s\nwant:\n%s", err, got, want)
		}
	})
	t.Run("the table", func(t *testing.T) {
		got := run(n.DriverRoot())
		if *update {
			must(t, os.WriteFile("testdata/mixed.txt", []byte(got), 0o644))
		}
		if want, err := os.ReadFile("testdata/mixed.txt"); err != nil || got != string(want) {
			t.Errorf("got (%v):\n%s\nwant:\n%s", err, got, want)
		}
	})
}
