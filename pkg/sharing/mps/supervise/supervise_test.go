// SPDX-License-Identifier: Apache-2.0

package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing/mps/supervise"
	simmps "github.com/gpudra/gpu-dra-driver/simulator/mps"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

// dirVariable and rootVariable make the test program a supervisor of its own.
const dirVariable, rootVariable = "SUPERVISE_TEST_DIR", "SUPERVISE_TEST_ROOT"

// TestMain lets the test program be the control program of simulated GPUs, and a supervisor that can be killed.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	if self, err := os.Readlink("/proc/self/exe"); err == nil && filepath.Base(self) == "nvidia-cuda-mps-control" {
		os.Exit(simmps.Program{Path: self, Args: os.Args[1:], Env: os.Getenv, In: os.Stdin, Out: os.Stdout,
			Err: os.Stderr}.Run(ctx))
	}
	if len(os.Args) > 1 && os.Args[1] == supervise.WithSharedMemory {
		fmt.Fprintln(os.Stderr, supervise.ExecWithSharedMemory(os.Args[2:]))
		os.Exit(1)
	}
	if dir := os.Getenv(dirVariable); dir != "" {
		_ = supervise.Run(ctx, supervise.SupervisorConfig{Dir: mps.Dir(dir), DriverRoot: os.Getenv(rootVariable),
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		os.Exit(0)
	}
	stop()
	os.Exit(m.Run())
}

// fixture is a simulated machine with the directory that plugin and supervisor share.
type fixture struct {
	*node.Node
	dir mps.Dir
	ids map[string]gpu.UUID // of the GPUs, by their names
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	top := t.TempDir()
	p, err := node.BuiltIn("t4-x2")
	must(t, err)
	n, err := node.Open(filepath.Join(top, "node"), p)
	must(t, err)
	v, err := n.View()
	must(t, err)
	w := fixture{n, mps.Dir(filepath.Join(top, "plugin/mps")), map[string]gpu.UUID{}}
	for i, c := range v.GPUs {
		w.ids[fmt.Sprintf("g%d", i)] = gpu.UUID(c.UUID)
	}
	self, err := os.ReadFile(os.Args[0])
	must(t, err)
	w.install(t, self)
	return w
}

// shm is the directory for shared memory.
func (w fixture) shm() string { return filepath.Join(w.Dir(), "shm") }

// install makes the program the control program of the driver.
func (w fixture) install(t *testing.T, program []byte) {
	t.Helper()
	path := filepath.Join(w.DriverRoot(), "usr/bin/nvidia-cuda-mps-control")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.RemoveAll(path))
	must(t, os.WriteFile(path, program, 0o755))
}

// supervise starts a supervisor. stop ends it as SIGTERM does.
func (w fixture) supervise(t *testing.T) (stop func()) {
	t.Helper()
	return w.superviseRoot(t, w.DriverRoot())
}

// superviseRoot starts a supervisor with the driver in root.
func (w fixture) superviseRoot(t *testing.T, root string) (stop func()) {
	t.Helper()
	return w.superviseLog(t, root, testLog{t})
}

// superviseLog is superviseRoot with another log.
func (w fixture) superviseLog(t *testing.T, root string, log io.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	config := supervise.SupervisorConfig{Dir: w.dir, DriverRoot: root, SharedMemory: w.shm(),
		Log: slog.New(slog.NewTextHandler(log, nil))}
	go func() { done <- supervise.Run(ctx, config) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			must(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// daemon is one of a GPU, under the GPU's name.
func (w fixture) daemon(name string) mps.Daemon {
	return mps.Daemon{ID: name, GPUs: []gpu.UUID{w.ids[name]}}
}

func (w fixture) await(t *testing.T, d mps.Daemon) mps.DaemonState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	must(t, w.dir.Await(ctx, d.ID))
	s, err := w.dir.State(d.ID)
	must(t, err)
	return s
}

func (w fixture) awaitMessage(t *testing.T, id, want string) mps.DaemonState {
	t.Helper()
	var s mps.DaemonState
	eventually(t, "a message with "+want, func() bool {
		var err error
		s, err = w.dir.State(id)
		must(t, err)
		return strings.Contains(s.Message, want)
	})
	return s
}

// command returns what the daemon answers to commands.
func (w fixture) command(id, commands string) string {
	cmd := exec.Command(filepath.Join(w.DriverRoot(), "usr/bin/nvidia-cuda-mps-control"))
	cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + w.dir.Pipe(id)}
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(commands, "; ", "\n") + "\n")
	out, _ := cmd.CombinedOutput()
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; ")
}

func (w fixture) gone(id string) bool {
	_, err := os.Stat(filepath.Join(string(w.dir), id))
	return os.IsNotExist(err)
}

// TestWithoutInotify: the programs of a node may use up what inotify has for root. All containers share it.
func TestWithoutInotify(t *testing.T) {
	for _, limit := range []string{"max_inotify_instances", "max_inotify_watches"} {
		t.Run(limit, func(t *testing.T) {
			w := newFixture(t)
			set := "echo 0 >/proc/sys/user/" + limit
			if out, err := inUserNamespace(set).CombinedOutput(); err != nil {
				t.Skipf("a user namespace cannot have its own limit here: %v: %s", err, out)
			}
			cmd := inUserNamespace(set + " && exec " + os.Args[0])
			cmd.Env = append(os.Environ(), dirVariable+"="+string(w.dir), rootVariable+"="+w.DriverRoot())
			must(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_ = cmd.Wait()
			})
			eventually(t, "it supervises", func() bool {
				supervised, _ := w.dir.Supervised()
				return supervised
			})
			d := w.daemon("g0")
			must(t, w.dir.Request(d))
			w.await(t, d)
			must(t, w.dir.Release("g0"))
			eventually(t, "it is gone", func() bool { return w.gone("g0") })
		})
	}
}

// inUserNamespace returns a command in a user namespace of its own, which has limits of its own.
func inUserNamespace(command string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	return cmd
}

func TestDaemonStartsAndStops(t *testing.T) {
	w := newFixture(t)
	stop := w.supervise(t)
	d := w.daemon("g0")
	d.ThreadPercentage, d.Memory = 30, map[gpu.UUID]uint64{w.ids["g0"]: 5 << 30}
	must(t, w.dir.Request(d))
	s := w.await(t, d)
	if s.PID == 0 || s.Restarts != 0 || s.Message != "" {
		t.Errorf("got %+v", s)
	}
	if got, want := w.command("g0", "get_default_active_thread_percentage; get_default_device_pinned_mem_limit 0"),
		"30.0; 5G"; got != want {
		t.Errorf("limits %s, want %s", got, want)
	}
	eventually(t, "there is a server", func() bool { return w.command("g0", "get_server_list") == fmt.Sprint(s.PID) })
	if info, err := os.Stat(w.dir.Pipe("g0")); err != nil || info.Mode().Perm() != 0o777 ||
		info.Mode()&os.ModeSticky == 0 {
		t.Errorf("pipe directory: %v, %v", info.Mode(), err)
	}
	client, err := simmps.Connect(t.Context(), w.dir.Pipe("g0"), "", "")
	must(t, err)
	if got := client.Hello.Devices; len(got) != 1 || got[0] != string(w.ids["g0"]) {
		t.Errorf("the daemon has %v", got)
	}
	must(t, client.Close())
	must(t, w.dir.Request(d)) // again
	must(t, w.dir.Release("g0"))
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
	if err := syscall.Kill(s.PID, 0); err != syscall.ESRCH {
		t.Errorf("the process: %v", err)
	}
	must(t, w.dir.Request(d))
	w.await(t, d)
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone again", func() bool { return w.gone("g0") })
	if info, err := os.Stat(w.shm()); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("directory for shared memory: %v, %v", info.Mode(), err)
	}
	must(t, os.WriteFile(filepath.Join(w.shm(), "of a client"), nil, 0o600))
	stop()
	for _, dir := range []string{filepath.Dir(string(w.dir)), w.shm()} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("something is left of %s: %v", dir, err)
		}
	}
}

func TestReactsToFileEvents(t *testing.T) {
	defer func(period time.Duration) { *supervise.ResyncPeriod = period }(*supervise.ResyncPeriod)
	*supervise.ResyncPeriod = time.Hour
	w := newFixture(t)
	stop := w.supervise(t)
	defer stop()
	must(t, w.BreakMPS("0", node.MPSFault{Refusing: true}))
	time.Sleep(200 * time.Millisecond) // so that it waits for events
	must(t, w.dir.Request(w.daemon("g0")))
	eventually(t, "an answer", func() bool { s, _ := w.dir.State("g0"); return s.Digest != "" })
}

func TestLimitsOfARunningDaemon(t *testing.T) {
	w := newFixture(t)
	w.supervise(t)
	id := w.ids["g0"]
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	eventually(t, "there is a server", func() bool { return w.command("g0", "get_server_list") == fmt.Sprint(pid) })
	queries := fmt.Sprintf("get_default_active_thread_percentage; get_default_device_pinned_mem_limit 0; "+
		"get_active_thread_percentage %d; get_device_pinned_mem_limit %d 0", pid, pid)
	for _, tt := range []struct {
		threads int
		memory  map[gpu.UUID]uint64
		want    string
	}{
		{40, nil, "40.0; 40.0"},
		{40, map[gpu.UUID]uint64{id: 3 << 30}, "40.0; 3G; 40.0; 3G"},
		{20, map[gpu.UUID]uint64{id: 100<<20 + 5}, "20.0; 100M; 20.0; 100M"},
		{0, nil, "100.0; 1024G; 100.0; 1024G"},
	} {
		d.ThreadPercentage, d.Memory = tt.threads, tt.memory
		must(t, w.dir.Request(d))
		if s := w.await(t, d); s.PID != pid || s.Restarts != 0 {
			t.Errorf("it is another one: %+v", s)
		}
		if got := w.command("g0", queries); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	d.MultiUser = true // for which it takes another process
	must(t, w.dir.Request(d))
	if s := w.await(t, d); s.PID == pid || s.Restarts != 0 {
		t.Errorf("it is the same one: %+v", s)
	}
}

func TestDaemonRestartsAfterCrash(t *testing.T) {
	w := newFixture(t)
	w.supervise(t)
	d := w.daemon("g0")
	d.ThreadPercentage = 30
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	pipe, err := os.Stat(w.dir.Pipe("g0"))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "it is another one", func() bool {
		s, err := w.dir.State("g0")
		must(t, err)
		return s.Ready && s.PID != pid
	})
	if s := w.await(t, d); s.Restarts != 1 {
		t.Errorf("got %+v", s)
	}
	if again, err := os.Stat(w.dir.Pipe("g0")); err != nil || !os.SameFile(pipe, again) {
		t.Errorf("containers have another pipe directory mounted: %v", err)
	}
	if got := w.command("g0", "get_default_active_thread_percentage"); got != "30.0" {
		t.Errorf("its limit is %s", got)
	}
	must(t, w.BreakMPS("0", node.MPSFault{Dead: true}))
	s := w.awaitMessage(t, "g0", "simulated fault: daemons on gpu-3b-00-0 die")
	if s.Ready || s.Restarts < 2 {
		t.Errorf("got %+v", s)
	}
	if err := w.dir.Check(d.ID); err == nil || !strings.Contains(err.Error(), "simulated fault") {
		t.Errorf("check: %v", err)
	}
	must(t, w.HealMPS("0"))
	w.await(t, d)
}

func TestDaemonRefusesToStart(t *testing.T) {
	w := newFixture(t)
	must(t, w.BreakMPS("0", node.MPSFault{Refusing: true}))
	w.supervise(t)
	d, other := w.daemon("g0"), w.daemon("g1")
	must(t, w.dir.Request(d))
	must(t, w.dir.Request(other))
	w.await(t, other) // which does not wait for the first
	s := w.awaitMessage(t, "g0", "it ended: exit status 1: ")
	if s.Ready || s.Restarts != 0 || !strings.Contains(s.Message, "simulated fault: daemons on gpu-3b-00-0 refuse to "+
		"start") {
		t.Errorf("got %+v", s)
	}
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
	must(t, w.dir.Request(d))
	w.awaitMessage(t, "g0", "refuse to start")
	must(t, w.HealMPS("0"))
	if s := w.await(t, d); s.Restarts != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestSlowDaemon(t *testing.T) {
	t.Parallel()
	const slow = 3 * time.Second
	w := newFixture(t)
	must(t, w.BreakMPS("0", node.MPSFault{Slow: slow}))
	w.supervise(t)
	d := w.daemon("g0")
	began := time.Now()
	must(t, w.dir.Request(d))
	eventually(t, "it starts", func() bool { s, _ := w.dir.State("g0"); return s.Digest != "" })
	if err := w.dir.Check(d.ID); err == nil || !strings.Contains(err.Error(), "starting") {
		t.Errorf("check: %v", err)
	}
	d.ThreadPercentage = 50 // changed while it starts
	must(t, w.dir.Request(d))
	w.await(t, d)
	if took := time.Since(began); took < slow {
		t.Errorf("it took %s", took)
	}
	if got := w.command("g0", "get_default_active_thread_percentage"); got != "50.0" {
		t.Errorf("its limit is %s", got)
	}
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
	must(t, w.BreakMPS("0", node.MPSFault{Slow: time.Hour}))
	must(t, w.dir.Request(d))
	eventually(t, "it starts again", func() bool { s, _ := w.dir.State("g0"); return s.Digest != "" })
	must(t, w.dir.Release("g0")) // while it starts
	eventually(t, "it is gone again", func() bool { return w.gone("g0") })
}

// fake is a control program that notes its commands after its PID, and first does what the script says. It sets and
// reads back limits.
func fake(script string) []byte {
	return []byte(`#!/bin/sh
up=$CUDA_MPS_PIPE_DIRECTORY/control_privileged
if [ "$1" = -f ]; then touch $up; trap 'exit 0' TERM; ` + "echo some output; echo and more >&2; while [ -e $up ]; do sleep 0.05; done; exit; fi\n" + `
[ -e $up ] || { echo Cannot find MPS control daemon process; exit 1; }
while read -r line; do
	echo "$$ $line" >> "$CUDA_MPS_LOG_DIRECTORY/commands"
	case $line in
	` + script + `
	quit*) rm -f $up;;
	set_default_a*) echo "${line##* }.0" | tee $up.percent;;
	get_default_a*) cat $up.percent 2>/dev/null || echo 100.0;;
	set_default_d*) echo "${line##* }" > $up.memory;;
	get_default_d*) [ ! -e $up.memory ] || cat $up.memory;;
	esac
done
`)
}

// withFake is a fixture with a fake control program and a supervisor.
func withFake(t *testing.T, script string) fixture {
	t.Helper()
	w := newFixture(t)
	w.install(t, fake(script))
	w.supervise(t)
	return w
}

// Each start of the control program costs milliseconds, which a pod with the first share of a GPU waits for.
func TestOneStartOfTheControlProgram(t *testing.T) {
	w := withFake(t, "")
	d := w.daemon("g0")
	d.ThreadPercentage, d.Memory = 30, map[gpu.UUID]uint64{w.ids["g0"]: 1 << 30}
	must(t, w.dir.Request(d))
	w.await(t, d)
	text, err := os.ReadFile(filepath.Join(w.dir.Log("g0"), "commands"))
	must(t, err)
	pid, _, _ := strings.Cut(string(text), " ")
	want := ""
	for _, command := range []string{"set_default_active_thread_percentage 30",
		"set_default_device_pinned_mem_limit 0 1024M", "get_default_active_thread_percentage",
		"get_default_device_pinned_mem_limit 0", "get_server_list"} {
		want += pid + " " + command + "\n"
	}
	if !strings.HasPrefix(string(text), want) { // the command that starts a server follows
		t.Errorf("got commands\n%s\nwant\n%s", text, want)
	}
}

func TestRefusedLimits(t *testing.T) {
	t.Parallel()
	const sent = "set limits: set_default_active_thread_percentage 30; set_default_device_pinned_mem_limit 0 1024M; " +
		"get_default_active_thread_percentage; get_default_device_pinned_mem_limit 0; get_server_list: "
	for _, tt := range []struct{ name, script, want string }{
		{"by the exit code", "set_*) echo no; exit 3;;",
			sent + "exit status 3: no"},
		{"by the text", "set_*mem*) echo Invalid argument;;",
			sent + "refused: 30.0; Invalid argument; 30.0"},
		{"in silence", "get_default_a*) echo 100.0;;", `active thread percentage is "100.0" after it was set to 30`},
		{"a memory limit in silence", "set_default_d*) ;; get_default_d*) ;;", `is "" after it was set to 1024M`},
		{"memory, and a server", "get_server_list) echo 77;; get_default_d*) ;;",
			`is "77" after it was set to 1024M`},
		{"another memory limit", "get_default_d*) echo 2G;;", `is "2G" after it was set to 1024M`},
		{"of a server", "get_server_list) echo Servers: 77;; set_a*) echo Failed;;",
			"set limits of server 77: set_active_thread_percentage 77 30; set_device_pinned_mem_limit 77 0 1024M: " +
				"refused: Failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := withFake(t, tt.script)
			d := w.daemon("g0")
			d.ThreadPercentage, d.Memory = 30, map[gpu.UUID]uint64{w.ids["g0"]: 1 << 30}
			must(t, w.dir.Request(d))
			if s := w.awaitMessage(t, "g0", tt.want); s.Ready {
				t.Errorf("got %+v", s)
			}
		})
	}
	t.Run("never of a daemon without limits", func(t *testing.T) {
		w := withFake(t, "get_server_list) echo 77;; get_default*) echo Invalid;; '') echo Unknown command;;")
		d := w.daemon("g0")
		must(t, w.dir.Request(d))
		if s := w.await(t, d); s.Restarts != 0 {
			t.Errorf("got %+v", s)
		}
	})
	t.Run("but by its end, if it ends then", func(t *testing.T) {
		w := withFake(t, "set_default_a*) rm -f $up; echo Lost connection; exit 1;;")
		d := w.daemon("g0")
		d.ThreadPercentage = 30
		must(t, w.dir.Request(d))
		w.awaitMessage(t, "g0", "it ended: exit status 0: some output; and more")
	})
	t.Run("not while it takes no commands", func(t *testing.T) {
		w := newFixture(t)
		w.install(t, fake("set_default_a*) if [ -e $up.again ]; then echo 30.0 | tee $up.percent; else "+
			"touch $up.again; echo Cannot send command to MPS control daemon process; exit 1; fi;;"))
		log := &countingLog{testLog: testLog{t}, text: "started again"}
		w.superviseLog(t, w.DriverRoot(), log)
		d := w.daemon("g0")
		d.ThreadPercentage = 30
		must(t, w.dir.Request(d))
		w.await(t, d)
		if n := log.count.Load(); n > 0 {
			t.Errorf("it was started again %d times", n)
		}
	})
	t.Run("of a running one", func(t *testing.T) {
		w := withFake(t, "*30) echo Invalid;;")
		d := w.daemon("g0")
		must(t, w.dir.Request(d))
		pid := w.await(t, d).PID
		d.ThreadPercentage = 30
		must(t, w.dir.Request(d))
		if s := w.awaitMessage(t, "g0", "refused: Invalid"); s.PID != pid || s.Ready {
			t.Errorf("got %+v", s)
		}
		d.ThreadPercentage = 20
		must(t, w.dir.Request(d))
		if s := w.await(t, d); s.PID != pid {
			t.Errorf("got %+v", s)
		}
	})
}

// A control program that does not know the flag for several users may be gone before it is started without the flag.
func TestNoMultiUserAndGone(t *testing.T) {
	w := newFixture(t)
	w.install(t, []byte("#!/bin/sh\nrm $0\necho Cannot find MPS control daemon process\nexit 1\n"))
	w.supervise(t)
	d := w.daemon("g0")
	d.MultiUser = true
	must(t, w.dir.Request(d))
	if s := w.awaitMessage(t, "g0", "nvidia-cuda-mps-control is in no directory for programs"); s.Ready {
		t.Errorf("got %+v", s)
	}
}

// TestNoMultiUserInALaterLine: what clients make a daemon print does not make it one for a single user.
func TestNoMultiUserInALaterLine(t *testing.T) {
	const claims = "echo Cannot find MPS control daemon process; exit 1"
	t.Run("before it is ready", func(t *testing.T) {
		w := newFixture(t)
		w.install(t, []byte("#!/bin/sh\necho Starting control daemon; "+claims+"\n"))
		log := &countingLog{testLog: testLog{t}, text: "take turns"}
		w.superviseLog(t, w.DriverRoot(), log)
		d := w.daemon("g0")
		d.MultiUser = true
		must(t, w.dir.Request(d))
		w.awaitMessage(t, "g0", "Starting control daemon; Cannot find")
		if n := log.count.Load(); n > 0 {
			t.Errorf("it was started %d times for a single user", n)
		}
	})
	t.Run("after it was ready", func(t *testing.T) {
		w := newFixture(t)
		w.install(t, []byte(strings.Replace(string(fake("")), "done; exit; fi", "done; "+claims+"; fi", 1)))
		w.supervise(t)
		d := w.daemon("g0")
		d.MultiUser = true
		must(t, w.dir.Request(d))
		pid := w.await(t, d).PID
		must(t, os.Remove(filepath.Join(w.dir.Pipe("g0"), "control_privileged"))) // it ends
		var s mps.DaemonState
		eventually(t, "it is another one", func() bool {
			var err error
			s, err = w.dir.State("g0")
			must(t, err)
			return s.Ready && s.PID != pid
		})
		if s.SingleUser || s.Restarts != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

func TestADaemonThatDoesNotQuit(t *testing.T) {
	t.Parallel()
	w := withFake(t, "quit*) ;;") // SIGTERM ends it
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	w.await(t, d)
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
}

func TestNoDriver(t *testing.T) {
	w := newFixture(t)
	must(t, os.RemoveAll(filepath.Join(w.DriverRoot(), "usr/bin")))
	w.supervise(t)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	w.awaitMessage(t, "g0", "nvidia-cuda-mps-control is in no directory for programs below "+w.DriverRoot())
	long := w.daemon("g0")
	long.ID = strings.Repeat("x", 100)
	must(t, w.dir.Request(long))
	w.awaitMessage(t, long.ID, "would have more than the 107 characters that are possible")
}

// The libraries of the driver are found, and no others of its root.
func TestLibraries(t *testing.T) {
	w := newFixture(t)
	libraries := filepath.Join(w.DriverRoot(), "usr/lib/x86_64-linux-gnu")
	for _, name := range []string{"libcuda.so.1", "libnvidia-x.so.5", "libc.so.6"} {
		must(t, os.WriteFile(filepath.Join(libraries, name), nil, 0o644))
	}
	w.supervise(t)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	w.await(t, d)
	found, err := filepath.Glob(filepath.Join(w.dir.Libraries("g0"), "*"))
	must(t, err)
	var got []string
	for _, path := range found {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		got = append(got, filepath.Base(path))
	}
	if got, want := strings.Join(got, " "), "libcuda.so.1 libnvidia-ml.so.580.95.05 libnvidia-x.so.5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A wanted.json that cannot be read changes nothing.
func TestWhatCannotBeRead(t *testing.T) {
	w := newFixture(t)
	w.supervise(t)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	must(t, os.WriteFile(filepath.Join(string(w.dir), "g0", mps.RequestedFile), []byte("{"), 0o644))
	time.Sleep(200 * time.Millisecond)
	other := w.daemon("g1")
	must(t, w.dir.Request(other))
	w.await(t, other)
	if s, err := w.dir.State("g0"); err != nil || s.PID != pid || !s.Ready {
		t.Errorf("got %+v, %v", s, err)
	}
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
}

// The driver may be of a newer version than the supervisor, which an update leaves alone.
func TestADriverThatSaysMore(t *testing.T) {
	w := newFixture(t)
	w.supervise(t)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	file := filepath.Join(string(w.dir), "g0", mps.RequestedFile)
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte(strings.Replace(string(text), "{", `{"news": 1,`, 1)), 0o644))
	if s := w.await(t, d); s.PID != pid {
		t.Errorf("got %+v", s)
	}
}

// Daemons end with their supervisor, whichever way it goes, and the next starts them again.
func TestSupervisorsComeAndGo(t *testing.T) {
	w := newFixture(t)
	d, other := w.daemon("g0"), w.daemon("g1")
	must(t, w.dir.Request(d))
	must(t, w.dir.Request(other))

	first := exec.Command(os.Args[0])
	first.Env = append(os.Environ(), dirVariable+"="+string(w.dir), rootVariable+"="+w.DriverRoot())
	must(t, first.Start())
	pid := w.await(t, d).PID
	w.await(t, other)
	must(t, first.Process.Kill())
	_ = first.Wait()
	eventually(t, "its daemon is gone", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })

	must(t, w.dir.Release("g1")) // meanwhile
	stop := w.supervise(t)
	eventually(t, "it is another one", func() bool {
		s, err := w.dir.State("g0")
		must(t, err)
		return s.Ready && s.PID != pid
	})
	if s := w.await(t, d); s.Restarts != 1 {
		t.Errorf("after a kill: %+v", s)
	}
	eventually(t, "what is not wanted is gone", func() bool { return w.gone("g1") })

	pid = w.await(t, d).PID
	stop()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the process: %v", err)
	}
	s, err := w.dir.State("g0")
	if must(t, err); s.Ready || s.Restarts != 2 || s.Message != "its supervisor was stopped: is its pod running on "+
		"this node?" {
		t.Errorf("after SIGTERM: %+v", s)
	}
	w.supervise(t)
	if s := w.await(t, d); s.Restarts != 2 {
		t.Errorf("after the next start: %+v", s)
	}
}

// One supervisor waits for another that still has daemons.
func TestTwoSupervisors(t *testing.T) {
	w := newFixture(t)
	stop := w.supervise(t)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	w.supervise(t)
	time.Sleep(300 * time.Millisecond)
	if s := w.await(t, d); s.PID != pid {
		t.Errorf("got %+v, the first had %d", s, pid)
	}
	stop()
	eventually(t, "the second has it", func() bool {
		s, err := w.dir.State("g0")
		must(t, err)
		return s.Ready && s.PID != pid
	})
}

// While a supervisor resets the states of a killed one, those that it has not reached yet do not count either, and no
// other supervisor can start.
func TestNoStateOfAKilledSupervisorCounts(t *testing.T) {
	w := newFixture(t)
	d, other := w.daemon("g0"), w.daemon("g1")
	must(t, w.dir.Request(d))
	must(t, w.dir.Request(other))
	requested, err := w.dir.Requested()
	must(t, err)
	for _, a := range requested {
		must(t, w.dir.Report(a.ID, mps.DaemonState{Digest: a.Digest, PID: 5, Ready: true}))
	}
	first := filepath.Join(string(w.dir), "g0", "state.json")
	report, err := os.ReadFile(first)
	must(t, err)
	must(t, os.Remove(first))
	must(t, unix.Mkfifo(first, 0o600)) // a reader waits for the test

	w.supervise(t)
	var pipe *os.File
	eventually(t, "the supervisor reads the first state", func() bool {
		pipe, err = os.OpenFile(first, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return err == nil
	})
	defer pipe.Close()
	if err := w.dir.Check("g1"); !errors.Is(err, mps.ErrNotReady) {
		t.Errorf("got %v, want %v", err, mps.ErrNotReady)
	}
	dir, err := os.Open(string(w.dir))
	must(t, err)
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("lock of another supervisor: got %v, want %v", err, unix.EWOULDBLOCK)
	}
	_, err = pipe.Write(report)
	must(t, errors.Join(err, pipe.Close()))
	eventually(t, "the first state is a file again", func() bool {
		info, err := os.Lstat(first)
		must(t, err)
		return info.Mode().IsRegular()
	})
	for _, d := range []mps.Daemon{d, other} {
		if s := w.await(t, d); s.PID == 5 || s.Restarts != 1 {
			t.Errorf("%s: got %+v", d.ID, s)
		}
	}
}

// A state that could not be written is written later, and counts each restart once.
func TestStateThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	log := &countingLog{testLog: testLog{t}, text: "could not be reported"}
	w.superviseLog(t, w.DriverRoot(), log)
	d := w.daemon("g0")
	must(t, w.dir.Request(d))
	pid := w.await(t, d).PID
	file := filepath.Join(string(w.dir), "g0", "state.json")
	must(t, os.Remove(file))
	must(t, os.MkdirAll(filepath.Join(file, "full"), 0o755))
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "neither its end nor the next start can be reported", func() bool { return log.count.Load() >= 2 })
	must(t, os.RemoveAll(file))
	if s := w.await(t, d); s.PID == pid || s.Restarts != 1 {
		t.Errorf("got %+v, the first was %d", s, pid)
	}
}

// countingLog counts the lines with the text.
type countingLog struct {
	testLog
	text  string
	count atomic.Int32
}

func (l *countingLog) Write(b []byte) (int, error) {
	if strings.Contains(string(b), l.text) {
		l.count.Add(1)
	}
	return l.testLog.Write(b)
}

// Asking for daemons and taking that back, over and over, ends with what was asked for last.
func TestChurn(t *testing.T) {
	w := newFixture(t)
	w.supervise(t)
	d := w.daemon("g0")
	for i := range 30 {
		d.ThreadPercentage = 1 + i
		must(t, w.dir.Request(d))
		time.Sleep(time.Duration(i*i%7) * 10 * time.Millisecond)
		must(t, w.dir.Release("g0"))
		time.Sleep(time.Duration(i*i%5) * 5 * time.Millisecond)
	}
	must(t, w.dir.Request(d))
	w.await(t, d)
	if got := w.command("g0", "get_default_active_thread_percentage"); got != "30.0" {
		t.Errorf("its limit is %s", got)
	}
	must(t, w.dir.Release("g0"))
	eventually(t, "it is gone", func() bool { return w.gone("g0") })
}

func TestPauses(t *testing.T) {
	w := newFixture(t)
	count := filepath.Join(t.TempDir(), "count")
	w.install(t, []byte("#!/bin/sh\n[ \"$1\" = -f ] && echo x >> "+count+"\nexit 1\n"))
	w.supervise(t)
	began := time.Now()
	must(t, w.dir.Request(w.daemon("g0")))
	started := func() int {
		text, _ := os.ReadFile(count)
		return strings.Count(string(text), "x")
	}
	eventually(t, "it is started again", func() bool { return started() >= 2 })
	time.Sleep(time.Until(began.Add(time.Second)))
	if n, took := started(), time.Since(began); float64(n) > 6*took.Seconds() {
		t.Errorf("it was started %d times within %s", n, took)
	}
}
