// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu/sim/node"
)

const both = " a gpu-0 gpu-1"

func TestTheDriverCrashesOnceAtTheStepThatWasOrdered(t *testing.T) {
	undisturbed := t.TempDir()
	must(t, machine(t, undisturbed).RecordSteps())
	want := map[node.Verb]string{} // the files after the verb
	for _, verb := range []node.Verb{node.Prepare, node.Unprepare} {
		if got := process(undisturbed, string(verb)+both, 0); got != "ok" {
			t.Fatal(got)
		}
		want[verb] = files(t, undisturbed)
	}
	v, err := machine(t, undisturbed).View()
	must(t, err)
	steps := map[node.Verb][]string{node.Prepare: v.Steps.Prepare, node.Unprepare: v.Steps.Unprepare}
	const known = "map[prepare:[Holders Access Access DriverAccess WriteDriver WriteClaim Put] unprepare:[RemoveClaim Delete]]"
	if got := fmt.Sprint(steps); got != known {
		t.Fatalf("steps %s, want %s", got, known)
	}
	for _, verb := range []node.Verb{node.Prepare, node.Unprepare} {
		for i, name := range steps[verb] {
			for _, order := range []node.Crash{{At: i + 1, Verb: verb}, {At: i + 1, Verb: verb, After: true}, {At: i + 1}} {
				t.Run(fmt.Sprint(order, " ", name), func(t *testing.T) {
					dir := t.TempDir()
					n := machine(t, dir)
					if verb == node.Unprepare {
						if got := process(dir, "prepare"+both, 0); got != "ok" {
							t.Fatal(got)
						}
					}
					must(t, n.OrderCrash(order))
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

func TestOrdersThatAreNotCarriedOut(t *testing.T) {
	for _, tt := range []struct {
		name  string
		order node.Crash
	}{
		{"a step that never comes", node.Crash{At: 8, Verb: node.Prepare}},
		{"the other verb", node.Crash{At: 1, Verb: node.Unprepare}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			n := machine(t, dir)
			must(t, n.OrderCrash(tt.order))
			if got := process(dir, "prepare"+both, 0); got != "ok" {
				t.Errorf("got %s, want ok", got)
			}
			if got, want := n.String(), tt.order.String(); !strings.Contains(got, want) {
				t.Errorf("got:\n%s\nwant it to have %s", got, want)
			}
			must(t, n.CancelCrash())
			if got := n.String(); strings.Contains(got, "crash") {
				t.Errorf("the order is still there:\n%s", got)
			}
		})
	}
}

// In a container the driver is process 1, which its own SIGKILL does not reach.
func TestTheFirstProcessOfAContainerCrashesToo(t *testing.T) {
	dir := t.TempDir()
	must(t, machine(t, dir).OrderCrash(node.Crash{At: 6, After: true}))
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

func TestOfTwoInstancesOneCrashes(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		must(t, machine(t, dir).OrderCrash(node.Crash{At: 2}))
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

// Each call has its own count, however many there are at a time.
func TestStepsOfCallsAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	n := machine(t, dir)
	p := stepped(t, dir)
	s := p.Specs.(steppedSpecs).steps
	died := make(chan string, 100)
	s.die = func() { died <- fmt.Sprint(s.current().done) }
	must(t, n.RecordSteps())
	must(t, n.OrderCrash(node.Crash{At: 5}))
	errs := make(chan error)
	for i := range 8 {
		go func() {
			name, device := fmt.Sprint("claim-", i), fmt.Sprint("gpu-", i)
			err := serve(p, node.Prepare, name, device)
			if err == nil {
				err = serve(p, node.Unprepare, name)
			}
			errs <- err
		}()
	}
	for range 8 {
		must(t, <-errs)
	}
	if len(died) != 1 {
		t.Fatalf("%d crashes, want 1", len(died))
	}
	if got, want := <-died, "[Holders Access DriverAccess WriteDriver WriteClaim]"; got != want {
		t.Errorf("crash after %s, want %s", got, want)
	}
	v, err := n.View()
	must(t, err)
	if got, want := fmt.Sprint(*v.Steps), "{[Holders Access DriverAccess WriteDriver WriteClaim Put] [RemoveClaim Delete]}"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
	if len(s.calls) != 0 {
		t.Errorf("calls left: %v", s.calls)
	}
}

func TestWhatIsRecordedOfSteps(t *testing.T) {
	dir := t.TempDir()
	n := machine(t, dir)
	p := stepped(t, dir)
	recorded := func() string {
		v, err := n.View()
		must(t, err)
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
		{"nothing before it is asked for", func() error { return serve(p, node.Prepare, "a", "gpu-0") }, "nothing"},
		{"no call yet", n.RecordSteps, "0 0"},
		{"a call that has nothing to do", func() error { return serve(p, node.Prepare, "a", "gpu-0") }, "0 0"},
		{"a call that went well", func() error { return serve(p, node.Unprepare, "a") }, "0 2"},
		{"a claim that has no record", func() error { return serve(p, node.Unprepare, "a") }, "0 2"},
		{"another", func() error { return serve(p, node.Prepare, "b", "gpu-0", "gpu-1", "gpu-2") }, "8 2"},
		{"a call that failed", func() error { _ = serve(p, node.Prepare, "c", "gpu-2"); return nil }, "8 2"},
		{"no more", n.ForgetSteps, "nothing"},
	} {
		must(t, tt.do())
		if got := recorded(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// What a step costs while nothing is ordered.
func BenchmarkStep(b *testing.B) {
	s := &steps{machine: machine(b, b.TempDir()), calls: map[string]*call{}, die: die}
	end := s.begin(context.Background())
	defer end()
	for b.Loop() {
		if err := s.step(node.Prepare, "Access", func() error { return nil }); err != nil {
			b.Fatal(err)
		}
		s.current().done = nil
	}
}
