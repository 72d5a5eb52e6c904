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
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/publish"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

const driver = "gpu.nvidia.com"

const configHead = "apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\n"

func TestAssignModes(t *testing.T) {
	config, err := nodeconfig.Parse([]byte(configHead + "gpus: [{select: {index: 1}, sharing: {replicated: 4}}, " +
		"{sharing: exclusive}]"))
	if err != nil {
		t.Fatal(err)
	}
	device := func(index int, use gpu.SharingMode) gpu.Device {
		return gpu.Device{Name: fmt.Sprintf("gpu-%d", index), UUID: gpu.UUID(fmt.Sprintf("GPU-%d", index)),
			Index: index, Use: use}
	}
	found := inventory.Inventory{device(0, gpu.SharingMode{}), device(1, gpu.SharingMode{})}
	fractional, exclusive := gpu.SharingMode{}, gpu.SharingMode{Sharing: gpu.Exclusive}
	replicated := gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4}
	for _, row := range []struct {
		name  string
		known inventory.Inventory
		held  string
		want  string
	}{
		{"new GPUs have the configured mode at once", nil, "", "gpu-0 exclusive\ngpu-1 replicated: 4, isolation mps"},
		{"also new ones that a claim holds", nil, "gpu-0", "gpu-0 exclusive\ngpu-1 replicated: 4, isolation mps"},
		{"free GPUs change", inventory.Inventory{device(0, fractional), device(1, exclusive)}, "",
			"gpu-0 exclusive\ngpu-1 replicated: 4, isolation mps"},
		{"a GPU that a claim holds waits", inventory.Inventory{device(0, fractional), device(1, exclusive)}, "gpu-0",
			"gpu-0 fractional, isolation mps\ngpu-1 replicated: 4, isolation mps\n" +
				"gpu-0 GPU-0 from fractional, isolation mps to exclusive: ns/gpu-0-a, ns/gpu-0-b"},
		{"one that has its mode already does not", inventory.Inventory{device(0, exclusive), device(1, replicated)},
			"gpu-0 gpu-1",
			"gpu-0 exclusive\ngpu-1 replicated: 4, isolation mps"},
		{"another number of replicas waits, too", inventory.Inventory{device(0, exclusive),
			device(1, gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 2})}, "gpu-1",
			"gpu-0 exclusive\ngpu-1 replicated: 2, isolation mps\n" +
				"gpu-1 GPU-1 from replicated: 2, isolation mps to replicated: 4, isolation mps: ns/gpu-1-a, " +
				"ns/gpu-1-b"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var r records
			for _, device := range strings.Fields(row.held) {
				for _, name := range []string{device + "-a", device + "-b"} {
					r.after = append(r.after, checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns",
						Name: name},
						Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: device}}}})
				}
			}
			settled, pending := assignModes(found, row.known, r, config.For)
			got := usesOf(settled)
			for _, p := range pending {
				var names []string
				for _, c := range p.Claims {
					names = append(names, c.String())
				}
				got += fmt.Sprintf("\n%s %s from %s to %s: %s", p.Device, p.UUID, p.From, p.To,
					strings.Join(names, ", "))
			}
			if got != row.want {
				t.Errorf("\ngot\n%s\nwant\n%s", got, row.want)
			}
			if found[0].Use != (gpu.SharingMode{}) {
				t.Error("what was found has been changed")
			}
		})
	}
}

func TestModeBeforeVolta(t *testing.T) {
	found := inventory.Inventory{{Name: "gpu-0", Product: gpu.Product{ComputeCapability: gpu.Version{Major: 6}}}}
	for name, use := range map[string]gpu.SharingMode{"exclusive": {},
		"replicated: 2, isolation none": {Sharing: gpu.Replicated, Replicas: 2}} {
		got, _ := assignModes(found, nil, records{}, func(gpu.Device) gpu.SharingMode { return use })
		if got := usesOf(got); got != "gpu-0 "+name {
			t.Errorf("got %s, want %s", got, name)
		}
	}
}

func usesOf(inv inventory.Inventory) string {
	var lines []string
	for _, d := range inv {
		lines = append(lines, d.Name+" "+d.Use.String())
	}
	return strings.Join(lines, "\n")
}

func TestHolders(t *testing.T) {
	a := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "a", UID: "a"},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{
			{Device: "gpu-0"}, {Device: "gpu-0", ShareID: "2"}, {Device: "gpu-1", AdminAccess: true}}}}
	b := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: "b", UID: "b"},
		Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-0"}}}}
	for _, row := range []struct {
		name       string
		device     string
		incomplete error
		want       string
	}{
		{"each claim is named once", "gpu-0", nil, "[ns/a ns/b]"},
		{"who looks after a GPU does not hold it", "gpu-1", nil, "[]"},
		{"an unreadable record may hold any", "gpu-1", errors.New("broken"), "[unknown/unreadable-record]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := fmt.Sprint(newRecords("", nil, []checkpoint.PreparedClaim{a, b}, row.incomplete).claimsOn(
				row.device)); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// testNode is a Node with GPUs, a directory of node configurations, and its recorded events. It is its own Machine and
// Publisher, and its loop is stepped by hand.
type testNode struct {
	*testing.T
	*Node
	devices   []gpu.Device
	unlisted  []gpu.Device        // by NVML
	removed   gpu.UUID            // from the PCI bus
	stays     int                 // how many looks it stays there before
	failure   error               // of discoveries
	users     map[gpu.UUID]string // programs on GPUs
	openers   map[gpu.UUID]string // those that keep them from virtual machines
	library   string
	changed   atomic.Bool // the driver
	alone     atomic.Bool // no other instance runs
	records   *checkpoint.Records
	labels    map[string]string
	nodeUID   types.UID
	apiDown   bool
	stale     atomic.Int32 // how often the slices were called so
	last      *found       // by the last discovery by hand
	published inventory.Inventory

	mu          sync.Mutex
	recorded    []string // events
	discoveries int
	occurred    func(gpu.Event) // of Watch
}

func newTestNode(t *testing.T) *testNode {
	t.Helper()
	dir := t.TempDir()
	records, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	l := &testNode{T: t, records: records}
	l.alone.Store(true)
	l.devices = []gpu.Device{
		{Name: "gpu-0", UUID: "GPU-0", Type: gpu.TypeGPU, Index: 0, PCI: gpu.PCIAddress{Bus: 1}},
		{Name: "gpu-1", UUID: "GPU-1", Type: gpu.TypeGPU, Index: 1, PCI: gpu.PCIAddress{Bus: 2}},
	}
	client := fake.NewClientset()
	client.PrependReactor("get", "nodes", l.getNode)
	l.restart(Options{NodeName: "node", Dir: dir, ConfigDir: filepath.Join(dir, "node-config"), Records: records,
		Client: client, Machine: l, Publisher: l, Alone: l.alone.Load, Resume: make(chan struct{}, 1),
		Gates: publish.New(publish.PublisherConfig{}).Gates, VirtualMachines: true})
	if err := os.Mkdir(l.ConfigDir, 0o700); err != nil {
		t.Fatal(err)
	}
	return l
}

// restart creates a new Node, which knows only what is on disk.
func (l *testNode) restart(c Options) {
	c.Reporter = report.NewReporterTo(l, report.ReporterConfig{Driver: driver, Node: c.NodeName, Client: c.Client})
	c.Readiness, c.Metrics = report.NewReadiness(time.Minute), report.NewMetrics(c.Records)
	l.Node = New(c)
}

// getNode is the answer of the API server when it is asked for the node.
func (l *testNode) getNode(clienttesting.Action) (bool, runtime.Object, error) {
	if l.apiDown {
		return true, nil, errors.New("connection refused")
	}
	return true, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: l.labels, UID: l.nodeUID}}, nil
}

func (l *testNode) Discover(context.Context) (gpu.Discovery, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discoveries++
	if l.failure != nil {
		return gpu.Discovery{}, l.failure
	}
	return gpu.Discovery{Devices: l.devices, Unlisted: l.unlisted}, nil
}

func (l *testNode) Users(_ context.Context, d gpu.Device) ([]string, error) {
	return strings.Fields(l.users[d.UUID]), nil
}

func (l *testNode) Openers(_ context.Context, d gpu.Device) ([]string, error) {
	return strings.Fields(l.openers[d.UUID]), nil
}

func (l *testNode) DriverChanged() bool { return l.changed.Swap(false) }
func (l *testNode) LibraryDir() string  { return l.library }

func (l *testNode) Watch(ctx context.Context, found func(gpu.Event)) {
	l.mu.Lock()
	l.occurred = found
	l.mu.Unlock()
	<-ctx.Done()
}

func (*testNode) Recheck(gpu.UUID)    {}
func (*testNode) Release(string)      {}
func (*testNode) StopWatching(string) {}

func (l *testNode) Removed(d gpu.Device) bool {
	if l.removed != d.UUID {
		return false
	}
	l.stays--
	return l.stays < 0
}

func (l *testNode) Stale() { l.stale.Add(1) }

func (l *testNode) Set(inv inventory.Inventory) { l.published = inv }

// look runs a discovery by hand, and returns its error.
func (l *testNode) look() error {
	l.Helper()
	l.state.discovering = false
	l.last = l.discover(l.Context(), l.turn(l.Context(), discoverNow{}))
	for len(l.events) > 0 {
		l.turn(l.Context(), <-l.events)
	}
	l.turn(l.Context(), l.last)
	return l.last.err
}

// write creates a node configuration; "" removes it.
func (l *testNode) write(name, text string) {
	l.Helper()
	file := filepath.Join(l.ConfigDir, name)
	err := os.WriteFile(file, []byte(text), 0o600)
	if text == "" {
		err = os.Remove(file)
	}
	if err != nil {
		l.Fatal(err)
	}
}

// hold records a claim on a device.
func (l *testNode) hold(claim, device string) checkpoint.PreparedClaim {
	l.Helper()
	rec := checkpoint.PreparedClaim{Claim: sharing.Claim{Namespace: "ns", Name: claim, UID: types.UID(claim)},
		Phase: checkpoint.Prepared,
		Plan:  sharing.Plan{Assignments: []sharing.Assignment{{Device: device, GPU: "GPU"}}}}
	if err := l.records.Put(rec); err != nil {
		l.Fatal(err)
	}
	return rec
}

// want runs a discovery, and compares the modes, the new events, and the metric.
func (l *testNode) want(when, want string) {
	l.Helper()
	got := []string{}
	if err := l.look(); err != nil {
		got = append(got, "not ready: "+err.Error())
	} else {
		got = append(got, usesOf(l.Inventory()))
	}
	got = append(got, l.recorded...)
	got = append(got, l.metric()...)
	l.recorded = nil
	if got := strings.Join(got, "\n"); got != strings.TrimSpace(want) {
		l.Errorf("%s:\ngot\n%s\nwant\n%s", when, got, strings.TrimSpace(want))
	}
}

func (l *testNode) metric() []string {
	l.Helper()
	families, err := l.Metrics.Registry.Gather()
	if err != nil {
		l.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		if family.GetName() != "gpu_dra_mode_change_pending_claims" {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			lines = append(lines, fmt.Sprintf("metric %s: %v", strings.Join(labels, " "), m.GetGauge().GetValue()))
		}
	}
	return lines
}

// Eventf implements events.EventRecorder.
func (l *testNode) Eventf(_, _ runtime.Object, eventType, reason, _, note string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recorded = append(l.recorded, eventType+" "+reason+": "+fmt.Sprintf(note, args...))
}

const defaultModes = "gpu-0 fractional, isolation mps\ngpu-1 fractional, isolation mps"

func TestNodeConfigurationInForce(t *testing.T) {
	l := newTestNode(t)
	l.want("nothing is configured", defaultModes)
	l.write("default", configHead+"gpus: [{sharing: exclusive}]")
	l.want("it changes while the plugin runs", `
gpu-0 exclusive
gpu-1 exclusive
Normal ModeChanged: GPU gpu-0 (GPU-0) changed from fractional, isolation mps to exclusive
Normal ModeChanged: GPU gpu-1 (GPU-1) changed from fractional, isolation mps to exclusive`)
	l.want("nothing is told twice", "gpu-0 exclusive\ngpu-1 exclusive")

	l.write("default", configHead+"gpus:\n  - sharing: replicate\n  - isolaton: none\n")
	l.want("a typo leaves the old one in force", `
gpu-0 exclusive
gpu-1 exclusive
Warning NodeConfigRefused: node configuration default: line 4: gpus[0].sharing: "replicate": want fractional, exclusive, unlimited or {replicated: N}; line 5: gpus[1].isolaton: unknown field; accepted here: select, sharing, partitions, isolation, hook, sharedOnly, onePerClaim, passthrough, health; meanwhile the one before stays in force`)
	l.want("and is told once", "gpu-0 exclusive\ngpu-1 exclusive")
	l.restart(l.Options)
	l.want("also when the plugin starts anew: modes are remembered", `
gpu-0 exclusive
gpu-1 exclusive
Warning NodeConfigRefused: node configuration default: line 4: gpus[0].sharing: "replicate": want fractional, exclusive, unlimited or {replicated: N}; line 5: gpus[1].isolaton: unknown field; accepted here: select, sharing, partitions, isolation, hook, sharedOnly, onePerClaim, passthrough, health; meanwhile every GPU stays in the mode that it had, and one that had none is not offered`)
	l.devices = append(l.devices, gpu.Device{Name: "gpu-2", UUID: "GPU-2", Type: gpu.TypeGPU, Index: 2,
		PCI: gpu.PCIAddress{Bus: 3}})
	l.want("a GPU that comes meanwhile is left out", "gpu-0 exclusive\ngpu-1 exclusive")

	l.write("default", "version: v1\nflags: {gdsEnabled: true}\nsharing: {timeSlicing: {resources: [{name: "+
		"nvidia.com/gpu, devices: [2], replicas: 4}]}}")
	l.want("the mistake is mended, in the device plugin's format", `
gpu-0 fractional, isolation mps
gpu-1 fractional, isolation mps
gpu-2 replicated: 4, isolation none
Warning NodeConfigWarning: line 2: flags.gdsEnabled: ignored: containers do not get its device nodes from this driver
Normal ModeChanged: GPU gpu-0 (GPU-0) changed from exclusive to fractional, isolation mps
Normal ModeChanged: GPU gpu-1 (GPU-1) changed from exclusive to fractional, isolation mps`)
	l.write("default", "")
	l.want("it is removed", defaultModes+`
gpu-2 fractional, isolation mps
Normal ModeChanged: GPU gpu-2 (GPU-2) changed from replicated: 4, isolation none to fractional, isolation mps`)
}

// A look at the machine parses no configuration that is in force already.
func TestTheSameNodeConfigurationIsNotParsedAgain(t *testing.T) {
	l := newTestNode(t)
	warned := "version: v1\nflags: {gdsEnabled: true}\n"
	var parsed []*string // the warning of each
	for _, text := range []string{warned, warned, warned + "#"} {
		l.write("default", text)
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, &l.config.inForce.Warnings[0])
	}
	if parsed[0] != parsed[1] || parsed[1] == parsed[2] {
		t.Errorf("parsed again: unchanged: %v, changed: %v; want only the latter", parsed[0] != parsed[1],
			parsed[1] != parsed[2])
	}
}

// Without the labels of the node, the modes from before the restart stay, and the rules of health are not known.
func TestRulesOfHealthAreNotKnown(t *testing.T) {
	l := newTestNode(t)
	l.write("default", configHead+"gpus: [{health: [{xids: [79], recovery: Manual}]}]")
	l.want("the first start", defaultModes)
	l.apiDown = true
	l.restart(l.Options)
	for _, down := range []bool{true, false} {
		l.apiDown = down
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		if rules := l.last.noConfig == nil; rules == down {
			t.Errorf("labels cannot be read: %v, rules known: %v", down, rules)
		}
	}
}

// The first configuration is refused. No default applies: it may have been meant to be exclusive.
func TestNodeConfigurationNeverInForce(t *testing.T) {
	l := newTestNode(t)
	l.write("default", configHead+"gpus: {}")
	l.want("a typo at the first start", `
not ready: node configuration default: line 3: gpus: a map: want a list
Warning NodeConfigRefused: node configuration default: line 3: gpus: a map: want a list; meanwhile every GPU stays in the mode that it had, and one that had none is not offered`)
	l.write("default", configHead+"gpus: [{sharing: exclusive}]")
	l.want("it is mended", "gpu-0 exclusive\ngpu-1 exclusive")
}

func TestModeChangeWaitsForClaims(t *testing.T) {
	l := newTestNode(t)
	l.want("nothing is configured", defaultModes)
	a, b := l.hold("a", "gpu-0"), l.hold("b", "gpu-0")
	l.write("default", configHead+"gpus: [{select: {index: 0}, sharing: exclusive}]")
	l.want("two claims hold the GPU", defaultModes+`
Normal ModeChangePending: GPU gpu-0 (GPU-0) will change from fractional, isolation mps to exclusive when these claims have ended: ns/a, ns/b
metric claim=a from=fractional, isolation mps namespace=ns to=exclusive uuid=GPU-0: 1
metric claim=b from=fractional, isolation mps namespace=ns to=exclusive uuid=GPU-0: 1`)
	l.restart(l.Options)
	l.want("the plugin starts anew", defaultModes+`
Normal ModeChangePending: GPU gpu-0 (GPU-0) will change from fractional, isolation mps to exclusive when these claims have ended: ns/a, ns/b
metric claim=a from=fractional, isolation mps namespace=ns to=exclusive uuid=GPU-0: 1
metric claim=b from=fractional, isolation mps namespace=ns to=exclusive uuid=GPU-0: 1`)
	l.release(a)
	l.want("one has ended", defaultModes+"\nmetric claim=b from=fractional, isolation mps namespace=ns to=exclusive "+
		"uuid=GPU-0: 1")
	l.write("default", configHead+"gpus: [{select: {index: 0}, sharing: {replicated: 2}}]")
	l.want("another mode is wanted", defaultModes+`
Normal ModeChangePending: GPU gpu-0 (GPU-0) will change from fractional, isolation mps to replicated: 2, isolation mps when these claims have ended: ns/b
metric claim=b from=fractional, isolation mps namespace=ns to=replicated: 2, isolation mps uuid=GPU-0: 1`)
	l.release(b)
	l.want("the other has ended", `
gpu-0 replicated: 2, isolation mps
gpu-1 fractional, isolation mps
Normal ModeChanged: GPU gpu-0 (GPU-0) changed from fractional, isolation mps to replicated: 2, isolation mps`)
}

func (l *testNode) release(rec checkpoint.PreparedClaim) {
	l.Helper()
	if err := l.records.Delete(rec); err != nil {
		l.Fatal(err)
	}
}

func TestLabelsChooseTheNodeConfiguration(t *testing.T) {
	exclusive := configHead + "gpus: [{sharing: exclusive}]"
	replicated := "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
	for _, row := range []struct {
		name   string
		labels map[string]string
		want   string
	}{
		{"no label", nil, "gpu-0 exclusive\ngpu-1 exclusive"},
		{"our label", map[string]string{configLabel: "four"}, "gpu-0 replicated: 4, isolation none\ngpu-1 " +
			"replicated: 4, isolation none"},
		{"the device plugin's label", map[string]string{devicePluginLabel: "four"},
			"gpu-0 replicated: 4, isolation none\ngpu-1 replicated: 4, isolation none"},
		{"ours comes first", map[string]string{configLabel: "default", devicePluginLabel: "four"},
			"gpu-0 exclusive\ngpu-1 exclusive"},
		{"our label with a typo", map[string]string{configLabel: "fuor"}, `
not ready: node configuration fuor, which the label gpu.nvidia.com/node-config of this node names, is not there
Warning NodeConfigRefused: node configuration fuor, which the label gpu.nvidia.com/node-config of this node names, is not there; meanwhile every GPU stays in the mode that it had, and one that had none is not offered`},
		{"a configuration that only the device plugin has", map[string]string{devicePluginLabel: "theirs"}, `
gpu-0 exclusive
gpu-1 exclusive
Warning NodeConfigWarning: the label nvidia.com/device-plugin.config of this node names theirs, of which there is no node configuration: it is ignored`},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newTestNode(t)
			l.write("default", exclusive)
			l.write("four", replicated)
			l.labels = row.labels
			l.want(row.name, row.want)
		})
	}
}

func TestLabelsAreCached(t *testing.T) {
	l := newTestNode(t)
	l.write("default", configHead+"gpus: [{sharing: exclusive}]")
	l.write("none", configHead+"gpus: []")
	l.apiDown = true
	l.want("they have never been read", `
not ready: read the labels of this node, which name its node configuration: connection refused
Warning NodeConfigRefused: read the labels of this node, which name its node configuration: connection refused; meanwhile every GPU stays in the mode that it had, and one that had none is not offered`)
	l.apiDown = false
	l.want("they can be read", "gpu-0 exclusive\ngpu-1 exclusive")
	l.labels = map[string]string{configLabel: "none"}
	l.want("too early", "gpu-0 exclusive\ngpu-1 exclusive")
	l.config.expires = time.Now()
	l.apiDown = true
	l.want("they cannot be read any more", "gpu-0 exclusive\ngpu-1 exclusive")
	l.config.expires = time.Now()
	l.apiDown = false
	l.want("and are read again", defaultModes+`
Normal ModeChanged: GPU gpu-0 (GPU-0) changed from exclusive to fractional, isolation mps
Normal ModeChanged: GPU gpu-1 (GPU-1) changed from exclusive to fractional, isolation mps`)
}

func TestALackOfLabelsIsCachedToo(t *testing.T) {
	l := newTestNode(t)
	for range 2 {
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
	}
	if reads := len(l.Client.(*fake.Clientset).Actions()); reads != 1 {
		t.Errorf("the labels were read %d times in two discoveries, want once", reads)
	}
}

// The kubelet tells when it has registered its node anew. Whoever makes the Node object anew by hand tells nobody.
func TestAnotherNodeObjectIsNoticedWithItsLabels(t *testing.T) {
	l := newTestNode(t)
	l.nodeUID = "a"
	for _, row := range []struct {
		name    string
		uid     types.UID
		apiDown bool
		want    int32
	}{
		{"the first", "a", false, 1},
		{"the same", "a", false, 0},
		{"nobody knows", "b", true, 0},
		{"another one", "b", false, 1},
		{"the other one again", "b", false, 0},
	} {
		l.nodeUID, l.apiDown = row.uid, row.apiDown
		l.config.expires = time.Now()
		before := l.stale.Load()
		if err := l.look(); err != nil {
			t.Fatal(err)
		}
		if got := l.stale.Load() - before; got != row.want {
			t.Errorf("%s: the slices were to be written anew %d times, want %d", row.name, got, row.want)
		}
	}
}

func TestNodeLabels(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node",
		Labels: map[string]string{configLabel: "a"}}})
	for name, want := range map[string]string{"node": "a <nil>", "other": " read the labels of this node, which name " +
		"its node configuration: nodes \"other\" not found"} {
		labels, err := (&configSource{Options: Options{NodeName: name, Client: client,
			Publisher: newTestNode(t)}}).currentLabels(t.Context())
		if got := fmt.Sprint(labels[configLabel], " ", err); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// Without NVIDIA's driver no GPU can be given to a claim. So new claims are kept away, also by an instance that has
// started without it.
func TestUnread(t *testing.T) {
	l := newTestNode(t)
	l.want("with the driver", defaultModes)
	for _, restarted := range []bool{false, true} {
		l.restart(l.Options)
		l.published = nil
		if !restarted {
			l.want("before", defaultModes)
		}
		l.failure = errors.New("no driver")
		for range tolerated {
			if got := fmt.Sprint(taintsOf(l.published)); got != "[]" {
				t.Errorf("restarted %v: got %s before the last of the discoveries that may fail", restarted, got)
			}
			_ = l.look()
		}
		l.turn(t.Context(), registered{})
		const want = "[gpu-0 gpu.nvidia.com/unmonitored NoSchedule gpu-1 gpu.nvidia.com/unmonitored NoSchedule]"
		if got := fmt.Sprint(taintsOf(l.published)); got != want {
			t.Errorf("restarted %v: got %s, want %s", restarted, got, want)
		}
		if _, err := l.Devices(); (err != nil) != restarted {
			t.Errorf("restarted %v: got %v", restarted, err)
		}
		l.failure = nil
		_ = l.look()
		if got := fmt.Sprint(taintsOf(l.published)); len(l.published) != 2 || got != "[]" {
			t.Errorf("restarted %v: got %s of %d GPUs with the driver", restarted, got, len(l.published))
		}
	}
}

func taintsOf(inv inventory.Inventory) (all []string) {
	for _, d := range inv {
		for _, t := range d.Taints {
			all = append(all, d.Name, t.Key, t.Effect)
		}
	}
	return all
}
