// SPDX-License-Identifier: Apache-2.0

package mps_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/nvidia"
)

// fixture is a simulated machine and the environment of its programs.
type fixture struct {
	*node.Node
	pipe, log string
	env       map[string]string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") // not t.TempDir: other users must get there
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	n, err := node.Open(filepath.Join(dir, "node"), p)
	must(t, err)
	w := fixture{n, filepath.Join(dir, "pipe"), filepath.Join(dir, "log"), map[string]string{}}
	must(t, os.Mkdir(w.pipe, 0o755))
	must(t, os.Mkdir(w.log, 0o755))
	v, err := n.View()
	must(t, err)
	w.env[mps.PipeVariable], w.env[mps.LogVariable], w.env["CUDA_VISIBLE_DEVICES"] = w.pipe, w.log, v.GPUs[0].UUID
	return w
}

func (w fixture) program(in string, args ...string) (p mps.Program, out *strings.Builder) {
	out = &strings.Builder{}
	return mps.Program{
		Path: filepath.Join(w.DriverRoot(), "usr/bin/nvidia-cuda-mps-control"), Args: args, In: strings.NewReader(in),
		Env: func(name string) string { return w.env[name] }, Out: out, Err: &bytes.Buffer{},
	}, out
}

// start starts a daemon and returns when it answers. stop ends it as SIGTERM does and returns its exit code.
func (w fixture) start(t *testing.T, args ...string) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	p, _ := w.program("", append([]string{"-f"}, args...)...)
	go func() { code <- p.Run(ctx) }()
	stop = sync.OnceValue(func() int {
		cancel()
		return <-code
	})
	t.Cleanup(func() { stop() })
	eventually(t, "the daemon answers", func() bool {
		return !strings.Contains(w.run("get_server_list"),
			"Cannot find")
	})
	return stop
}

// run returns the daemon's answers to the commands (separated by semicolons) with its PID and the UUIDs masked.
func (w fixture) run(commands string) string {
	commands = strings.ReplaceAll(commands, "PID", fmt.Sprint(os.Getpid()))
	p, out := w.program(strings.ReplaceAll(commands, "; ", "\n") + "\n")
	code := p.Run(context.Background())
	text := strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(out.String(), fmt.Sprint(os.Getpid()), "PID"), "\n",
		"; "))
	text = strings.TrimSuffix(regexp.MustCompile(`GPU-[0-9a-f-]{36}`).ReplaceAllString(text, "UUID"), ";")
	if code != 0 {
		text += fmt.Sprintf(" exit %d", code)
	}
	return text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (w fixture) connect(t *testing.T, threads, memory string) *mps.Client {
	t.Helper()
	c, err := mps.Connect(t.Context(), w.pipe, threads, memory)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// allocate returns the daemon's answer on one line.
func allocate(t *testing.T, c *mps.Client, mebibytes uint64) string {
	t.Helper()
	a, err := c.Allocate(0, mebibytes<<20)
	must(t, err)
	if a.Error != "" {
		return a.Error
	}
	return fmt.Sprintf("%dMiB of %dMiB, %g%%", a.Held>>20, a.Limit>>20, a.Threads)
}

func TestCommands(t *testing.T) {
	for _, tt := range []struct{ name, commands, want string }{
		{"no server at first", "get_server_list", ""},
		{"defaults at first", "get_default_active_thread_percentage; get_default_device_pinned_mem_limit 0",
			"100.0"},
		{"defaults", "set_default_active_thread_percentage 30; get_default_active_thread_percentage", "30.0; 30.0"},
		{"default memory", "set_default_device_pinned_mem_limit 0 5000M; get_default_device_pinned_mem_limit 0",
			"4G"},
		{"gigabytes", "set_default_device_pinned_mem_limit 0 2048M; get_default_device_pinned_mem_limit 0", "2G"},
		{"a server has the defaults of its start", "set_default_active_thread_percentage 30; start_server -uid 0; " +
			"set_default_active_thread_percentage 40; " +
			"get_server_list; get_server_status PID; get_active_thread_percentage PID",
			"30.0; 40.0; PID; ACTIVE; 30.0"},
		{"limits of a server", "start_server -uid 0; set_active_thread_percentage PID 20; " +
			"set_device_pinned_mem_limit PID 0 1G; " +
			"get_active_thread_percentage PID; get_device_pinned_mem_limit PID 0; " +
			"get_default_device_pinned_mem_limit 0", "20.0; 20.0; 1G"},
		{"clients", "start_server -uid 0; get_client_list PID; get_device_client_list", "0: UUID"},
		{"two servers", "start_server -uid 0; start_server -uid 1", ""},
		{"shut down", "start_server -uid 0; shutdown_server PID; get_server_list", ""},
		{"a server that is none", "get_server_status 1", "Server 1 not found"},
		{"a device that is none", "set_default_device_pinned_mem_limit 1 1G",
			""},
		{"a device by UUID", "set_default_device_pinned_mem_limit GPU-1 1G",
			""},
		{"a size that is none", "set_default_device_pinned_mem_limit 0 x; get_default_device_pinned_mem_limit 0", ""},
		{"a percentage that is none", "set_default_active_thread_percentage 0",
			"100.0"},
		{"a command that is none", "get_servers", `Unknown command "get_servers"`},
		{"too many arguments", "get_server_list 1", ""},
		{"the next goes on", "get_servers; get_default_active_thread_percentage",
			`Unknown command "get_servers"; 100.0`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t)
			w.start(t)
			if got := strings.ReplaceAll(w.run(tt.commands), "  exit", " exit"); got != tt.want {
				t.Errorf("\ngot  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestQuit(t *testing.T) {
	w := newFixture(t)
	if got, want := w.run("get_server_list"), "Cannot find MPS control daemon process exit 1"; got != want {
		t.Errorf("before: got %s, want %s", got, want)
	}
	ended := w.start(t)
	c := w.connect(t, "", "")
	if got := allocate(t, c, 100); got != "100MiB of 0MiB, 100%" {
		t.Error(got)
	}
	done := make(chan string)
	go func() { done <- w.run("quit") }()
	select {
	case got := <-done:
		t.Fatalf("it quit under its client: %s", got)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, c.Close())
	if got := <-done; got != "" {
		t.Error(got)
	}
	eventually(t, "it is gone", func() bool { return strings.Contains(w.run(""), "Cannot find") })
	ended()
	for _, name := range []string{"control", "control_privileged", "nvidia-cuda-mps-control.pid"} {
		if _, err := os.Stat(filepath.Join(w.pipe, name)); err != nil {
			t.Errorf("the real daemon leaves it: %v", err)
		}
	}
	w.start(t)
	c = w.connect(t, "", "")
	w.run("quit -t 0") // which does not wait
	c.Wait()
	if got := w.String(); strings.Contains(got, "process") {
		t.Errorf("left on the node:\n%s", got)
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		name, commands, threads, memory string
		ask                             []uint64 // MiB
		want                            string
	}{
		{"none", "", "", "", []uint64{100, 200}, "100MiB of 0MiB, 100%; 300MiB of 0MiB, 100%"},
		{"of the client", "", "30", "0=500M", []uint64{400, 100, 1}, "400MiB of 500MiB, 30%; 500MiB of 500MiB, 30%; " +
			"CUDA_ERROR_OUT_OF_MEMORY"},
		// NVIDIA's figures of R615: 0=2G,1=4G, with one GPU.
		{"of a device that is not there: none at all", "set_default_device_pinned_mem_limit 0 1G", "", "0=1M,1=2M",
			[]uint64{4096}, "4096MiB of 0MiB, 100%"},
		{"by default", "set_default_active_thread_percentage 50; set_default_device_pinned_mem_limit 0 1G", "", "",
			[]uint64{1024, 1},
			"1024MiB of 1024MiB, 50%; CUDA_ERROR_OUT_OF_MEMORY"},
		{"the client's are lower", "set_default_active_thread_percentage 50; set_default_device_pinned_mem_limit 0 1G",
			"20", "0=1M", []uint64{1}, "1MiB of 1MiB, 20%"},
		{"the client cannot raise them", "set_default_active_thread_percentage 50; " +
			"set_default_device_pinned_mem_limit 0 1G", "90", "0=2G", []uint64{1},
			"1MiB of 1024MiB, 50%"},
		{"of the server", "start_server -uid 0; set_active_thread_percentage PID 25; set_device_pinned_mem_limit PID " +
			"0 3M", "", "", []uint64{3}, "3MiB of 3MiB, 25%"},
		{"the card's memory", "", "", "", []uint64{14915, 14914, 1}, "CUDA_ERROR_OUT_OF_MEMORY; 14914MiB of 0MiB, " +
			"100%; CUDA_ERROR_OUT_OF_MEMORY"},
		{"nobody holds less than nothing", "", "", "0=1M", []uint64{1 << 43, 1},
			"CUDA_ERROR_OUT_OF_MEMORY; 1MiB of 1MiB, 100%"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t)
			must(t, w.SetMemoryUsed("0", 1<<19)) // so that the card has 14914.5 MiB left
			w.start(t)
			w.run(tt.commands)
			c := w.connect(t, tt.threads, tt.memory)
			var got []string
			for _, mebibytes := range tt.ask {
				got = append(got, allocate(t, c, mebibytes))
			}
			if got := strings.Join(got, "; "); got != tt.want {
				t.Errorf("\ngot  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestInvalidLimits(t *testing.T) {
	w := newFixture(t)
	w.start(t)
	for _, tt := range []struct{ threads, memory, want string }{
		{"0", "", `active thread percentage "0": want more than 0 and at most 100`},
		{"101", "", `active thread percentage "101": want more than 0 and at most 100`},
		{"", "GPU-1=1G", `memory limit "GPU-1=1G": want DEVICE=SIZE, the device by its number`},
		{"", "0=1", `memory limit "1": want an integer followed by G or M`},
	} {
		c := w.connect(t, tt.threads, tt.memory)
		if got := c.Hello; got.Error != "CUDA_ERROR_INVALID_VALUE" || got.Detail != tt.want {
			t.Errorf("got %+v, want %s", got, tt.want)
		}
	}
}

// The node shows what connected clients hold.
func TestProcesses(t *testing.T) {
	w := newFixture(t)
	stop := w.start(t)
	lines := func() string {
		var out []string
		for line := range strings.Lines(w.String()) {
			if strings.Contains(line, " process ") || strings.Contains(line, "used=") {
				out = append(out, strings.TrimSpace(line[strings.LastIndex(line, " "):]))
			}
		}
		return strings.Join(out, " ")
	}
	a, b := w.connect(t, "30", ""), w.connect(t, "", "")
	if got := lines(); got != "" {
		t.Errorf("before: %s", got)
	}
	allocate(t, a, 100)
	allocate(t, b, 200)
	if got, want := lines(), "used=300MiB threads=30% threads=100%"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	must(t, a.Close())
	eventually(t, "one has left", func() bool { return lines() == "used=200MiB threads=100%" })
	stop()
	b.Wait()
	if got := lines(); got != "" {
		t.Errorf("after: %s", got)
	}
	// The next daemon removes what a killed one left.
	must(t, w.SetProcesses("0", []node.Process{{PID: 1, Memory: 1}}))
	w.start(t)
	if got := lines(); got != "" {
		t.Errorf("after the next start: %s", got)
	}
}

// asUser runs f as another user.
func asUser(uid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			panic(errno)
		}
		f()
	}()
	<-done
}

func TestUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("being somebody else needs root")
	}
	for _, tt := range []struct {
		name  string
		args  []string
		waits bool
		limit time.Duration // after which it is clear that it waits
	}{{"take turns", nil, true, 300 * time.Millisecond}, {"at once", []string{"-multiuser-server"}, false,
		10 * time.Second}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFixture(t)
			w.start(t, tt.args...)
			first := w.connect(t, "", "")
			in := make(chan *mps.Client)
			go asUser(1000, func() {
				c, err := mps.Connect(t.Context(), w.pipe, "", "")
				if err != nil {
					t.Error(err)
				}
				in <- c
			})
			var second *mps.Client
			select {
			case second = <-in:
				if tt.waits {
					t.Error("it did not wait")
				}
			case <-time.After(tt.limit):
				if !tt.waits {
					t.Error("it waits")
				}
				must(t, first.Close())
				second = <-in
			}
			if got := allocate(t, second, 10); got != "10MiB of 0MiB, 100%" {
				t.Error(got)
			}
			_ = second.Close()
		})
	}
	t.Run("commands are the owner's", func(t *testing.T) {
		w := newFixture(t)
		w.start(t)
		var got string
		asUser(1000, func() { got = w.run("get_server_list") })
		if want := "Cannot find MPS control daemon process exit 1"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// A client that stops waiting blocks no other.
func TestConnectCanceled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("being somebody else needs root")
	}
	w := newFixture(t)
	w.start(t)
	first := w.connect(t, "", "")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	asUser(1000, func() {
		if _, err := mps.Connect(ctx, w.pipe, "", ""); err == nil || errors.Is(err, mps.ErrNoDaemon) {
			t.Errorf("error %v", err)
		}
	})
	second := w.connect(t, "", "") // of the first user again
	must(t, first.Close())
	must(t, second.Close())
}

// TestWedge: after a client was killed with work in flight, the others end, and later ones hang while every command
// answers as before. A new server has the limits of the daemon.
func TestWedge(t *testing.T) {
	w := newFixture(t)
	w.start(t)
	w.run("set_default_device_pinned_mem_limit 0 1G")
	first := w.connect(t, "", "")
	must(t, w.BreakMPS("0", node.MPSFault{Wedged: true}))
	first.Wait()
	_ = first.Close()
	eventually(t, "the client has left", func() bool { return w.run("get_client_list PID") == "" })
	hanging := make(chan error)
	go func() {
		_, err := mps.Connect(t.Context(), w.pipe, "", "")
		hanging <- err
	}()
	eventually(t, "the next client is listed", func() bool { return w.run("get_client_list PID") != "" })
	select {
	case err := <-hanging:
		t.Errorf("it does not hang: error %v", err)
	default:
	}
	if got := w.run("get_server_status PID"); got != "ACTIVE" {
		t.Errorf("the server is %s", got)
	}
	w.run("shutdown_server PID -f")
	if err := <-hanging; err == nil {
		t.Error("it survives its server")
	}
	if got, want := allocate(t, w.connect(t, "", ""), 10), "10MiB of 1024MiB, 100%"; got != want {
		t.Errorf("a client of the next server: got %s, want %s", got, want)
	}
}

func TestFaults(t *testing.T) {
	w := newFixture(t)
	run := func() (code int, text string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		p, _ := w.program("", "-f")
		var out bytes.Buffer
		p.Err = &out
		code = p.Run(ctx)
		return code, out.String()
	}
	must(t, w.BreakMPS("0", node.MPSFault{Refusing: true}))
	if code, text := run(); code != 1 || !strings.Contains(text, "simulated fault: daemons on gpu-3b-00-0 refuse to "+
		"start") {
		t.Errorf("refusing: %d %s", code, text)
	}
	must(t, w.BreakMPS("0", node.MPSFault{Dead: true}))
	if code, text := run(); code != 1 || !strings.Contains(text, "simulated fault: daemons on gpu-3b-00-0 die") {
		t.Errorf("dead: %d %s", code, text)
	}
	must(t, w.BreakMPS("1", node.MPSFault{Dead: true})) // not one of its GPUs
	must(t, w.BreakMPS("0", node.MPSFault{Slow: 300 * time.Millisecond}))
	began := time.Now()
	w.start(t)
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("slow: it took %s", took)
	}
	c := w.connect(t, "", "")
	must(t, w.BreakMPS("0", node.MPSFault{Dead: true}))
	c.Wait() // until it dies
	must(t, w.HealMPS("0"))
	must(t, w.HealMPS("1"))
	eventually(t, "it is gone", func() bool { return strings.Contains(w.run(""), "Cannot find") })
	w.start(t)
	if code, text := run(); code != 1 || !strings.Contains(text, "an instance of this daemon is already running") {
		t.Errorf("a second one: %d %s", code, text)
	}
}

// onPartition returns a fixture whose daemon uses a partition.
func onPartition(t *testing.T) fixture {
	t.Helper()
	w := newFixture(t)
	p, err := node.BuiltIn("dgx-h100")
	must(t, err)
	w.Node, err = node.Open(w.Dir(), p)
	must(t, err)
	must(t, w.SwitchMIG("0", hwprofile.Enabled))
	_, err = w.CreatePartition("0", "1g.10gb@4")
	must(t, err)
	v, err := w.View()
	must(t, err)
	w.env["CUDA_VISIBLE_DEVICES"] = v.GPUs[0].Partitions()[0].Compute.UUID
	return w
}

func TestPartition(t *testing.T) {
	w := onPartition(t)
	w.start(t)
	c := w.connect(t, "50", "0=2G")
	allocate(t, c, 1024)
	const line = "/1g.10gb@4 process "
	if !strings.Contains(w.String(), line) || !strings.Contains(w.String(), "memory=1024MiB threads=50%") {
		t.Errorf("the node prints\n%s\nwant it to contain %s", w, line)
	}
	v, err := w.View()
	must(t, err)
	if err := w.DestroyComputeInstance("0", 11, 0); node.CodeOf(err) != hwprofile.InUse {
		t.Errorf("destroyed under a client: %v", err)
	}
	if a, err := c.Allocate(0, 2<<30); err != nil || a.Error != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("above the limit: %+v, %v", a, err)
	}
	must(t, w.DeletePartition("0", ""))
	if a, err := c.Allocate(0, 1<<20); err != nil || a.Error != "CUDA_ERROR_DEVICE_UNAVAILABLE" {
		t.Errorf("without the partition: %+v, %v", a, err)
	}
	if got := v.GPUs[0].Partitions()[0].Compute.Processes; len(got) != 1 {
		t.Errorf("%d processes, want 1", len(got))
	}
}

func TestGPUInMIGMode(t *testing.T) {
	w := onPartition(t)
	for _, tt := range []struct{ devices, want string }{
		{"0", "CUDA_VISIBLE_DEVICES: gpu-1b-00-0 is in MIG mode: name one of its partitions\n"},
		{"MIG-0", "CUDA_VISIBLE_DEVICES: no partition \"MIG-0\"\n"},
	} {
		w.env["CUDA_VISIBLE_DEVICES"] = tt.devices
		p, _ := w.program("", "-f")
		var log bytes.Buffer
		p.Err = &log
		if code := p.Run(t.Context()); code != 1 || log.String() != tt.want {
			t.Errorf("%s: exit %d, %s; want %s", tt.devices, code, log.String(), tt.want)
		}
	}
}

// TestNVIDIA compares the simulated control program with NVIDIA's own, of several driver branches. What takes a GPU is
// not compared: servers and clients.
func TestNVIDIA(t *testing.T) {
	commands := []string{
		"get_default_active_thread_percentage",
		"set_default_active_thread_percentage 30", "get_default_active_thread_percentage",
		"set_default_active_thread_percentage 300", "set_default_active_thread_percentage 0",
		"set_default_active_thread_percentage -5", "set_default_active_thread_percentage x",
		"set_default_active_thread_percentage", "set_default_active_thread_percentage 40 50",
		"set_default_active_thread_percentage 12.34", "get_default_active_thread_percentage",
		"get_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit",
		"get_default_device_pinned_mem_limit 99", "set_default_device_pinned_mem_limit 99 1G",
		"set_default_device_pinned_mem_limit 0", "set_default_device_pinned_mem_limit 0 x",
		"get_default_device_pinned_mem_limit 0",
		"get_server_list", "get_server_status 5", "get_active_thread_percentage 5", "set_active_thread_percentage 5 30",
		"get_device_pinned_mem_limit 5 0", "set_device_pinned_mem_limit 5 0 1G", "get_client_list 5",
		"shutdown_server 5", "start_server", "start_server -uid x", "help", "QUIT", "",
	}
	for _, size := range []string{"1M", "512M", "1024M", "1536M", "3000M", "1048576M", "1048577M", "100", "2G", "5Q",
		"3145728K"} {
		commands = append(commands, "set_default_device_pinned_mem_limit 0 "+size,
			"get_default_device_pinned_mem_limit 0")
	}
	for _, branch := range nvidia.Branches(t) {
		t.Run(branch.Suite, func(t *testing.T) {
			w := newFixture(t)
			must(t, w.ReloadDriver(branch.Version, nil))
			w.start(t)
			program := branch.MPSControl()
			pipe := t.TempDir()
			env := []string{mps.PipeVariable + "=" + pipe, mps.LogVariable + "=" + t.TempDir()}
			daemon := exec.Command(program, "-f")
			daemon.Env = env
			must(t, daemon.Start())
			defer func() { _ = daemon.Process.Kill(); _ = daemon.Wait() }()
			ask := func(command string) string {
				cmd := exec.Command(program)
				cmd.Env, cmd.Stdin = env, strings.NewReader(command+"\n")
				out, err := cmd.CombinedOutput()
				if err != nil {
					return fmt.Sprintf("%s%v", out, err)
				}
				return string(out)
			}
			eventually(t, "an answer of NVIDIA's daemon", func() bool { return ask("get_server_list") == "" })
			for _, command := range commands {
				if branch.Suite == "bookworm" && strings.HasPrefix(command, "get_server_status") {
					continue // R535 does not know it, and the driver does not use it
				}
				p, out := w.program(command + "\n")
				if code := p.Run(t.Context()); code != 0 {
					fmt.Fprintf(out, "exit status %d", code)
				}
				if got, want := out.String(), ask(command); got != want {
					t.Errorf("%s: the simulated program answers %q, NVIDIA's %q", command, got, want)
				}
			}
			for _, flags := range [][]string{{"-x"}, {"-f", "-x"}} {
				none := t.TempDir()
				cmd := exec.Command(program, flags...)
				cmd.Env = []string{mps.PipeVariable + "=" + none}
				want, err := cmd.CombinedOutput()
				w.env[mps.PipeVariable] = none
				p, out := w.program("", flags...)
				code := p.Run(t.Context())
				w.env[mps.PipeVariable] = w.pipe
				if strings.Contains(string(want), "Copyright") {
					want = []byte(out.String()) // a long text about the flags, from R555 on
					if !strings.HasPrefix(out.String(), "The simulated nvidia-cuda-mps-control") {
						t.Errorf("%s: got %q, want a text about the flags", flags, out)
					}
				}
				if out.String() != string(want) || fmt.Sprintf("exit status %d", code) != fmt.Sprint(err) {
					t.Errorf("%s: got %q and exit status %d, want %q and %v", flags, out, code, want, err)
				}
			}
		})
	}
}
