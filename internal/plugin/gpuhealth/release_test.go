// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
)

const asked = "NVML is closed until 2026-11-22T12:01:00Z, as asked for"

func TestReleaseOnRequest(t *testing.T) {
	n := newTestNode(t)
	if err := health.RequestRelease(n.dir, start, time.Minute); err != nil {
		t.Fatal(err)
	}
	n.pass(time.Second)
	n.want("NVML is closed", n.released == asked)
	const closed = "gpu-0: unmonitored=:NoSchedule\ngpu-0-mig-1g10gb-0: unmonitored=:NoSchedule\n" +
		"gpu-0-mig-1g10gb-2: unmonitored=:NoSchedule\ngpu-1: unmonitored=:NoSchedule"
	n.wantTaints("NVML is closed", closed)
	if saved, err := health.Load(n.dir); err != nil || saved.Release != asked {
		t.Errorf("got %q, %v, want %q saved", saved.Release, err, asked)
	}

	n.restart(n.dir, "a")
	n.pause("")
	n.want("NVML is closed before the first discovery of a new instance", n.released == asked)
	n.tick()
	if saved, err := health.Load(n.dir); err != nil || len(saved.GPUs) != 2 {
		t.Errorf("got %v, %v, want two GPUs saved, which have not been discovered yet", saved.GPUs, err)
	}

	n.look()
	n.pass(58 * time.Second)
	n.wantTaints("the time is not over", closed)
	n.pass(time.Second)
	n.want("NVML is opened", n.released == "")
	n.wantTaints("the time is over, and the GPUs are not read yet", closed)
	n.want("the GPUs are discovered", n.discovered > 0)
	n.unreadable("no driver")
	n.pass(time.Second)
	if saved, err := health.Load(n.dir); err != nil || saved.GPUs[0].Unwatched != "no driver" {
		t.Errorf("got %+v, %v, want why the GPUs are not read", saved.GPUs, err)
	}
	n.look()
	n.wantTaints("the GPUs are read", "")
}

// TestUnread: without a driver nothing is known of any GPU, until the next discovery that works.
func TestUnread(t *testing.T) {
	n := newTestNode(t)
	for range 2 {
		n.unreadable("NVML cannot be initialised: Driver/library version mismatch")
		n.wantTaints("no driver", "gpu-0: unmonitored=:NoSchedule\ngpu-0-mig-1g10gb-0: unmonitored=:NoSchedule\n"+
			"gpu-0-mig-1g10gb-2: unmonitored=:NoSchedule\ngpu-1: unmonitored=:NoSchedule")
	}
	if r := n.Reports()[0]; r.Status != health.Unknown || !strings.Contains(r.Message, "version mismatch") {
		t.Errorf("got %+v, want unknown health and the reason", r)
	}
	n.look()
	n.wantTaints("the driver is back", "")
	n.pass(time.Second)
	n.restart(n.dir, "a")
	n.unreadable("no driver")
	n.pass(time.Second)
	if saved, err := health.Load(n.dir); err != nil || len(saved.GPUs) != 2 || saved.GPUs[0].Unwatched != "no driver" {
		t.Errorf("got %+v, %v, want two GPUs that are not watched", saved.GPUs, err)
	}
	n.look()
	n.want("the devices are published each time", n.changes == 4)
}

// TestPaused: while NVML is closed, every discovery fails, and Discovered is not called.
func TestPaused(t *testing.T) {
	n := newTestNode(t)
	n.pause("the driver is about to be replaced")
	n.want("NVML is closed", n.released == "the driver is about to be replaced")
	n.pass(time.Hour)
	if err := health.RequestRelease(n.dir, n.clock, time.Minute); err != nil {
		t.Fatal(err)
	}
	n.pass(time.Second)
	n.want("a person asks, too", n.released == "NVML is closed until 2026-11-22T13:01:00Z, as asked for")
	n.pause("")
	if err := health.RequestRelease(n.dir, n.clock, 0); err != nil {
		t.Fatal(err)
	}
	n.pass(time.Second)
	n.want("NVML is opened", n.released == "")
	n.look()
	n.wantTaints("at the end", "")
}

func TestStopWatching(t *testing.T) {
	const stopped = "gpu-1 can be reset, which an open event session would prevent"
	sick := func(n *testNode) { n.xid("GPU-1", 48) }
	for _, row := range []struct {
		name string
		do   func(n *testNode)
		want string
	}{
		{"a healthy GPU", func(*testNode) {}, ""},
		{"a GPU that waits for a reset", sick, stopped},
		{"one that waits for a reboot", func(n *testNode) { n.xid("GPU-1", 79) }, ""},
		{"one that can be used until its reset", func(n *testNode) { n.answer("GPU-1", gpu.Health{RowsPending: true}) },
			""},
		{"one that a claim holds", func(n *testNode) {
			n.held = []gpu.UUID{"GPU-1"}
			sick(n)
		}, ""},
		{"one whose settings would be lost", func(n *testNode) {
			n.found.Persistent = false
			sick(n)
		}, ""},
		{"one that does not answer", func(n *testNode) {
			sick(n)
			n.found.GPUs[1].Lost = true
		}, ""},
		{"one that is just being reset", func(n *testNode) {
			sick(n)
			n.look()
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = true, true
		}, stopped},
		{"one that is lost", func(n *testNode) {
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = true, true
		}, ""},
		{"one that answers only that it must be reset", func(n *testNode) {
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone, n.found.GPUs[1].ResetRequired = true, true, true
		}, stopped},
		{"one that an ended claim has left as it was", func(n *testNode) {
			n.answer("GPU-1", gpu.Health{NotRestored: true})
		}, stopped},
		{"not for long", func(n *testNode) {
			sick(n)
			n.look()
			n.pass(drainTime - time.Second)
			n.pass(time.Second)
		}, ""},
		{"nearly as long", func(n *testNode) {
			sick(n)
			n.look()
			n.pass(drainTime - time.Second)
		}, stopped},
		{"again after another claim", func(n *testNode) {
			sick(n)
			n.look()
			n.pass(time.Hour)
			n.held = []gpu.UUID{"GPU-1"}
			n.look()
			n.held = nil
		}, stopped},
		{"until it has been reset", func(n *testNode) {
			sick(n)
			n.look()
			n.pass(time.Minute)
			n.answer("GPU-1", gpu.Health{RecoveryAction: gpu.RecoveryNone})
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newTestNode(t)
			row.do(n)
			n.look()
			n.tick()
			if got := n.stopped; got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestClear(t *testing.T) {
	n := newTestNode(t)
	n.answer("GPU-1", gpu.Health{LinksUp: []int{0, 1}})
	n.answer("GPU-1", gpu.Health{LinksUp: []int{0}})
	n.xid("GPU-1", 54)
	n.xid("GPU-0", 54)
	n.texts()
	for _, name := range []string{"gpu-1", "gpu-7"} {
		if err := health.RequestClear(n.dir, name); err != nil {
			t.Fatal(err)
		}
	}
	n.pass(time.Second)
	n.wantEvents("two conditions are cleared", "node Normal: GPURecovered\nnode Normal: GPURecovered")
	n.answer("GPU-1", gpu.Health{LinksUp: []int{0}})
	n.wantTaints("the other GPU stays", "gpu-0: xid=54:NoSchedule since 0s\n"+
		"gpu-0-mig-1g10gb-0: xid=54:NoSchedule since 0s\ngpu-0-mig-1g10gb-2: xid=54:NoSchedule since 0s")
	n.xid("GPU-1", 54)
	n.pass(time.Second)
	if got := n.taintsNow(); health.ClearRequested(n.dir, "gpu-1") || health.ClearRequested(n.dir, "gpu-7") {
		t.Errorf("a request is there for ever; taints:\n%s", got)
	}
	n.restart(n.dir, "a")
	n.answer("GPU-1", gpu.Health{LinksUp: []int{0}})
	n.wantTaints("after a restart, the cleared link is not down", "gpu-0: xid=54:NoSchedule since 0s\n"+
		"gpu-0-mig-1g10gb-0: xid=54:NoSchedule since 0s\ngpu-0-mig-1g10gb-2: xid=54:NoSchedule since 0s\n"+
		"gpu-1: xid=54:NoSchedule since 1s")
}

func TestForget(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(n *testNode)
		want string
	}{
		{"nothing has ever been wrong", func(*testNode) {}, ""},
		{"something is wrong", func(n *testNode) { n.xid("GPU-1", 48) }, "health.json let-go-nvml "},
		{"something was wrong", func(n *testNode) {
			n.xid("GPU-1", 999)
			n.pass(10 * time.Minute)
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newTestNode(t)
			row.do(n)
			n.flush()
			if err := health.RequestRelease(n.dir, start, time.Minute); err != nil {
				t.Fatal(err)
			}
			if err := health.Forget(n.dir); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(n.dir)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, e := range entries {
				if !e.IsDir() {
					got += e.Name() + " "
				}
			}
			if got != row.want {
				t.Errorf("got files %q, want %q", got, row.want)
			}
		})
	}
}
