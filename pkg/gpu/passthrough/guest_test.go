// SPDX-License-Identifier: Apache-2.0

//go:build guest

package passthrough

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
)

// The tests of this file run in the emulated machine of make test-vfio. Its network cards of Intel stand for GPUs:
//
//	01:00.0 a card of three functions, the second one with another driver, the third one without
//	02:00.0 a card of one function, in a group with the port above
//	04:01.0 behind a bridge with a network card of another vendor, 04:02.0
//	06:01.0 and 06:02.0 behind one bridge
const (
	card    = "0000:01:00"
	single  = "0000:02:00.0"
	crowded = "0000:04:01.0"
	twin    = "0000:06:01.0"
)

func guest() Bus {
	const intel, network = "8086", 0x02
	return Bus{Sysfs: "/sys", Dev: "/dev", isGPU: func(f Function) bool {
		return f.Vendor == intel && f.Class>>16 == network
	}}
}

func TestMain(m *testing.M) {
	if what := os.Getenv("GUEST_CHILD"); what != "" {
		child(what)
		return
	}
	for _, module := range []string{"e1000e", "e1000", "8139cp", Driver, "vfio_iommu_type1"} {
		if output, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
			fmt.Printf("modprobe %s: %s\n", module, output)
			os.Exit(1)
		}
	}
	_ = exec.Command("modprobe", "iommufd").Run() // not every kernel has it
	os.Exit(m.Run())
}

func TestGuestGroups(t *testing.T) {
	gpus, err := guest().GPUs()
	if err != nil {
		t.Fatal(err)
	}
	const (
		isShared = " is in the same IOMMU group N and has the driver shpchp: unbind it, or isolate the slots (ACS) " +
			"in the firmware\n"
		want = `0000:01:00.0 group N: 0 8086:10d3 020000 "e1000e" 1 1af4:1044 00ff00 "virtio-pci" ` +
			`2 1234:11e8 00ff00 "" ` + "\n" +
			`0000:02:00.0 group N: 0 8086:10d3 020000 "e1000e" ` + "\n" +
			`0000:04:01.0 group N: 0 8086:100e 020000 "e1000" 0000:03:00.0` + isShared +
			`0000:06:01.0 group N: 0 8086:100e 020000 "e1000" 0000:05:00.0` + isShared +
			`0000:06:02.0 group N: 0 8086:100e 020000 "e1000" 0000:05:00.0` + isShared
	)
	if got := regexp.MustCompile(`group \d+`).ReplaceAllString(text(gpus), "group N"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The kernel is asked whether a program can have the group of a GPU whose card is bound to vfio-pci.
func TestGuestViable(t *testing.T) {
	const bridge, other = "shpchp 0000:03:00.0", "8139cp 0000:04:02.0"
	for _, row := range []struct {
		name, at string
		unbound  []string // drivers and functions that they do not have meanwhile
		refusal  string
	}{
		{"all functions of the card", card + ".0", nil, ""},
		{"a port with its driver", single, nil, ""},
		{"a bridge and another function with drivers", crowded, nil, "has the driver shpchp"},
		{"another function with a driver", crowded, []string{bridge}, "has the driver 8139cp"},
		{"a bridge with a driver that keeps the group", crowded, []string{other}, "has the driver shpchp"},
		{"a bridge and another function without drivers", crowded, []string{bridge, other}, ""},
		{"another GPU with a driver", twin, []string{"shpchp 0000:05:00.0"}, "the GPU 0000:06:02.0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := guest()
			for _, u := range row.unbound {
				driver, at, _ := strings.Cut(u, " ")
				if err := b.write(b.driver(driver, "unbind"), at); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := b.write(b.driver(driver, "bind"), at); err != nil {
						t.Error(err)
					}
				}()
			}
			g := read(t, row.at)
			defer giveBack(t, g)
			for _, f := range g.Own {
				if err := b.Bind(t.Context(), f.PCI); err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(g.Refusal, row.refusal) || row.refusal == "" && g.Refusal != "" {
				t.Errorf("refusal: got %q, want %q", g.Refusal, row.refusal)
			}
			if got, want := viableGroup(t, g.Group), row.refusal == ""; got != want {
				t.Errorf("the kernel lets a program have the group: got %t, want %t", got, want)
			}
		})
	}
}

func TestGuestHundredTimes(t *testing.T) {
	took := map[string][]time.Duration{}
	b := guest()
	b.Write = func(file, text string) error {
		start := time.Now()
		err := writeSysfs(file, text)
		what := filepath.Base(file)
		if dir := filepath.Dir(file); what == "bind" || what == "unbind" {
			what = filepath.Base(dir) + "/" + what
		}
		took[what] = append(took[what], time.Since(start))
		return err
	}
	for at, times := range map[string]int{single: 100, card + ".0": 5} { // the machine is slow
		before := read(t, at)
		for range times {
			for _, f := range before.Own {
				if err := b.Bind(t.Context(), f.PCI); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range read(t, at).Own {
				if f.Driver != Driver {
					t.Fatalf("%s has the driver %q", f.PCI, f.Driver)
				}
			}
			if _, err := b.Nodes(before.PCI, false); err != nil {
				t.Fatal(err)
			}
			if err := b.Return(t.Context(), ownOf(before)); err != nil {
				t.Fatal(err)
			}
		}
		if after := read(t, at); text([]GPU{after}) != text([]GPU{before}) {
			t.Errorf("got %s, want %s", text([]GPU{after}), text([]GPU{before}))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(took)) {
		slices.Sort(took[what])
		n := len(took[what])
		t.Logf("%-20s %4d writes, p50 %v, p99 %v", what, n, took[what][n/2], took[what][n*99/100])
	}
}

// toE1000e returns the single GPU to its driver.
var toE1000e = []gpu.PCIFunction{{PCI: gpu.PCIAddress{Bus: 2}, Driver: "e1000e"}}

// The process is killed before each write and after it. The same call, and the opposite one, complete in another.
func TestGuestKilled(t *testing.T) {
	calls := map[string]func() error{
		"bind":   func() error { return guest().Bind(context.Background(), gpu.PCIAddress{Bus: 2}) },
		"return": func() error { return guest().Return(context.Background(), toE1000e) },
	}
	want := map[string]string{"bind": "vfio-pci vfio-pci", "return": "e1000e (null)"}
	opposite := map[string]string{"bind": "return", "return": "bind"}
	for _, row := range [][2]string{{"bind", "bind"}, {"bind", "return"}, {"return", "return"}, {"return", "bind"}} {
		first, then := row[0], row[1]
		for n := 1; ; n++ {
			if err := calls[opposite[first]](); err != nil {
				t.Fatal(err)
			}
			c := start(t, first, strconv.Itoa(n))
			last := c.line()
			c.kill()
			if last == "done" {
				if n < 6 {
					t.Errorf("%s ended after %d steps", first, n)
				}
				break
			}
			if err := calls[then](); err != nil {
				t.Errorf("%s, killed %s, %s: %v", first, last, then, err)
			}
			if got := kernelState(t, single); got != want[then] {
				t.Errorf("%s, killed %s, %s: got %s, want %s", first, last, then, got, want[then])
			}
		}
	}
	if err := calls["return"](); err != nil {
		t.Error(err)
	}
}

// A user's program that sees only the device nodes opens the group, reads the regions of the function and maps one.
// Until it ends, Return says that the GPU is in use, also after a process was killed in Return.
func TestGuestInUse(t *testing.T) {
	b := guest()
	g := read(t, single)
	if err := b.Bind(t.Context(), g.PCI); err != nil {
		t.Fatal(err)
	}
	nodes, err := b.Nodes(g.PCI, false)
	if err != nil {
		t.Fatal(err)
	}
	user := startWith(t, nodes, "use", nodes[0].Path, nodes[1].Path, g.PCI.String())
	if got := user.line(); !strings.HasPrefix(got, "mapped ") {
		t.Fatalf("the program says %q", got)
	}
	killed := start(t, "return", "0")
	if got := killed.line(); got != "before /sys/bus/pci/drivers/vfio-pci/unbind" {
		t.Errorf("another process says %q", got)
	}
	_ = killed.cmd.Process.Kill() // the kernel ends it when it has finished the write
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := b.Return(ctx, ownOf(g))
		cancel()
		// If the other process has begun to unbind it, the kernel shows no driver any more.
		if !errors.Is(err, gpu.ErrBusy) || !strings.Contains(err.Error(), "/drivers/vfio-pci/unbind: ") &&
			!strings.Contains(err.Error(), "/"+single+"/reset: ") {
			t.Errorf("while a program uses it: got %v", err)
		}
	}
	user.kill()
	killed.kill()
	if err := b.Return(t.Context(), ownOf(g)); err != nil {
		t.Error(err)
	}
	if got := kernelState(t, single); got != "e1000e (null)" {
		t.Errorf("got %s", got)
	}
}

// Debian's kernels have no iommufd: then the error names what is missing.
func TestGuestIOMMUFD(t *testing.T) {
	b := guest()
	g := read(t, single)
	if err := b.Bind(t.Context(), g.PCI); err != nil {
		t.Fatal(err)
	}
	defer giveBack(t, g)
	nodes, err := b.Nodes(g.PCI, true)
	if !b.HasIOMMUFD() {
		t.Log("this kernel has no iommufd")
		if err == nil || !strings.Contains(err.Error(), "/dev/vfio/devices/vfio") {
			t.Errorf("got %v, %v", nodes, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	user := startWith(t, nodes, "use-iommufd", nodes[0].Path, nodes[1].Path)
	defer user.kill()
	if got := user.line(); !strings.HasPrefix(got, "mapped ") {
		t.Errorf("the program says %q", got)
	}
}

func read(t *testing.T, at string) GPU {
	t.Helper()
	gpus, err := guest().GPUs()
	i := slices.IndexFunc(gpus, func(g GPU) bool { return g.PCI == address(t, at) })
	if err != nil || i < 0 {
		t.Fatalf("%s is not in %v: %v", at, gpus, err)
	}
	return gpus[i]
}

func giveBack(t *testing.T, g GPU) {
	t.Helper()
	if err := guest().Return(context.Background(), ownOf(g)); err != nil {
		t.Error(err)
	}
}

// ownOf returns the functions of the GPU's card, as claims record them.
func ownOf(g GPU) (functions []gpu.PCIFunction) {
	for _, f := range g.Own {
		functions = append(functions, gpu.PCIFunction{PCI: f.PCI, Driver: f.Driver})
	}
	return functions
}

// kernelState writes the function as text: its driver, then what driver_override says.
func kernelState(t *testing.T, at string) string {
	t.Helper()
	b := guest()
	override, err := os.ReadFile(b.function(address(t, at), "driver_override"))
	if err != nil {
		t.Fatal(err)
	}
	return b.target(address(t, at), "driver") + " " + strings.TrimSpace(string(override))
}

// process is a child of the test, which says a line when it has come to where it shall be killed.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	output *bufio.Reader
}

func start(t *testing.T, args ...string) process {
	t.Helper()
	return startCommand(t, exec.Command("/proc/self/exe"), args)
}

// startWith starts a child as a user, in a root directory with nothing but the device nodes and the program.
func startWith(t *testing.T, nodes []gpu.DeviceNode, args ...string) process {
	t.Helper()
	root := t.TempDir()
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "program"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		file := filepath.Join(root, n.Path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		device := unix.Mkdev(uint32(n.Major), uint32(n.Minor))
		if err := errors.Join(unix.Mknod(file, unix.S_IFCHR|0o666, int(device)), os.Chmod(file, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/program")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return startCommand(t, cmd, args)
}

func startCommand(t *testing.T, cmd *exec.Cmd, args []string) process {
	t.Helper()
	cmd.Env = append(os.Environ(), "GUEST_CHILD="+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return process{t, cmd, bufio.NewReader(output)}
}

func (p process) line() string {
	p.t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the program has ended: %v", err)
	}
	return strings.TrimSpace(line)
}

func (p process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// child is what the processes of tests do.
func child(what string) {
	args := strings.Fields(what)
	var err error
	switch args[0] {
	case "use":
		err = use(args[1], args[2], args[3])
	case "use-iommufd":
		err = useIOMMUFD(args[1], args[2])
	default:
		left, _ := strconv.Atoi(args[1])
		b := guest()
		step := func(when, file string) {
			if left--; left <= 0 {
				fmt.Println(when, file)
			}
			if left == 0 {
				time.Sleep(time.Hour)
			}
		}
		b.Write = func(file, text string) error {
			step("before", file)
			defer step("after", file)
			return writeSysfs(file, text)
		}
		if args[0] == "bind" {
			err = b.Bind(context.Background(), gpu.PCIAddress{Bus: 2})
		} else {
			err = b.Return(context.Background(), toE1000e)
		}
		if err == nil {
			fmt.Println("done")
		}
	}
	if err != nil {
		fmt.Println(err)
	}
}
