// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/gpuhealth"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/test/inotify"
)

// eventually waits for what the loop does.
func (l *testNode) eventually(what string, is func() bool) {
	l.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			l.Fatalf("%s: not so after 5 min", what)
		}
	}
}

// run runs the loop until stop.
func (l *testNode) run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Node.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// discovered returns the number of discoveries.
func (l *testNode) discovered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.discoveries
}

// A new driver is discovered when its files change, not only at the next discovery.
func TestANewDriverIsDiscoveredAtOnce(t *testing.T) {
	inotify.Need(t)
	l := newTestNode(t)
	l.library = t.TempDir()
	defer l.run(t.Context())()
	l.eventually("the first discovery", func() bool { return l.discovered() > 0 })
	l.changed.Store(true)
	for end := time.Now().Add(discoveryPeriod / 2); l.discovered() < 2; { // the first file may come before the watch
		if err := os.WriteFile(filepath.Join(l.library, "libnvidia-ml.so.1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if time.Now().After(end) {
			t.Fatal("the new driver is not discovered")
		}
	}
}

// A GPU that comes or goes is discovered at once, not only at the next discovery.
func TestHotPlugIsDiscoveredAtOnce(t *testing.T) {
	l := newTestNode(t)
	hotPlug := make(chan struct{}) // the loop takes each
	l.HotPlug = hotPlug
	defer l.run(t.Context())()
	l.eventually("the first discovery", func() bool { return l.discovered() > 0 })
	for range 5 { // more than the timer starts in the time that this takes
		before := l.discovered()
		hotPlug <- struct{}{}
		l.eventually("the next discovery", func() bool { return l.discovered() > before })
	}
}

// A free GPU that the PCI bus no longer has is forgotten without an event. One that a claim holds, or that only NVML
// does not list, is lost.
func TestARemovedGPUIsForgotten(t *testing.T) {
	for _, tt := range []struct {
		name    string
		removed gpu.UUID
		stays   int  // looks at the bus that still show it
		listed  bool // by NVML, but it does not answer
		held    bool
		want    string
	}{
		{"it is removed", "GPU-1", 0, false, false, "[gpu-0] 0"},
		{"it is removed from a claim", "GPU-1", 0, false, true, "[gpu-0 gpu-1 lost] 2"}, // about the node and the claim
		{"it is not listed", "", 0, false, false, "[gpu-0 gpu-1 lost] 1"},
		{"it does not answer", "", 0, true, false, "[gpu-0 gpu-1 lost] 1"},
		{"its driver lets go of it before it leaves the bus", "GPU-1", 3, false, false, "[gpu-0] 0"},
		{"it does not answer before it leaves the bus", "GPU-1", 3, true, false, "[gpu-0] 0"},
	} {
		l := newTestNode(t)
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		if tt.held {
			l.hold("a", "gpu-1")
		}
		before := len(l.recorded)
		l.removed, l.stays = tt.removed, tt.stays
		if tt.listed {
			l.devices[1].Lost = true
		} else {
			l.devices = l.devices[:1]
		}
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range l.published {
			if names = append(names, d.Name); d.Lost {
				names = append(names, "lost")
			}
		}
		if got := fmt.Sprint(names, len(l.recorded)-before); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A GPU that answers after a loss has been reset if NVML had lost it, also when the plugin was started again meanwhile.
// One that was only silent has not, nor is that known of one that an earlier version of the driver saved as lost.
func TestAGPUAnswersAfterARestart(t *testing.T) {
	for _, tt := range []struct {
		name    string
		gone    bool
		earlier bool // devices.json is of a version that saved only that the GPU was lost
		stays   bool // the XID
	}{
		{"NVML had lost it", true, false, false},
		{"it was silent", false, false, true},
		{"an earlier version says that it was lost", true, true, true},
	} {
		l := newTestNode(t)
		l.hold("a", "gpu-1") // of one that nobody holds, it would wait for the removal
		look := func() {
			t.Helper()
			if err := l.look(); err != nil {
				t.Fatal(err)
			}
		}
		look()
		l.turn(t.Context(), gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 48, At: time.Now()})
		l.devices[1].Lost, l.devices[1].Gone = true, tt.gone
		look()
		l.state.health.Save(t.Context(), l.now())
		if tt.earlier {
			saved := saved(l.Dir)
			for i := range saved {
				saved[i].Gone = false
			}
			if err := save(l.Dir, saved); err != nil {
				t.Fatal(err)
			}
		}
		l.restart(l.Options)
		l.devices[1].Gone = false // what NVML has said is on disk only
		look()
		l.devices[1].Lost = false
		look()
		got := fmt.Sprint(taintsOf(l.published))
		if strings.Contains(got, inventory.TaintXID) != tt.stays {
			t.Errorf("%s: got taints %s, want that of the XID: %t", tt.name, got, tt.stays)
		}
	}
}

// A discovery that is asked for while one is under way follows it at once. Meanwhile events are handled.
func TestADiscoveryFollowsAnother(t *testing.T) {
	l := newTestNode(t)
	ctx := t.Context()
	if l.turn(ctx, tick{}) == nil {
		t.Fatal("the first tick starts no discovery")
	}
	for range 3 {
		if l.turn(ctx, discoverNow{}) != nil {
			t.Error("two discoveries at a time")
		}
	}
	l.turn(ctx, gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 48, At: time.Now()})
	if l.turn(ctx, &found{Discovery: gpu.Discovery{Devices: l.devices}, gpus: l.devices}) == nil {
		t.Error("the discovery that was asked for does not begin")
	}
	if got, want := fmt.Sprint(taintsOf(l.published)), "[gpu-1 gpu.nvidia.com/xid NoSchedule]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if l.turn(ctx, &found{Discovery: gpu.Discovery{Devices: l.devices}, gpus: l.devices}) != nil {
		t.Error("a third discovery begins")
	}
}

// TestRequestsAreSeenAtOnce: a request needs no discovery, also in a directory that was removed and made again. The
// loop ends.
func TestRequestsAreSeenAtOnce(t *testing.T) {
	l := newTestNode(t)
	stop := l.run(t.Context())
	<-l.Ready()
	l.Serving()
	l.eventually("events are watched", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.occurred != nil
	})
	for _, when := range []string{"a request", "one in a new directory"} {
		if err := health.RequestClear(l.Dir, "gpu-1"); err != nil {
			t.Fatal(err)
		}
		l.eventually(when, func() bool { return !health.ClearRequested(l.Dir, "gpu-1") })
		if err := errors.Join(os.Rename(l.Dir, filepath.Join(t.TempDir(), "old")), os.Mkdir(l.Dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		before := l.discovered()
		l.send(discoverNow{})
		l.eventually("the next discovery", func() bool { return l.discovered() > before })
	}
	stop()
}

// TestHealthIsSaved: the loop saves what it knows of sick GPUs SaveDelay after a change, from when the instance serves
// the kubelet.
func TestHealthIsSaved(t *testing.T) {
	l := newTestNode(t)
	ctx := t.Context()
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	xid := gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 48, At: time.Now()}
	saved := func() string {
		s, err := health.Load(l.Dir)
		return fmt.Sprint(len(s.Conditions), " ", err)
	}
	l.turn(ctx, xid)
	l.state.saveAt = time.Now()
	l.turn(ctx, tick{})
	if got := saved(); got != "0 <nil>" {
		t.Errorf("before it serves: got %s conditions, want none saved", got)
	}
	l.turn(ctx, serving{})
	if got := saved(); got != "1 <nil>" {
		t.Errorf("when it serves: got %s conditions, want 1", got)
	}
	xid.GPU = "GPU-0"
	l.turn(ctx, xid)
	if got := saved(); got != "1 <nil>" {
		t.Errorf("at once: got %s conditions, want 1", got)
	}
	if l.wake.IsZero() || time.Until(l.wake) > gpuhealth.SaveDelay {
		t.Errorf("the next tick is at %s, want it within %s", l.wake, gpuhealth.SaveDelay)
	}
	l.state.saveAt = time.Now()
	l.turn(ctx, tick{})
	if got := saved(); got != "2 <nil>" {
		t.Errorf("at the next tick: got %s conditions, want 2", got)
	}
}

// TestServe: reports are sent at once, when something changes, and often enough for a kubelet that forgets them.
func TestServe(t *testing.T) {
	n := newTestNode(t) // its Reporter has goroutines that outlive the bubble
	if err := n.look(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		n.state.changed = make(chan struct{}) // of the bubble
		n.snapshot.Store(n.state.snapshot())
		var sent []string
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			defer close(served)
			n.ServeHealth(ctx, func(all []health.DeviceReport) bool {
				sent = append(sent, fmt.Sprintf("%s %s", time.Since(began), all[1].Status))
				return true
			})
		}()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		for range 1000 {
			n.turn(ctx, gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 48, At: time.Now()})
		}
		synctest.Wait()
		time.Sleep(11 * time.Second)
		n.alone.Store(false)
		time.Sleep(15 * time.Second)
		n.alone.Store(true)
		time.Sleep(25 * time.Second)
		cancel()
		<-served
		const want = "0s Healthy; 2s Unhealthy; 12s Unhealthy; 22s Unhealthy; 27s Unhealthy; 32s Unhealthy; " +
			"37s Unhealthy; 47s Unhealthy"
		if got := strings.Join(sent, "; "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestServeEndsWithItsReceiver(t *testing.T) {
	n := newTestNode(t)
	calls := 0
	n.ServeHealth(t.Context(), func([]health.DeviceReport) bool {
		calls++
		return false
	})
	if calls != 1 {
		t.Errorf("got %d calls, want 1", calls)
	}
}

// TestTogether calls everything at once, for the race detector.
func TestTogether(t *testing.T) {
	l := newTestNode(t)
	l.hold("a", "gpu-1")
	ctx, cancel := context.WithCancel(t.Context())
	stop := l.run(ctx)
	<-l.Ready()
	l.Serving()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { l.ServeHealth(ctx, func([]health.DeviceReport) bool { return true }) })
	}
	l.eventually("events are watched", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.occurred != nil
	})
	all.Go(func() {
		for i := range uint64(2000) {
			l.occurred(gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: i % 50, At: time.Now()})
		}
	})
	all.Go(func() {
		for range 200 {
			l.send(discoverNow{})
			l.send(paused(""))
			l.Registered()
			if _, err := l.Devices(); err != nil || len(l.Inventory()) != 2 {
				t.Errorf("got %v, %d devices, want 2", err, len(l.Inventory()))
			}
		}
	})
	if err := health.RequestClear(l.Dir, "gpu-1"); err != nil {
		t.Error(err)
	}
	l.eventually("the request is done", func() bool { return !health.ClearRequested(l.Dir, "gpu-1") })
	cancel()
	all.Wait()
	stop()
	if _, err := health.Load(l.Dir); err != nil {
		t.Error(err)
	}
}

// A discovery that finds the same as the last one computes no devices: with all partitions that costs more than the
// discovery. A change of a GPU, of the records, and of a taint is seen.
func TestTheSameDevicesAreNotComputedAgain(t *testing.T) {
	l := newTestNode(t)
	look := func() (devices *inventory.Inventory, published *gpu.Device) {
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		return l.state.devices, &l.state.published[0]
	}
	look()
	look() // the first discovery knew no GPU
	before, published := look()
	if again, publishedAgain := look(); again != before || publishedAgain != published {
		t.Error("the same devices were computed again")
	}
	l.turn(t.Context(), gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 48, At: time.Now()})
	if again, _ := look(); again != before || fmt.Sprint(taintsOf(l.published)) == "[]" {
		t.Errorf("after an XID: computed again: %v, taints: %v", again != before, taintsOf(l.published))
	}
	for name, change := range map[string]func(){
		"a GPU": func() { l.devices[0].Memory++ }, "the records": func() { l.hold("a", "gpu-0") },
	} {
		before, _ := look()
		change()
		if again, _ := look(); again == before {
			t.Errorf("%s changed, and the devices were not computed", name)
		}
	}
}

// An inventory that could not be saved is saved by a later discovery, also when no device has changed since.
func TestTheInventoryIsSavedAgain(t *testing.T) {
	l := newTestNode(t)
	l.Node.Dir = filepath.Join(l.Dir, "full") // nothing can be written there: it does not exist
	look := func() {
		t.Helper()
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
	}
	look()
	look()
	if err := os.Mkdir(l.Node.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	look()
	file := filepath.Join(l.Node.Dir, gpusFile)
	if got := saved(l.Node.Dir); len(got) != 2 {
		t.Errorf("got %d GPUs, want 2", len(got))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	look()
	if _, err := os.Stat(file); err == nil {
		t.Error("it is saved by every discovery, want once")
	}
}
