// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/gpudra/gpu-dra-driver/simulator/node"
	"github.com/gpudra/gpu-dra-driver/test/tmpfs"
)

// The test program starts itself as other processes: one variable has their command, the other the node's directory.
const (
	roleVariable = "SIM_NODE_TEST_ROLE"
	dirVariable  = "SIM_NODE_TEST_DIR"
)

func TestMain(m *testing.M) {
	role, dir := os.Getenv(roleVariable), os.Getenv(dirVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := runCommand(role, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runCommand runs a process's command: "count N" adds one to the memory used N times, "read" prints it for each line of
// input, "call N" makes N calls of the first GPU and prints an E for each that fails, "use" has NVML open and prints
// that, until its input ends, and so does "serve", which serves a client of MPS on the first GPU.
func runCommand(role, dir string) error {
	n, err := node.Attach(dir)
	if err != nil {
		return err
	}
	if times, ok := strings.CutPrefix(role, "count "); ok {
		count, err := strconv.Atoi(times)
		for range count {
			if err == nil {
				err = n.Change(func(s *node.State) error {
					s.GPUs[0].MemoryUsed++
					return nil
				})
			}
		}
		return err
	}
	if times, ok := strings.CutPrefix(role, "call "); ok {
		return playCalls(n, times)
	}
	if role == "serve" {
		v, err := n.View()
		if err != nil {
			return err
		}
		gpu := v.GPUs[0].UUID
		defer n.ServeMPS(gpu)()
		if err := n.SetProcesses(gpu, []node.Process{{PID: 7, Name: "client", Memory: 1 << 20}}); err != nil {
			return err
		}
		fmt.Println("serving")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}
	if role == "use" {
		defer n.Use()()
		fmt.Println("using")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		v, err := n.View()
		if err != nil {
			return err
		}
		fmt.Println(v.GPUs[0].State.MemoryUsed)
	}
	return nil
}

func playCalls(n *node.Node, times string) error {
	count, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	v, err := n.View()
	if err != nil {
		return err
	}
	for range count {
		_, e, err := n.TakeFault(v.GPUs[0].UUID, "GetName")
		if err != nil {
			return err
		}
		if e != "" {
			fmt.Print("E")
		}
	}
	return nil
}

func process(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+dir)
	c.Stderr = os.Stderr
	return c
}

func TestConcurrentProcesses(t *testing.T) {
	const processes, each = 5, 2000
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	var all []*exec.Cmd
	for range processes {
		c := process(t, fmt.Sprintf("count %d", each), dir)
		must(t, c.Start())
		all = append(all, c)
	}
	done := make(chan error)
	go func() {
		var err error
		for _, c := range all {
			if e := c.Wait(); e != nil {
				err = e
			}
		}
		done <- err
	}()
	for last, running := uint64(0), true; running; { // a reader meanwhile sees whole states only, and never goes back
		select {
		case err := <-done:
			must(t, err)
			running = false
		default:
		}
		v, err := n.View()
		must(t, err)
		used := v.GPUs[0].State.MemoryUsed
		if used < last {
			t.Fatalf("read %d after %d", used, last)
		}
		last = used
	}
	v, err := n.View()
	must(t, err)
	if got := v.GPUs[0].State.MemoryUsed; got != processes*each {
		t.Errorf("%d changes, want %d", got, processes*each)
	}
}

func TestChangeIsVisibleToOtherProcesses(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	reader := process(t, "read", dir)
	in, err := reader.StdinPipe()
	must(t, err)
	out, err := reader.StdoutPipe()
	must(t, err)
	must(t, reader.Start())
	answers := bufio.NewScanner(out)
	for want := range uint64(20) {
		must(t, n.SetMemoryUsed("0", want))
		fmt.Fprintln(in)
		if !answers.Scan() {
			t.Fatal("the reader has ended")
		}
		if got := answers.Text(); got != fmt.Sprint(want) {
			t.Errorf("the other process reads %s, want %d", got, want)
		}
	}
	must(t, in.Close())
	must(t, reader.Wait())
}

func TestConcurrentGoroutines(t *testing.T) {
	const routines, each = 8, 50
	n := open(t, tmpfs.Dir(t), profile(t, "t4-x2"))
	done := make(chan error)
	for range routines {
		go func() {
			var err error
			for range each {
				if e := n.Change(func(s *node.State) error { s.GPUs[1].MemoryUsed++; return nil }); e != nil {
					err = e
				}
			}
			done <- err
		}()
	}
	for range routines {
		must(t, <-done)
	}
	v, err := n.View()
	must(t, err)
	if got := v.GPUs[1].State.MemoryUsed; got != routines*each {
		t.Errorf("%d changes, want %d", got, routines*each)
	}
}

// The clients of an MPS daemon no longer use the GPU when it is killed. They do not come back with the next daemon.
func TestKilledDaemonHasNoClients(t *testing.T) {
	dir := tmpfs.Dir(t)
	n := open(t, dir, profile(t, "t4-x2"))
	must(t, n.AddProcess("0", "other", 1<<20))
	serve := func() *exec.Cmd {
		daemon := process(t, "serve", dir)
		_, err := daemon.StdinPipe()
		must(t, err)
		out, err := daemon.StdoutPipe()
		must(t, err)
		must(t, daemon.Start())
		if line := bufio.NewScanner(out); !line.Scan() || line.Text() != "serving" {
			t.Fatalf("got %q", line.Text())
		}
		return daemon
	}
	names := func() string {
		v, err := n.View()
		must(t, err)
		var out []string
		for _, p := range v.GPUs[0].State.Processes {
			out = append(out, p.Name)
		}
		return strings.Join(out, " ")
	}
	daemon := serve()
	if got, want := names(), "other client"; got != want {
		t.Errorf("while it runs: got %q, want %q", got, want)
	}
	must(t, daemon.Process.Kill())
	_ = daemon.Wait() // it was killed
	if got, want := names(), "other"; got != want {
		t.Errorf("after its death: got %q, want %q", got, want)
	}
	v, err := n.View()
	must(t, err)
	release := n.ServeMPS(v.GPUs[0].UUID)
	defer release()
	if got, want := names(), "other"; got != want {
		t.Errorf("with the next one: got %q, want %q", got, want)
	}
}
