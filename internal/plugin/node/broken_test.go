// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/hwprofile"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator"
	simnode "github.com/gpudra/gpu-dra-driver/simulator/node"
)

// stoppable notes why no events are to be watched.
type stoppable struct {
	Machine
	stopped string
}

func (m *stoppable) StopWatching(why string) { m.stopped = why }

// newStoppable returns a testNode whose GPUs have persistence mode, so that NVML can be closed between looks.
func newStoppable(t *testing.T) (*testNode, *simulator.Node, *stoppable) {
	t.Helper()
	l, sim := simulated(t, "t4-x2")
	m := &stoppable{Machine: l.Options.Machine}
	l.Options.Machine = m
	l.restart(l.Options)
	l.sick("at first")
	return l, sim, m
}

// reports returns the reasons of the events, and the taints with which the first GPU is published.
func (l *testNode) reports() string {
	var all []string
	for _, e := range l.recorded {
		all = append(all, strings.Split(e, ": ")[0])
	}
	slices.Sort(all)
	l.recorded = nil
	for _, t := range l.published.Pools("node")["node"].Slices[0].Devices[0].Taints {
		if t.Effect != "None" {
			all = append(all, strings.TrimPrefix(t.Key, "gpu.nvidia.com/"))
		}
	}
	return strings.Join(all, " ")
}

// A GPU that answers only that it must be reset is not lost: NVML is closed between looks, so that it can be.
func TestGPUThatMustBeReset(t *testing.T) {
	l, sim, m := newStoppable(t)
	for _, row := range []struct {
		answer  string // of each call; empty: it is well
		reports string
		yields  bool
		sick    []string
	}{
		{"ERROR_RESET_REQUIRED", "Warning GPUUnhealthy unhealthy", true, []string{"gpu-3b-00-0 ResetRequired"}},
		{"ERROR_GPU_IS_LOST", "Normal GPURecovered Warning GPULost gpu-lost", false, nil},
		{"ERROR_RESET_REQUIRED", "Normal GPURecovered Warning GPUUnhealthy unhealthy", true,
			[]string{"gpu-3b-00-0 ResetRequired"}},
		{"", "Normal GPURecovered", false, nil},
	} {
		err := sim.Heal("0")
		if row.answer != "" {
			err = sim.Fail("0", simnode.AllCalls, hwprofile.Error(row.answer))
		}
		if err != nil {
			t.Fatal(err)
		}
		l.sick(row.answer, row.sick...)
		if got := l.reports(); got != row.reports {
			t.Errorf("%s: got %s, want %s", row.answer, got, row.reports)
		}
		if got := strings.Contains(m.stopped, "can be reset"); got != row.yields {
			t.Errorf("%s: NVML gives way: got %t (%s), want %t", row.answer, got, m.stopped, row.yields)
		}
	}
}

// No claim gets a GPU that is as an ended claim has left it, and the record of that claim keeps nobody from a reset.
func TestGPUThatIsNotRestored(t *testing.T) {
	l, _, m := newStoppable(t)
	d := l.Inventory()[0]
	rec := l.hold("a", d.Name)
	rec.Phase, rec.Plan.Assignments[0].GPU = checkpoint.Releasing, d.UUID
	if err := l.records.Put(rec); err != nil {
		t.Fatal(err)
	}
	l.sick("a claim is being released")
	l.NotRestored(d.UUID)
	l.sick("it cannot be", d.Name+" NotRestored")
	l.state.resumed = time.Time{}
	l.sick("a minute later", d.Name+" NotRestored")
	if l.state.resumed.IsZero() || !strings.Contains(m.stopped, "can be reset") {
		t.Errorf("it is not tried again, or NVML does not give way: got %q", m.stopped)
	}
	l.release(rec)
	l.sick("it is, and a discovery under way may have missed the record", d.Name+" NotRestored")
	l.state.left[d.UUID] = time.Now().Add(-discoveryPeriod)
	l.sick("another discovery")
	if m.stopped != "" || l.state.left[d.UUID] != (time.Time{}) {
		t.Errorf("got %q, want that events are watched", m.stopped)
	}
}

// A GPU that has just become sick is refused to a claim that does not tolerate it, and its pod is evicted.
func TestUnfit(t *testing.T) {
	l, _, _ := newStoppable(t)
	name := l.Inventory()[0].Name
	if err := l.Unfit(name, nil); err != nil {
		t.Errorf("a healthy GPU: %v", err)
	}
	l.NotRestored(l.Inventory()[0].UUID)
	l.sick("sick", name+" NotRestored")
	tolerates := resourceapi.DeviceToleration{Key: inventory.TaintUnhealthy, Value: "NotRestored"}
	if err := l.Unfit(name, []resourceapi.DeviceToleration{tolerates}); err != nil {
		t.Errorf("a claim that tolerates it: %v", err)
	}
	want := name + " has become sick since it was allocated: it has the taint gpu.nvidia.com/unhealthy=NotRestored"
	if err := l.Unfit(name, nil); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	l.sick("refused") // and not NoSchedule
	if d, _ := l.published.Find(name); len(d.Taints) == 0 || d.Taints[0].Effect != "NoExecute" {
		t.Errorf("got the taints %v, want NoExecute", d.Taints)
	}
}
