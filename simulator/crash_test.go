// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/steps"
	"github.com/gpudra/gpu-dra-driver/simulator/node"
)

const both = " a gpu-0 gpu-1"

func TestCrashAtStep(t *testing.T) {
	undisturbed := t.TempDir()
	mustBe(t, machine(t, undisturbed).RecordSteps())
	want := map[node.Verb]string{} // the files after the verb
	for _, verb := range []node.Verb{node.Prepare, node.Unprepare} {
		if got := process(undisturbed, string(verb)+both, 0); got != "ok" {
			t.Fatal(got)
		}
		want[verb] = files(t, undisturbed)
	}
	v, err := machine(t, undisturbed).View()
	mustBe(t, err)
	recorded := map[node.Verb][]string{node.Prepare: v.Steps.Prepare, node.Unprepare: v.Steps.Unprepare}
	const known = "map[prepare:[lock_devices find_holders find_device_files find_device_files find_driver_files " +
		"write_driver_spec write_record write_claim_spec] unprepare:[lock_devices delete_record remove_claim_spec]]"
	if got := fmt.Sprint(recorded); got != known {
		t.Fatalf("steps %s, want %s", got, known)
	}
	for _, verb := range []node.Verb{node.Prepare, node.Unprepare} {
		for i, name := range recorded[verb] {
			for _, order := range []node.Crash{{At: i + 1, Verb: verb}, {At: i + 1, Verb: verb, After: true},
				{At: i + 1}} {
				t.Run(fmt.Sprint(order, " ", name), func(t *testing.T) {
					dir := t.TempDir()
					n := machine(t, dir)
					if verb == node.Unprepare {
						if got := process(dir, "prepare"+both, 0); got != "ok" {
							t.Fatal(got)
						}
					}
					mustBe(t, n.OrderCrash(order))
					for i, want := range []string{"signal: killed", "ok", "ok"} {
						if got := process(dir, string(verb)+both, 0); got != want {
							t.Fatalf("call %d: %s, want %s", i, got, want)
						}
					}
					if got := files(t, dir); got != want[verb] {
						t.Errorf("got:\n%s\nwant:\n%s", got, want[verb])
					}
					if got := n.String(); strings.Contains(got, "crash") {
						t.Errorf("the order is still there:\n%s", got)
					}
				})
			}
		}
	}
}

func TestCrashNotReached(t *testing.T) {
	for _, tt := range []struct {
		name  string
		order node.Crash
	}{
		{"a step that never comes", node.Crash{At: 9, Verb: node.Prepare}},
		{"the other verb", node.Crash{At: 1, Verb: node.Unprepare}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			n := machine(t, dir)
			mustBe(t, n.OrderCrash(tt.order))
			if got := process(dir, "prepare"+both, 0); got != "ok" {
				t.Errorf("got %s, want ok", got)
			}
			if got, want := n.String(), tt.order.String(); !strings.Contains(got, want) {
				t.Errorf("got:\n%s\nwant it to have %s", got, want)
			}
			mustBe(t, n.CancelCrash())
			if got := n.String(); strings.Contains(got, "crash") {
				t.Errorf("the order is still there:\n%s", got)
			}
		})
	}
}

// In a container the driver has PID 1, which its own SIGKILL does not reach.
func TestCrashAsPID1(t *testing.T) {
	dir := t.TempDir()
	mustBe(t, machine(t, dir).OrderCrash(node.Crash{At: 6, After: true}))
	for _, want := range []string{"exit status 137", "ok"} {
		got := process(dir, "prepare"+both, syscall.CLONE_NEWPID)
		if os.Getuid() != 0 && strings.HasPrefix(got, notStarted) {
			t.Skip(got)
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestCrashOnlyOneProcess(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		mustBe(t, machine(t, dir).OrderCrash(node.Crash{At: 2}))
		got := make([]string, 2)
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() { got[i] = process(dir, fmt.Sprintf("prepare claim-%d gpu-%d", i, i), 0) })
		}
		all.Wait()
		slices.Sort(got)
		if want := []string{"ok", "signal: killed"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Concurrent calls count their steps separately.
func TestStepsOfConcurrentCalls(t *testing.T) {
	dir := t.TempDir()
	n := machine(t, dir)
	d := stepped(t, dir)
	died := make(chan bool, 100)
	d.crashes.die = func() { died <- true }
	mustBe(t, n.RecordSteps())
	mustBe(t, n.OrderCrash(node.Crash{At: 5}))
	errs := make(chan error)
	for i := range 8 {
		go func() {
			name, device := fmt.Sprint("claim-", i), fmt.Sprint("gpu-", i)
			err := serve(d, node.Prepare, name, device)
			if err == nil {
				err = serve(d, node.Unprepare, name)
			}
			errs <- err
		}()
	}
	for range 8 {
		mustBe(t, <-errs)
	}
	if len(died) != 1 {
		t.Fatalf("%d crashes, want 1", len(died))
	}
	v, err := n.View()
	mustBe(t, err)
	const want = "{[lock_devices find_holders find_device_files find_driver_files write_driver_spec write_record " +
		"write_claim_spec] " +
		"[lock_devices delete_record remove_claim_spec]}"
	if got := fmt.Sprint(*v.Steps); got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
}

func TestRecordSteps(t *testing.T) {
	dir := t.TempDir()
	n := machine(t, dir)
	d := stepped(t, dir)
	recorded := func() string {
		v, err := n.View()
		mustBe(t, err)
		if v.Steps == nil {
			return "nothing"
		}
		return fmt.Sprint(len(v.Steps.Prepare), " ", len(v.Steps.Unprepare))
	}
	for _, tt := range []struct {
		name string
		do   func() error
		want string
	}{
		{"nothing before it is asked for", func() error { return serve(d, node.Prepare, "a", "gpu-0") }, "nothing"},
		{"no call yet", n.RecordSteps, "0 0"},
		{"a call that has nothing to do", func() error { return serve(d, node.Prepare, "a", "gpu-0") }, "0 0"},
		{"a call that went well", func() error { return serve(d, node.Unprepare, "a") }, "0 3"},
		{"a claim that has no record", func() error { return serve(d, node.Unprepare, "a") }, "0 3"},
		{"another", func() error { return serve(d, node.Prepare, "b", "gpu-0", "gpu-1", "gpu-2") }, "9 3"},
		{"a call that failed", func() error { _ = serve(d, node.Prepare, "c", "gpu-2"); return nil }, "9 3"},
		{"no more", n.ForgetSteps, "nothing"},
	} {
		mustBe(t, tt.do())
		if got := recorded(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// The cost of a step while nothing is ordered.
func BenchmarkStep(b *testing.B) {
	c := &crashes{machine: machine(b, b.TempDir()), die: die}
	ctx := steps.With(context.Background(), c.observe)
	for b.Loop() {
		if err := steps.Do(ctx, steps.Prepare, func(ctx context.Context) error {
			return steps.Do(ctx, steps.FindHolders, func(context.Context) error { return nil })
		}); err != nil {
			b.Fatal(err)
		}
	}
}
