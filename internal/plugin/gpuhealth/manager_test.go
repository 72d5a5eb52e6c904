// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/health"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const driver = "gpu.nvidia.com"

// start is the time 0s of all tests.
var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// testNode is a node with two GPUs, the first of which has two partitions, and a Manager that is called by hand, with a
// clock that stands still.
type testNode struct {
	*testing.T
	*Manager
	records  *checkpoint.Records
	reporter *report.Reporter
	clock    time.Time

	// What the next discovery finds.
	found  Known
	policy health.Policy
	held   []gpu.UUID
	alone  bool // no other instance runs

	// What has followed.
	events              []string
	changes, discovered int
	rechecked           int
	released, stopped   string
}

// partitions of the first GPU.
var (
	first  = gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Start: 0, Size: 1}
	second = gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Start: 2, Size: 1}
)

func newTestNode(t *testing.T) *testNode {
	t.Helper()
	dir := t.TempDir()
	records, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{T: t, records: records, clock: start, alone: true}
	whole := []gpu.Device{
		{Name: "gpu-0", UUID: "GPU-0", Type: gpu.TypeGPU, PCI: gpu.PCIAddress{Bus: 1},
			Product: gpu.Product{Name: "NVIDIA H100"}, MIG: gpu.MIG{Enabled: true,
				Instances: []gpu.Partition{{Placement: first, GPUInstance: 7}, {Placement: second, GPUInstance: 9}}}},
		{Name: "gpu-1", UUID: "GPU-1", Index: 1, Type: gpu.TypeGPU, PCI: gpu.PCIAddress{Bus: 2},
			Product: gpu.Product{Name: "NVIDIA H100"}},
	}
	n.found = Known{GPUs: whole}
	n.found.Persistent, n.found.Unwatched, n.found.Health = true, map[gpu.UUID]string{}, map[gpu.UUID]gpu.Health{}
	n.found.Published = inventory.Inventory{whole[0]}
	for _, at := range []gpu.Placement{first, second} {
		n.found.Published = append(n.found.Published, gpu.Device{Name: gpu.PartitionName("gpu-0", at), UUID: "GPU-0",
			Type: gpu.TypeMIG, Partition: &gpu.Partition{Placement: at}})
	}
	n.found.Published = append(n.found.Published, whole[1])
	n.restart(dir, "a")
	n.look()
	return n
}

// restart creates a new Manager, which knows only what is on disk.
func (n *testNode) restart(dir, bootID string) {
	n.released, n.stopped = "", ""
	n.reporter = report.NewReporterTo(n, report.ReporterConfig{Driver: driver, Node: "node",
		Client: fake.NewClientset()})
	n.Manager = New(dir, bootID, n.records)
}

func (n *testNode) now() Moment { return Moment{Now: n.clock, Alone: n.alone} }

// do does what the Manager's actions say, as its owner does.
func (n *testNode) do() {
	n.Helper()
	a := n.Actions()
	if a.Changed {
		n.changes++
	}
	if a.Discover || a.Release != nil && *a.Release == "" {
		n.discovered++
	}
	if a.Release != nil {
		n.released = *a.Release
	}
	n.rechecked += len(a.Recheck)
	n.stopped = a.StopWatching
	for _, notice := range a.Notices {
		n.reporter.Write(notice)
	}
	if a.Save {
		n.flush()
	}
}

func (n *testNode) occurred(e gpu.Event) {
	n.Occurred(n.Context(), e)
	n.do()
}

func (n *testNode) tick() {
	n.Tick(n.Context(), n.now())
	n.do()
}

func (n *testNode) flush() {
	n.Save(n.Context(), n.now())
	n.do()
}

func (n *testNode) pause(why string) {
	n.Paused(n.Context(), n.now(), why)
	n.do()
}

func (n *testNode) unreadable(why string) {
	n.Unread(why)
	n.do()
}

// Eventf implements events.EventRecorder.
func (n *testNode) Eventf(about, _ runtime.Object, eventType, reason, _, note string, args ...any) {
	n.events = append(n.events, fmt.Sprintf("%s %s: %s: %s", about.(*corev1.ObjectReference).Name, eventType, reason,
		fmt.Sprintf(note, args...)))
}

// look runs a discovery.
func (n *testNode) look() {
	n.lookWithoutRules(map[gpu.UUID]health.Policy{"GPU-0": n.policy, "GPU-1": n.policy})
}

func (n *testNode) lookWithoutRules(policies map[gpu.UUID]health.Policy) {
	known := n.found
	known.GPUs, known.Unwatched = slices.Clone(known.GPUs), maps.Clone(known.Unwatched)
	known.Policies, known.Held = policies, map[gpu.UUID]bool{}
	for _, id := range n.held {
		known.Held[id] = true
	}
	n.Discovered(n.Context(), n.now(), known)
	n.do()
}

// answer makes a GPU answer this at the next discovery, and runs it.
func (n *testNode) answer(id gpu.UUID, is gpu.Health) {
	is.At = n.clock
	n.found.Health[id] = is
	n.look()
}

// xid reports XIDs of a GPU.
func (n *testNode) xid(id gpu.UUID, numbers ...uint64) {
	for _, number := range numbers {
		n.occurred(gpu.Event{GPU: id, Kind: gpu.EventXID, XID: number, At: n.clock})
	}
}

// memoryError reports an uncorrected memory error of the second GPU.
func (n *testNode) memoryError() {
	n.occurred(gpu.Event{GPU: "GPU-1", Kind: gpu.EventECCDouble, At: n.clock})
}

// xidAt reports an XID of a partition of the first GPU.
func (n *testNode) xidAt(instance int, number uint64) {
	n.occurred(gpu.Event{GPU: "GPU-0", Kind: gpu.EventXID, XID: number, At: n.clock,
		Instance: &gpu.Instance{GPU: instance}})
}

// pass lets time pass.
func (n *testNode) pass(d time.Duration) {
	n.clock = n.clock.Add(d)
	n.tick()
}

// hold records a claim on devices.
func (n *testNode) hold(claim string, assignments ...sharing.Assignment) {
	n.Helper()
	for i := range assignments {
		assignments[i].Pool = "node"
	}
	if err := n.records.Put(checkpoint.PreparedClaim{Phase: checkpoint.Prepared,
		Plan:  sharing.Plan{Assignments: assignments},
		Claim: sharing.Claim{Namespace: "ns", Name: claim, UID: types.UID(claim)}}); err != nil {
		n.Fatal(err)
	}
}

// taintsNow returns the devices with taints: "gpu-1: xid=48:NoSchedule since 10s".
func (n *testNode) taintsNow() string {
	var lines []string
	for i, taints := range n.Taints(n.found.Published) {
		var all []string
		for _, t := range taints {
			text := strings.TrimPrefix(t.Key, driver+"/") + "=" + t.Value + ":" + t.Effect
			if !t.Since.IsZero() {
				text += " since " + t.Since.Sub(start).String()
			}
			all = append(all, text)
		}
		if len(all) > 0 {
			lines = append(lines, n.found.Published[i].Name+": "+strings.Join(all, ", "))
		}
	}
	return strings.Join(lines, "\n")
}

func (n *testNode) wantTaints(when, want string) {
	n.Helper()
	if got := n.taintsNow(); got != strings.TrimSpace(want) {
		n.Errorf("%s: got taints\n%s\nwant\n%s", when, got, strings.TrimSpace(want))
	}
}

// eventsNow returns the events since the last call, without their texts.
func (n *testNode) eventsNow() string {
	var lines []string
	for _, e := range n.texts() {
		lines = append(lines, strings.Join(strings.SplitN(e, ": ", 3)[:2], ": "))
	}
	return strings.Join(lines, "\n")
}

func (n *testNode) texts() []string {
	all := n.events
	n.events = nil
	return all
}

func (n *testNode) wantEvents(when, want string) {
	n.Helper()
	if got := n.eventsNow(); got != strings.TrimSpace(want) {
		n.Errorf("%s: got events\n%s\nwant\n%s", when, got, strings.TrimSpace(want))
	}
}

func (n *testNode) want(what string, so bool) {
	n.Helper()
	if !so {
		n.Errorf("not so: %s", what)
	}
}

func rules(effect health.Effect, causes ...health.Cause) health.Policy {
	all := map[health.Cause]health.Rule{}
	for _, c := range causes {
		rule := health.Policy{}.For(c)
		rule.Effect = effect
		all[c] = rule
	}
	return health.NewPolicy(all)
}

func TestTaints(t *testing.T) {
	for _, row := range []struct {
		name   string
		policy health.Policy
		do     func(n *testNode)
		want   string
	}{
		{"nothing is wrong", health.Policy{}, func(*testNode) {}, ""},
		{"the error of a program", health.Policy{}, func(n *testNode) { n.xid("GPU-1", 13) }, ""},
		{"an XID of a GPU", health.Policy{}, func(n *testNode) { n.xid("GPU-1", 48) },
			"gpu-1: xid=48:NoSchedule since 0s"},
		{"an XID of a GPU with partitions", health.Policy{}, func(n *testNode) { n.xid("GPU-0", 48) },
			"gpu-0: xid=48:NoSchedule since 0s\ngpu-0-mig-1g10gb-0: xid=48:NoSchedule since 0s\n" +
				"gpu-0-mig-1g10gb-2: xid=48:NoSchedule since 0s"},
		{"an XID of a partition", health.Policy{}, func(n *testNode) { n.xidAt(9, 95) },
			"gpu-0: xid=95:NoSchedule since 0s\ngpu-0-mig-1g10gb-2: xid=95:NoSchedule since 0s"},
		{"an XID of a partition that nobody knows", health.Policy{}, func(n *testNode) { n.xidAt(3, 95) },
			"gpu-0: xid=95:NoSchedule since 0s\ngpu-0-mig-1g10gb-0: xid=95:NoSchedule since 0s\n" +
				"gpu-0-mig-1g10gb-2: xid=95:NoSchedule since 0s"},
		{"the administrator evicts", rules(health.EffectNoExecute, "XID48"), func(n *testNode) { n.xid("GPU-1", 48) },
			"gpu-1: xid=48:NoExecute since 0s"},
		{"the administrator ignores", rules(health.EffectNone, "XID48"), func(n *testNode) { n.xid("GPU-1", 48) }, ""},
		{"of several XIDs, the latest", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 48)
			n.pass(time.Second)
			n.xid("GPU-1", 79)
			n.pass(time.Second)
			n.xid("GPU-1", 48, 13)
		}, "gpu-1: xid=79:NoSchedule since 1s"},
		{"of several effects, the worst", rules(health.EffectNoExecute, "XID48"), func(n *testNode) {
			n.xid("GPU-1", 48)
			n.pass(time.Second)
			n.xid("GPU-1", 79)
		}, "gpu-1: xid=48:NoExecute since 0s"},
		{"a taint for each kind", health.Policy{}, func(n *testNode) {
			n.found.Unwatched["GPU-1"] = "the GPU has no events for XIDs"
			n.answer("GPU-1", gpu.Health{RecoveryAction: gpu.RecoveryReset, RowsPending: true})
			n.xid("GPU-1", 48)
		}, "gpu-1: unhealthy=RecoveryActionReset:NoSchedule since 0s, unmonitored=:None, xid=48:NoSchedule since 0s"},
		{"a lost GPU", health.Policy{}, func(n *testNode) {
			n.found.Unwatched["GPU-1"] = "it does not answer"
			n.found.GPUs[1].Lost, n.found.Published[3].Lost = true, true
			n.look()
			n.pass(time.Minute)
			n.look()
		}, "gpu-1: gpu-lost=:NoSchedule since 0s"},
		{"the administrator evicts from a lost GPU", rules(health.EffectNoExecute, health.GPULost), func(n *testNode) {
			n.found.GPUs[1].Lost, n.found.Published[3].Lost = true, true
			n.look()
		}, "gpu-1: gpu-lost=:NoExecute since 0s"},
		{"a lost GPU is back", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 79, 48)
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = true, true
			n.look()
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = false, false
			n.answer("GPU-1", gpu.Health{})
		}, "gpu-1: xid=79:NoSchedule since 0s"},
		{"a silent GPU answers again", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 48)
			n.found.GPUs[1].Lost = true
			n.look()
			n.found.GPUs[1].Lost = false
			n.answer("GPU-1", gpu.Health{})
		}, "gpu-1: xid=48:NoSchedule since 0s"},
		{"a lost GPU is back and needs a reset", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 48)
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = true, true
			n.look()
			n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = false, false
			n.answer("GPU-1", gpu.Health{RecoveryAction: gpu.RecoveryReset})
		}, "gpu-1: unhealthy=RecoveryActionReset:NoSchedule since 0s, xid=48:NoSchedule since 0s"},
		{"a GPU without events, with partitions", health.Policy{}, func(n *testNode) {
			n.found.Unwatched["GPU-0"] = "the GPU has no events for XIDs"
			n.look()
		}, "gpu-0: unmonitored=:None\ngpu-0-mig-1g10gb-0: unmonitored=:None\ngpu-0-mig-1g10gb-2: unmonitored=:None"},
		{"an administrator keeps programs off a GPU", health.Policy{}, func(n *testNode) {
			n.found.GPUs[1].ComputeMode = gpu.Prohibited
			n.answer("GPU-1", gpu.Health{})
		}, "gpu-1: unhealthy=ComputeModeProhibited:NoSchedule since 0s"},
		{"he lets one process use it", health.Policy{}, func(n *testNode) {
			n.found.GPUs[1].ComputeMode = gpu.ExclusiveProcess
			n.answer("GPU-1", gpu.Health{})
			n.wantEvents("it is told", "node Normal: GPUNotice")
		}, ""},
		{"a claim does", health.Policy{}, func(n *testNode) {
			n.found.GPUs[1].ComputeMode = gpu.ExclusiveProcess
			n.held = []gpu.UUID{"GPU-1"}
			n.answer("GPU-1", gpu.Health{})
			n.wantEvents("it is not told", "")
		}, ""},
		{"a memory error without XID", health.Policy{}, func(n *testNode) {
			n.memoryError()
			n.wantTaints("an XID may follow", "")
			n.pass(5 * time.Second)
		}, "gpu-1: unhealthy=ECCDoubleBit:NoSchedule since 0s"},
		{"memory errors without XID, one after the other", health.Policy{}, func(n *testNode) {
			for range 5 {
				n.memoryError()
				n.pass(time.Second)
			}
		}, "gpu-1: unhealthy=ECCDoubleBit:NoSchedule since 0s"},
		{"a memory error that was contained, after its XID", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 94)
			n.memoryError()
			n.pass(time.Minute)
		}, ""},
		{"a memory error that was contained, before its XID", health.Policy{}, func(n *testNode) {
			n.memoryError()
			n.pass(4 * time.Second)
			n.xid("GPU-1", 94)
			n.pass(time.Minute)
		}, ""},
		{"a memory error after a program was ended", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 45)
			n.memoryError()
			n.pass(5 * time.Second)
		}, "gpu-1: unhealthy=ECCDoubleBit:NoSchedule since 0s"},
		{"a memory error long after one that was contained", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 94)
			n.pass(time.Minute)
			n.memoryError()
			n.pass(5 * time.Second)
		}, "gpu-1: unhealthy=ECCDoubleBit:NoSchedule since 1m0s"},
		{"a quiet time is over", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 999)
			n.pass(10 * time.Minute)
		}, ""},
		{"the administrator changes a rule", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 48)
			n.policy = rules(health.EffectNoExecute, "XID48")
			n.look()
		}, "gpu-1: xid=48:NoExecute since 0s"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newTestNode(t)
			n.policy = row.policy
			n.look()
			row.do(n)
			n.wantTaints("at the end", row.want)
			for _, d := range n.found.Published {
				if d.Taints != nil {
					t.Errorf("%s: Annotate has changed its argument", d.Name)
				}
			}
		})
	}
}

func TestTaintsSurviveARestart(t *testing.T) {
	n := newTestNode(t)
	n.xid("GPU-1", 48)
	n.xidAt(9, 54)
	n.answer("GPU-1", gpu.Health{LinksUp: []int{0, 1}})
	want := "gpu-0: xid=54:NoSchedule since 0s\ngpu-0-mig-1g10gb-2: xid=54:NoSchedule since 0s\n" +
		"gpu-1: xid=48:NoSchedule since 0s"
	n.wantTaints("before", want)
	n.pass(time.Second) // saves

	n.restart(n.dir, "a")
	n.wantTaints("before the first discovery", want)
	n.pass(24 * time.Hour)
	n.look()
	n.wantTaints("after the plugin was restarted", want)
	n.answer("GPU-1", gpu.Health{LinksUp: []int{1}})
	n.wantTaints("a link went down meanwhile", strings.Replace(want, "gpu-1: ",
		"gpu-1: unhealthy=NVLinkDown:NoSchedule since 24h0m1s, ", 1))

	n.answer("GPU-1", gpu.Health{LinksUp: []int{0, 1}})
	n.flush()
	n.texts()
	n.restart(n.dir, "b")
	n.look()
	n.wantTaints("after the machine was restarted", "gpu-0: xid=54:NoSchedule since 0s\n"+
		"gpu-0-mig-1g10gb-2: xid=54:NoSchedule since 0s")
	n.wantEvents("after the machine was restarted", "node Normal: GPURecovered")
}

func TestRulesAreNotKnownBeforeTheFirstDiscovery(t *testing.T) {
	n := newTestNode(t)
	n.policy = health.NewPolicy(map[health.Cause]health.Rule{
		"XID31": {Effect: health.EffectNoSchedule, Recovery: health.RecoveryQuietTime, QuietTime: time.Hour}})
	n.look()
	n.xid("GPU-1", 31)
	n.pass(time.Second)
	n.restart(n.dir, "a")
	if err := health.RequestClear(n.dir, "gpu-0"); err != nil {
		t.Fatal(err)
	}
	n.pass(20 * time.Minute)
	if !health.ClearRequested(n.dir, "gpu-0") {
		t.Error("the request to clear is gone before the GPUs are known")
	}
	n.look()
	n.wantTaints("its quiet time is not over", "gpu-1: xid=31:NoSchedule since 0s")
	n.pass(40 * time.Minute)
	n.wantTaints("its quiet time is over", "")
}

// The node configuration cannot be read, because the API server cannot be reached: the rules from before the restart
// hold, so that nothing ends that another rule would have kept.
func TestRulesThatCannotBeRead(t *testing.T) {
	n := newTestNode(t)
	n.policy = health.NewPolicy(map[health.Cause]health.Rule{
		"XID31": {Effect: health.EffectNoSchedule, Recovery: health.RecoveryQuietTime, QuietTime: time.Hour},
		"XID79": {Effect: health.EffectNoSchedule, Recovery: health.RecoveryManual}})
	n.look()
	n.xid("GPU-1", 31)
	n.pass(time.Second)
	n.xid("GPU-0", 79)
	n.pass(20 * time.Minute)
	n.restart(n.dir, "a")
	n.lookWithoutRules(nil)
	n.pass(time.Second)
	const want = "gpu-0: xid=79:NoSchedule since 1s\ngpu-0-mig-1g10gb-0: xid=79:NoSchedule since 1s\n" +
		"gpu-0-mig-1g10gb-2: xid=79:NoSchedule since 1s"
	n.wantTaints("after the plugin was restarted", want+"\ngpu-1: xid=31:NoSchedule since 0s")
	n.restart(n.dir, "b")
	n.lookWithoutRules(nil)
	n.wantTaints("after the machine was restarted", want)
	n.look()
	n.wantTaints("with rules", want)
}

// A GPU that was taken out has not recovered.
func TestTextOfAGPUThatIsGone(t *testing.T) {
	n := newTestNode(t)
	n.found.GPUs[1].Lost = true
	n.look()
	n.texts()
	n.clock = n.clock.Add(10 * time.Second)
	n.found.GPUs = n.found.GPUs[:1]
	n.look()
	const want = "[node Normal: GPUNotice: GPU GPU-1 (GPU-1): GPULost has ended (the GPU is gone) after 10s]"
	if got := fmt.Sprint(n.texts()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// During an update two instances run, and both save what they know. What one of them has seen is known to the other.
func TestTwoInstances(t *testing.T) {
	n := newTestNode(t)
	old := n.Manager
	n.xid("GPU-0", 48)
	n.pass(time.Second)
	n.restart(n.dir, "a")
	n.look()
	n.alone = false // it serves the kubelet, and does not watch events yet
	n.clock = n.clock.Add(time.Second)
	next := n.Manager
	n.Manager = old
	n.occurred(gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 48, At: n.clock})
	if err := health.RequestClear(n.dir, "gpu-0"); err != nil {
		t.Fatal(err)
	}
	n.tick()
	n.Manager = next
	if !health.ClearRequested(n.dir, "gpu-0") {
		t.Error("the old instance cleared a GPU, which the new one does not know")
	}
	const second = "gpu-1: xid=48:NoSchedule since 2s"
	n.look()
	n.wantTaints("the old one has seen another XID", "gpu-0: xid=48:NoSchedule since 0s\n"+
		"gpu-0-mig-1g10gb-0: xid=48:NoSchedule since 0s\ngpu-0-mig-1g10gb-2: xid=48:NoSchedule since 0s\n"+second)
	n.Manager = old
	n.flush()
	n.Manager, n.alone = next, true
	n.pass(time.Second)
	n.wantTaints("the new one is alone, and clears", second)
	n.restart(n.dir, "a")
	n.look()
	n.wantTaints("it is saved", second)
}

func TestUnreadableState(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "health.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &testNode{T: t, clock: start, records: newTestNode(t).records, alone: true}
	n.restart(dir, "a")
	n.found.GPUs = inventory.Inventory{{Name: "gpu-1", UUID: "GPU-1"}}
	n.look()
	n.xid("GPU-1", 48)
	n.pass(time.Second)
	if saved, err := health.Load(dir); err != nil || len(saved.Conditions) != 1 {
		t.Errorf("got %v, %v, want one condition", saved, err)
	}
}

func TestEvents(t *testing.T) {
	n := newTestNode(t)
	share := func(id types.UID) sharing.Assignment { return sharing.Assignment{Device: "gpu-1", ShareID: id} }
	n.hold("a", share("1"))
	n.hold("b", share("2"), sharing.Assignment{Device: gpu.PartitionName("gpu-0", first)})
	n.hold("c", sharing.Assignment{Device: gpu.PartitionName("gpu-0", second)})
	n.hold("d", sharing.Assignment{Device: "gpu-1", AdminAccess: true})
	n.hold("e", sharing.Assignment{Device: inventory.Monitor})

	for range 10_000 {
		n.xid("GPU-1", 48)
	}
	n.wantEvents("a storm is told once, to the node and to each claim on the GPU", `
node Warning: GPUUnhealthy
a Warning: DeviceUnhealthy
b Warning: DeviceUnhealthy`)
	if n.changes != 1 || n.discovered != 1 {
		t.Errorf("got %d publications and %d discoveries, want 1 and 1", n.changes, n.discovered)
	}
	n.xid("GPU-1", 13)
	n.wantEvents("the error of a program", `
node Normal: GPUNotice
a Normal: DeviceNotice
b Normal: DeviceNotice`)
	n.xidAt(9, 999)
	n.wantEvents("an XID of a partition", "node Warning: GPUUnhealthy\nc Warning: DeviceUnhealthy")
	n.pass(10 * time.Minute)
	n.wantEvents("its quiet time is over; nobody is told that the program's error is long ago",
		"node Normal: GPURecovered\nc Normal: DeviceRecovered")
	n.answer("GPU-1", gpu.Health{RecoveryAction: gpu.RecoveryNone})
	n.wantEvents("the GPU needs no reset", `
node Normal: GPURecovered
a Normal: DeviceRecovered
b Normal: DeviceRecovered`)
	n.found.GPUs[1].Lost = true
	n.look()
	n.look()
	n.wantEvents("a lost GPU: the discovery tells the node", "a Warning: DeviceUnhealthy\nb Warning: DeviceUnhealthy")
	n.found.GPUs[1].Lost = false
	n.look()
	n.wantEvents("it is back", `
node Normal: GPURecovered
a Normal: DeviceRecovered
b Normal: DeviceRecovered`)
}

// TestEvictionsByAnXIDThatComesBack: an XID each minute, while NVIDIA's driver says that the GPU needs no recovery.
// Each new taint evicts the pods of the GPU.
func TestEvictionsByAnXIDThatComesBack(t *testing.T) {
	n := newTestNode(t)
	n.policy = rules(health.EffectNoExecute, "XID149")
	n.look()
	began := map[time.Time]bool{}
	for i := range 60 { // ten minutes
		n.pass(10 * time.Second)
		if i%6 == 0 {
			n.xid("GPU-1", 149)
		}
		for _, taints := range n.Taints(n.found.Published) {
			for _, taint := range taints {
				began[taint.Since] = true
			}
		}
		n.answer("GPU-1", gpu.Health{RecoveryAction: gpu.RecoveryNone})
	}
	events := n.texts()
	if len(began) > 3 || len(events) > 5 {
		t.Errorf("%d taints and %d events in 10 min, the last one:\n%s", len(began), len(events), events[len(events)-1])
	}
}

// TestLossesWithAnXID: a GPU falls off the bus with an XID each minute, and is back soon, as after a reset. The rule
// waits for a reset. The last XID ends when the GPU has stayed.
func TestLossesWithAnXID(t *testing.T) {
	n := newTestNode(t)
	n.policy = health.NewPolicy(map[health.Cause]health.Rule{
		"XID79": {Effect: health.EffectNoExecute, Recovery: health.RecoveryReset}})
	n.answer("GPU-1", gpu.Health{})
	began := map[time.Time]bool{}
	for range 30 {
		n.xid("GPU-1", 79)
		n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = true, true
		n.look()
		n.pass(10 * time.Second)
		n.found.GPUs[1].Lost, n.found.GPUs[1].Gone = false, false
		n.look()
		for _, taints := range n.Taints(n.found.Published) {
			for _, taint := range taints {
				began[taint.Since] = true
			}
		}
		n.pass(50 * time.Second)
	}
	if len(began) > 6 {
		t.Errorf("%d taints in half an hour", len(began))
	}
	n.restart(n.dir, "a")
	n.look()
	n.pass(24 * time.Hour)
	n.look()
	n.wantTaints("a day later", "")
}

// TestLinksToAGPUThatIsAway: a bridge connects two GPUs. While one is in a virtual machine, in MIG mode or taken out,
// the links of the other one are inactive, and not down. A link that does not come back with it is.
func TestLinksToAGPUThatIsAway(t *testing.T) {
	for name, away := range map[string]func(n *testNode){
		"in a virtual machine": func(n *testNode) { n.found.GPUs[0].VFIO = &gpu.VFIO{Bound: true} },
		"in MIG mode":          func(n *testNode) { n.found.GPUs[0].MIG.Enabled = true },
		"taken out":            func(n *testNode) { n.found.GPUs = n.found.GPUs[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.found.GPUs[0].MIG.Enabled = false
			n.look()
			pair := slices.Clone(n.found.GPUs)
			up := gpu.Health{LinksUp: []int{0, 1}, LinkPeers: map[int]gpu.PCIAddress{0: pair[0].PCI, 1: pair[0].PCI}}
			for when, restart := range []bool{false, true, false} {
				n.pass(time.Minute)
				n.answer("GPU-1", up)
				away(n)
				n.pass(time.Minute)
				n.answer("GPU-1", gpu.Health{LinksUp: []int{}})
				if restart {
					n.flush()
					n.restart(n.dir, "a")
					n.answer("GPU-1", gpu.Health{LinksUp: []int{}})
				}
				n.wantTaints(fmt.Sprint("away, ", when), "")
				n.found.GPUs = slices.Clone(pair)
				n.pass(time.Second)
				n.look() // the last answer of GPU-1 is from before
				n.wantTaints(fmt.Sprint("back, ", when), "")
			}
			n.wantEvents("no link was down", "")
			n.pass(time.Minute)
			n.answer("GPU-1", gpu.Health{LinksUp: []int{0}})
			n.wantEvents("a link is down", "node Warning: GPUUnhealthy")
			for _, c := range n.state.Conditions {
				n.want("it has not come back", c.Cause == health.NVLinkDown && c.Detail == "links 1" && c.Returns == 0)
			}
		})
	}
}

// TestGPUThatHasMovedOnTheBus: after a reboot with one card more, a healthy GPU has another name. A claim holds the
// former one, so it stays in the inventory, as lost.
func TestGPUThatHasMovedOnTheBus(t *testing.T) {
	n := newTestNode(t)
	was := n.found.GPUs[1]
	n.hold("a", sharing.Assignment{Device: was.Name, GPU: was.UUID})
	n.answer(was.UUID, gpu.Health{RecoveryAction: gpu.RecoveryReset})
	n.texts()
	moved := was
	moved.Name, moved.PCI = "gpu-5e", gpu.PCIAddress{Bus: 0x5e}
	known := n.found.GPUs
	n.found.GPUs = inventory.New([]gpu.Device{n.found.GPUs[0], moved}).Retain(known,
		func(device string) bool { return device == was.Name })
	n.found.Published = n.found.GPUs
	for range 5 {
		n.pass(10 * time.Second)
		n.look()
	}
	n.wantTaints("what was wrong has moved with the GPU", "gpu-5e: unhealthy=RecoveryActionReset:NoSchedule since 0s")
	n.answer(was.UUID, gpu.Health{RecoveryAction: gpu.RecoveryNone})
	n.wantTaints("it is healthy", "")
	n.wantEvents("its recovery is told, and no loss", "node Normal: GPURecovered")
	n.found.GPUs[2].Lost = true
	n.look()
	n.wantTaints("it is lost at its new place", "gpu-5e: gpu-lost=:NoSchedule since 50s")
}

// TestClockThatWasAhead: a clock that was wrong, and a restart of the plugin after NTP has set it right.
func TestClockThatWasAhead(t *testing.T) {
	for _, restarts := range []bool{true, false} {
		n := newTestNode(t)
		n.clock = start.Add(365 * 24 * time.Hour) // before NTP
		n.xid("GPU-1", 200)                       // unknown: quiet time of 10 min
		n.answer("GPU-0", gpu.Health{Fabric: "not joined"})
		n.flush()
		if restarts {
			n.clock = start
		}
		n.restart(n.dir, "a")
		n.clock = start
		n.look()
		n.wantTaints("the clock is right", "gpu-0: unhealthy=FabricUnhealthy:NoSchedule since 0s\n"+
			"gpu-0-mig-1g10gb-0: unhealthy=FabricUnhealthy:NoSchedule since 0s\n"+
			"gpu-0-mig-1g10gb-2: unhealthy=FabricUnhealthy:NoSchedule since 0s\n"+
			"gpu-1: xid=200:NoSchedule since 0s")
		n.answer("GPU-0", gpu.Health{RecoveryAction: gpu.RecoveryNone})
		n.pass(10 * time.Minute)
		n.wantTaints("a quiet time later", "")
	}
}

// TestNewsFromAClockThatWasAhead: the state that another instance saved then is not the latest for good.
func TestNewsFromAClockThatWasAhead(t *testing.T) {
	n := newTestNode(t)
	n.clock = start.Add(365 * 24 * time.Hour)
	n.xid("GPU-1", 200)
	n.flush()
	file := filepath.Join(n.dir, "health.json")
	ahead, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n = newTestNode(t)
	n.xid("GPU-1", 200)
	n.pass(time.Hour)
	n.wantTaints("an hour later", "")
	if err := os.WriteFile(filepath.Join(n.dir, filepath.Base(file)), ahead, 0o600); err != nil {
		t.Fatal(err)
	}
	n.alone = false
	n.clock = n.clock.Add(time.Minute)
	n.look()
	n.wantTaints("it is news", "gpu-1: xid=200:NoSchedule since 1h1m0s")
	n.flush()
	n.pass(20 * time.Minute)
	n.wantTaints("a quiet time later", "")
}

// TestCountsAreSaved: what only counts is saved every savePeriod, and nothing is saved if nothing has changed.
func TestCountsAreSaved(t *testing.T) {
	n := newTestNode(t)
	saves := func() bool {
		n.Paused(t.Context(), n.now(), "")
		return n.Actions().SaveSoon
	}
	n.xid("GPU-1", 48)
	n.flush()
	n.clock = n.clock.Add(savePeriod)
	n.want("nothing has changed, and nothing is saved", !saves())
	n.xid("GPU-1", 48)
	n.want("the XID has come again, and is saved", saves())
	n.flush()
	n.xid("GPU-1", 48)
	n.want("it has come again at once, and is not saved", !saves())
}

// TestSaveBesideAnother: an instance writes only with what the other one has saved, and not while that writes.
func TestSaveBesideAnother(t *testing.T) {
	n := newTestNode(t)
	n.flush()
	n.alone = false
	n.xid("GPU-1", 48)
	err := health.Locked(n.dir, func() error {
		n.flush()
		other, err := health.Load(n.dir)
		if len(other.Conditions) > 0 {
			t.Errorf("got %v, want nothing while the other one writes", other.Conditions)
		}
		other.See(start, "a", health.Subject{GPU: "GPU-0"}, "XID54", "")
		return errors.Join(err, other.Save(n.dir))
	})
	if err != nil {
		t.Fatal(err)
	}
	n.flush()
	saved, err := health.Load(n.dir)
	if err != nil || len(saved.Conditions) != 2 {
		t.Errorf("got %v, %v, want XID 48 and XID 54", saved.Conditions, err)
	}
}

func TestTextsOfEvents(t *testing.T) {
	for _, row := range []struct {
		name   string
		policy health.Policy
		do     func(n *testNode)
		want   string
	}{
		{"a reset helps", health.Policy{}, func(n *testNode) { n.xid("GPU-1", 48) },
			"GPU gpu-1 (NVIDIA H100, GPU-1): XID 48: A memory error that could not be corrected. " +
				"Since 2026-11-22T12:00:00Z. What to do: End the programs on the GPU, and reset it: " +
				"nvidia-smi -r -i GPU-1. New claims avoid it (NoSchedule), until the GPU has been reset, " +
				"or NVIDIA's driver says that the GPU needs no recovery."},
		{"pods are evicted", rules(health.EffectNoExecute, "XID79"), func(n *testNode) { n.xid("GPU-1", 79) },
			"GPU gpu-1 (NVIDIA H100, GPU-1): XID 79: The GPU has fallen off the PCIe bus. Since " +
				"2026-11-22T12:00:00Z. " +
				"What to do: Drain the node and reboot it. If it comes back, check the GPU's seat and its PCIe link. " +
				"Its pods are evicted unless they tolerate the taint by effect: NoExecute, and new claims avoid it, " +
				"until the node has been rebooted, or NVIDIA's driver says that the GPU needs no recovery."},
		{"pods stay", rules(health.EffectNoExecute, "XID79"), func(n *testNode) {
			n.found.Untainted = true
			n.look()
			n.xid("GPU-1", 79)
		}, "GPU gpu-1 (NVIDIA H100, GPU-1): XID 79: The GPU has fallen off the PCIe bus. Since 2026-11-22T12:00:00Z. " +
			"What to do: Drain the node and reboot it. If it comes back, check the GPU's seat and its PCIe link. " +
			"Its pods stay, because the API server stores no taints (feature gate DRADeviceTaints); new claims avoid " +
			"it, until the node has been rebooted, or NVIDIA's driver says that the GPU needs no recovery."},
		{"a partition, and an XID that comes back", health.Policy{}, func(n *testNode) {
			n.xidAt(9, 999)
			n.pass(10 * time.Minute)
			n.texts()
			n.xidAt(9, 999)
		}, "partition gpu-0-mig-1g10gb-2 (NVIDIA H100, GPU-0): XID 999: An XID for which the driver knows no action. " +
			"Since 2026-11-22T12:10:00Z. It has come back once within a day, so it does not end before it has been " +
			"gone for 20m0s. What to do: Look it up in NVIDIA's XID catalog and in the kernel log. " +
			"New claims avoid it (NoSchedule), until it has not occurred for 20m0s."},
		{"the error of a program", health.Policy{}, func(n *testNode) { n.xid("GPU-1", 43) },
			"GPU gpu-1 (NVIDIA H100, GPU-1): XID 43: A program failed and was ended. The GPU is healthy. " +
				"Since 2026-11-22T12:00:00Z. What to do: Debug the program. The GPU needs nothing. " +
				"It keeps no claim away."},
		{"a link is down", health.Policy{}, func(n *testNode) {
			n.answer("GPU-1", gpu.Health{LinksUp: []int{0, 1}})
			n.answer("GPU-1", gpu.Health{LinksUp: []int{0}})
		}, "GPU gpu-1 (NVIDIA H100, GPU-1): NVLinkDown (links 1): An NVLink that was active is down. " +
			"Since 2026-11-22T12:00:00Z. What to do: Reset the GPUs at both ends. If it stays down, " +
			"check the link and " +
			"its peer. New claims avoid it (NoSchedule), until the GPU no longer reports it."},
		{"one thing ends, another is left", health.Policy{}, func(n *testNode) {
			n.xid("GPU-1", 999)
			n.answer("GPU-1", gpu.Health{RowsFailed: true})
			n.texts()
			n.pass(10 * time.Minute)
		}, "GPU gpu-1 (NVIDIA H100, GPU-1): XID 999 has ended (quiet) after 10m0s; still wrong: RowRemapFailed"},
		{"a lost GPU is back", health.Policy{}, func(n *testNode) {
			n.found.GPUs[1].Lost = true
			n.look()
			n.found.GPUs[1].Lost = false
			n.pass(time.Minute)
			n.answer("GPU-1", gpu.Health{})
		}, "GPU gpu-1 (NVIDIA H100, GPU-1): GPULost has ended (healthy again) after 1m0s; new claims can have it"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newTestNode(t)
			n.policy = row.policy
			n.look()
			row.do(n)
			got := n.texts()
			if len(got) != 1 {
				t.Fatalf("got events %q, want one", got)
			}
			if got := strings.SplitN(got[0], ": ", 3)[2]; got != row.want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// TestDiscoveriesAskedForByEvents: what NVML has no table for is looked at, though not a thousand times a second.
func TestDiscoveriesAskedForByEvents(t *testing.T) {
	for _, row := range []struct {
		name string
		gpu.Event
		want string
	}{
		{"another event", gpu.Event{GPU: "GPU-1", Kind: gpu.EventOther}, "2 discoveries, 2000 rechecks"},
		{"an unknown GPU was lost", gpu.Event{Kind: gpu.EventLost}, "2 discoveries, 2000 rechecks"},
		{"an XID of an unknown GPU", gpu.Event{Kind: gpu.EventXID, XID: 79}, "2 discoveries, 2000 rechecks"},
		{"an XID", gpu.Event{GPU: "GPU-1", Kind: gpu.EventXID, XID: 154}, "1 discoveries, 2000 rechecks"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := newTestNode(t)
			for i := range 2000 {
				row.At = start.Add(time.Duration(i) * time.Millisecond)
				n.occurred(row.Event)
			}
			if got := fmt.Sprintf("%d discoveries, %d rechecks", n.discovered, n.rechecked); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// Pods that wait for a GPU that was refused to their claim are evicted, until none waits any more.
func TestRefused(t *testing.T) {
	n := newTestNode(t)
	taint := func(what, want string) {
		t.Helper()
		got := ""
		for _, taint := range n.Taints(inventory.Inventory{n.found.GPUs[0]})[0] {
			got += taint.Value + ":" + taint.Effect
		}
		if got != want {
			t.Errorf("%s: got the taint %q, want %q", what, got, want)
		}
	}
	n.answer("GPU-0", gpu.Health{RowsFailed: true})
	taint("sick", "RowRemapFailed:NoSchedule")
	n.hold("later", sharing.Assignment{Device: n.found.GPUs[0].Name})
	n.Refused(n.clock, "GPU-0")
	taint("refused, and held since the last discovery", "RowRemapFailed:NoSchedule")
	later, err := n.records.Get("later")
	if err == nil {
		later.Phase = checkpoint.Releasing // its pod has ended, and the sick GPU is not restored
		err = n.records.Put(later)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.Refused(n.clock, "GPU-0")
	n.do()
	taint("refused", "RowRemapFailed:NoExecute")
	n.pass(refusedFor - time.Second)
	n.Refused(n.clock, "GPU-0")
	n.pass(refusedFor - time.Second)
	taint("refused again", "RowRemapFailed:NoExecute")
	n.held = []gpu.UUID{"GPU-0"}
	n.look()
	taint("held by another claim, whose pods stay", "RowRemapFailed:NoSchedule")
	n.held = nil
	n.look()
	before := n.changes
	n.pass(time.Second)
	taint("nobody waits any more", "RowRemapFailed:NoSchedule")
	if n.changes == before {
		t.Error("the taint is not published")
	}
}
