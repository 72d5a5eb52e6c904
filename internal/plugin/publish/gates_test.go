// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/checkpoint"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
	"github.com/gpudra/gpu-dra-driver/pkg/sharing"
)

// oldServer drops and refuses what an API server without feature gates does, and stores nothing.
type oldServer struct {
	gates   []string // that it lacks; "v1.35": it is that version
	refuses error    // of every dry run
}

func (o *oldServer) lacks(gate string) bool {
	return strings.Contains(strings.Join(o.gates, " "), gate)
}

func (o *oldServer) create(action clienttesting.Action) (bool, runtime.Object, error) {
	create := action.(clienttesting.CreateActionImpl)
	if fmt.Sprint(create.CreateOptions.DryRun) != "[All]" {
		return true, nil, errors.New("not a dry run")
	}
	if o.refuses != nil {
		return true, nil, o.refuses
	}
	slice := create.Object.(*resourceapi.ResourceSlice).DeepCopy()
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if o.lacks("shares") {
			d.AllowMultipleAllocations = nil
		}
		if o.lacks("counters") {
			d.ConsumesCounters = nil
		}
		for _, taint := range d.Taints {
			if taint.Effect == resourceapi.DeviceTaintEffectNone && o.lacks("none") {
				return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil)
			}
		}
		if o.lacks("taints") {
			d.Taints = nil
		}
	}
	return true, slice, nil
}

// learned returns the Gates of this API server, which it has asked.
func learned(t *testing.T, o *oldServer, records ...checkpoint.PreparedClaim) *Gates {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("create", "resourceslices", o.create)
	setVersion(client, o)
	g := newGates(PublisherConfig{Client: client, Driver: "gpu.nvidia.com", Node: "node",
		Records:  fixedRecords(records),
		Reporter: report.NewReporter(t.Context(), report.ReporterConfig{Client: client})})
	lacks, err := g.ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.learn(t.Context(), lacks)
	return g
}

func setVersion(client *fake.Clientset, o *oldServer) {
	is := "v1.37.1"
	if i := slices.IndexFunc(o.gates, func(g string) bool { return strings.HasPrefix(g, "v") }); i >= 0 {
		is = o.gates[i]
	}
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: is}
}

type fixedRecords []checkpoint.PreparedClaim

func (r fixedRecords) List() ([]checkpoint.PreparedClaim, error) { return r, nil }

func TestFeatures(t *testing.T) {
	const ofAll = "DRAPartitionableDevices of Kubernetes 1.36.2, or 1.35.6, or newer"
	noDryRuns := apierrors.NewBadRequest("admission webhook does not support dry run")
	for _, row := range []struct {
		name    string
		server  oldServer
		dropped []string
		want    string
	}{
		{"Kubernetes 1.37", oldServer{}, nil, ""},
		{"Kubernetes 1.36", oldServer{gates: []string{"v1.36.3"}}, nil,
			"DRAConsumableCapacity of Kubernetes 1.37 or newer"},
		{"the first patches of Kubernetes 1.36", oldServer{gates: []string{"v1.36.1"}}, nil,
			ofAll},
		{"the first patch of Kubernetes 1.36, of a vendor", oldServer{gates: []string{"v1.36.0-gke.100"}}, nil, ofAll},
		{"the first fixed patch of Kubernetes 1.36", oldServer{gates: []string{"v1.36.2"}}, nil,
			"DRAConsumableCapacity of Kubernetes 1.37 or newer"},
		{"Kubernetes 1.34", oldServer{gates: []string{"v1.34.4", "shares", "counters", "taints", "none"}}, nil,
			"DRAConsumableCapacity, DRAPartitionableDevices, DRADeviceTaints"},
		{"Kubernetes 1.34 with alpha features", oldServer{gates: []string{"v1.34.4", "counters", "none"}}, nil,
			"DRAConsumableCapacity of Kubernetes 1.35 or newer, DRAPartitionableDevices, " +
				"DRADeviceTaints of Kubernetes 1.35 or newer"},
		{"the first patches of Kubernetes 1.35 with alpha features", oldServer{gates: []string{"v1.35.5"}}, nil, ofAll},
		{"Kubernetes 1.35 with alpha features", oldServer{gates: []string{"v1.35.6"}}, nil,
			"DRAConsumableCapacity of Kubernetes 1.36.2 or newer"},
		{"Kubernetes 1.35 without partitions", oldServer{gates: []string{"v1.35.4-gke.100", "counters"}}, nil,
			"DRAPartitionableDevices"},
		{"no dry runs", oldServer{refuses: noDryRuns}, nil, ""},
		{"no dry runs, and fields were dropped", oldServer{refuses: noDryRuns}, []string{"DRAPartitionableDevices"},
			"DRAPartitionableDevices"},
	} {
		t.Run(row.name, func(t *testing.T) {
			g := learned(t, &row.server)
			if row.dropped != nil {
				g.dropped.Store(&row.dropped)
				lacks, err := g.ask(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				g.learn(t.Context(), lacks)
			}
			var got []string
			for _, f := range g.Lacking() {
				got = append(got, f.gate)
			}
			if strings.Join(got, ", ") != row.want {
				t.Errorf("got %s, want %s", strings.Join(got, ", "), row.want)
			}
		})
	}
}

// The plugins of all nodes may ask at once, so each asks once for all features, if the API server knows them.
func TestFeaturesAreAskedTogether(t *testing.T) {
	for _, row := range []struct {
		server oldServer
		want   int // requests
	}{{oldServer{}, 2}, {oldServer{gates: []string{"counters"}}, 2}, {oldServer{gates: []string{"none"}}, 6}} {
		g := learned(t, &row.server)
		if got := len(g.Client.(*fake.Clientset).Actions()); got != row.want {
			t.Errorf("an API server without %q gets %d requests, want %d", row.server.gates, got, row.want)
		}
	}
}

// Everything that an API server can lack, on a node with a GPU with partitions, one that claims hold, and one that
// nobody holds.
func TestFit(t *testing.T) {
	whole := gpu.Device{Name: "gpu-0", UUID: "GPU-0", Type: gpu.TypeGPU, Memory: 8 << 30}
	mig := gpu.Device{Name: "gpu-0-mig-1g10gb-0", Type: gpu.TypeMIG, Memory: 1 << 30, Partition: &gpu.Partition{
		Placement: gpu.Placement{Parent: "GPU-0", Profile: "1g.10gb", Size: 1}}}
	held, idle := whole, whole
	held.Name, held.UUID, held.Lost = "gpu-1", "GPU-1", true
	idle.Name, idle.UUID, idle.Lost = "gpu-2", "GPU-2", true
	unwatched := whole
	unwatched.Name, unwatched.UUID = "gpu-3", "GPU-3"
	unwatched.Taints = []gpu.Taint{{Key: inventory.TaintUnmonitored, Effect: "None"}}
	inv := inventory.Inventory{whole, held, idle, unwatched, mig}
	claim := checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: "gpu-1"}}}}

	for _, row := range []struct{ lacks, want string }{
		{"", "gpu-0 shared counted; gpu-1 shared NoSchedule; gpu-2 shared NoSchedule; gpu-3 shared None; " +
			"gpu-0-mig-1g10gb-0 shared counted; counters; node/monitor: monitor shared"},
		{"none", "gpu-0 shared counted; gpu-1 shared NoSchedule; gpu-2 shared NoSchedule; gpu-3 shared; " +
			"gpu-0-mig-1g10gb-0 shared counted; counters; node/monitor: monitor shared"},
		{"taints none", "gpu-0 shared counted; gpu-1 shared; gpu-3 shared; gpu-0-mig-1g10gb-0 shared counted; " +
			"counters; node/monitor: monitor shared"},
		{"counters", "gpu-0 shared; gpu-1 shared NoSchedule; gpu-2 shared NoSchedule; gpu-3 shared None; " +
			"node/monitor: monitor shared"},
		{"v1.36.1", "gpu-0 shared; gpu-1 shared NoSchedule; gpu-2 shared NoSchedule; gpu-3 shared None; " +
			"node/monitor: monitor shared"},
		{"shares counters taints none", "gpu-0; gpu-1; gpu-3; node/monitor: monitor"},
		{"v1.34.4 counters none", "gpu-0; gpu-1 NoSchedule; gpu-2 NoSchedule; gpu-3; node/monitor: monitor"},
	} {
		t.Run(row.lacks, func(t *testing.T) {
			before := fmt.Sprintf("%+v", inv.Pools("node"))
			g := learned(t, &oldServer{gates: strings.Fields(row.lacks)}, claim)
			pools := inv.Pools("node")
			for name, pool := range pools {
				pools[name] = g.fit(pool, g.Lacking())
			}
			var got []string
			for _, slice := range inventory.Slices(driver, "node", pools) {
				pool := strings.TrimPrefix(slice.Spec.Pool.Name+": ", "node: ")
				for _, d := range slice.Spec.Devices {
					got = append(got, pool+d.Name+traits(d))
				}
				if len(slice.Spec.SharedCounters) > 0 {
					got = append(got, pool+"counters")
				}
			}
			if strings.Join(got, "; ") != row.want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "; "), row.want)
			}
			if len(before) != len(fmt.Sprintf("%+v", inv.Pools("node"))) {
				t.Error("fit has changed its argument")
			}
		})
	}
	// After an update of the driver, claims may hold partitions that it publishes no more.
	partition := mig
	partition.Name = "gpu-0-mig-1g10gb-1"
	own := checkpoint.PreparedClaim{Plan: sharing.Plan{Assignments: []sharing.Assignment{{Device: partition.Name}}}}
	for _, lacks := range []string{"counters", "v1.36.1"} {
		pool := inventory.Inventory{whole, mig, partition}.Pools("node")["node"]
		g := learned(t, &oldServer{gates: []string{lacks}}, own)
		fitted := g.fit(pool, g.Lacking())
		var got []string
		for _, d := range fitted.Slices[0].Devices {
			got = append(got, d.Name+traits(d))
		}
		if want := partition.Name + " shared"; strings.Join(got, "; ") != want {
			t.Errorf("a held partition without %s: got %q, want %s", lacks, got, want)
		}
	}
	g := learned(t, &oldServer{gates: []string{"taints"}})
	nothing := g.fit(inventory.Inventory{}.Pools("node")["node"], g.Lacking())
	if len(nothing.Slices) != 1 {
		t.Errorf("a node without GPUs: got %d slices, want an empty one", len(nothing.Slices))
	}
}

func traits(d resourceapi.Device) string {
	text := ""
	policies := 0
	for _, c := range d.Capacity {
		if c.RequestPolicy != nil {
			policies++
		}
	}
	if d.AllowMultipleAllocations != nil && policies > 0 {
		text += " shared"
	} else if policies > 0 {
		text += " request policies"
	}
	if len(d.ConsumesCounters) > 0 {
		text += " counted"
	}
	for _, taint := range d.Taints {
		text += " " + string(taint.Effect)
	}
	return text
}

func TestLimit(t *testing.T) {
	static, err := nodeconfig.Parse([]byte("apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\ngpus: " +
		"[{partitions: static}]"))
	if err != nil {
		t.Fatal(err)
	}
	unlimited, err := nodeconfig.Parse([]byte("apiVersion: resource.nvidia.com/v1beta1\nkind: NodeConfig\ngpus: " +
		"[{sharing: unlimited}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, lacks string
		config      nodeconfig.Config
		want        string // of a GPU that can be partitioned without a reset
	}{
		{"everything", "", nodeconfig.Config{}, "fractional, isolation mps"},
		{"shares of partitioned GPUs", "v1.35.6", nodeconfig.Config{}, "exclusive"},
		{"shares of partitioned GPUs, static partitions", "v1.35.6", static,
			"fractional, isolation mps, partitions static"},
		{"partitioned GPUs, first patches of 1.35", "v1.35.5", nodeconfig.Config{},
			"fractional, isolation mps, partitions none"},
		{"partitioned GPUs, first patches of 1.36", "v1.36.1", nodeconfig.Config{},
			"fractional, isolation mps, partitions none"},
		{"first patches of 1.36, static partitions", "v1.36.1", static, "fractional, isolation mps, partitions static"},
		{"unlimited partitioned GPUs", "v1.36.3", unlimited, "unlimited, isolation none, partitions none"},
		{"only unlimited GPUs", "v1.36.3", nodeconfig.Config{}, "fractional, isolation mps"},
		{"shares in Kubernetes 1.34", "v1.34.4", static, "exclusive, partitions static"},
		{"no counters", "counters", nodeconfig.Config{}, "fractional, isolation mps, partitions none"},
		{"no counters, static partitions", "counters", static, "fractional, isolation mps, partitions static"},
		{"no shares", "shares", nodeconfig.Config{}, "exclusive"},
		{"no shares, unlimited", "shares", unlimited, "exclusive"},
		{"neither", "shares counters", nodeconfig.Config{}, "exclusive, partitions none"},
	} {
		t.Run(row.name, func(t *testing.T) {
			lacking := learned(t, &oldServer{gates: strings.Fields(row.lacks)}).Lacking()
			partitionable := gpu.Device{MIG: gpu.MIG{Capable: true, Switchable: true}}
			if got := lacking.Limit(partitionable, row.config.For(partitionable)).String(); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
	whole := nodeconfig.Config{}.For(gpu.Device{})
	if got, want := learned(t, &oldServer{gates: []string{"v1.35.6"}}).Lacking().Limit(gpu.Device{}, whole).String(),
		"fractional, isolation mps"; got != want {
		t.Errorf("a GPU without MIG: got %s, want %s", got, want)
	}
}

// The API server is away at the start, answers later, and loses a feature gate after that.
func TestGatesRun(t *testing.T) {
	var state atomic.Pointer[oldServer]
	state.Store(&oldServer{refuses: apierrors.NewInternalError(errors.New("etcd is away"))})
	client := fake.NewClientset()
	client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return state.Load().create(a)
	})
	setVersion(client, &oldServer{})
	ctx, cancel := context.WithCancel(t.Context())
	reporter := report.NewReporter(ctx, report.ReporterConfig{Driver: "gpu.nvidia.com", Node: "node", Client: client})
	g := newGates(PublisherConfig{Client: client, Driver: "gpu.nvidia.com", Node: "node", Records: fixedRecords(nil),
		Reporter: reporter})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.Run(ctx)
	}()
	select {
	case <-g.known:
		t.Error("known before the API server has answered")
	case <-time.After(100 * time.Millisecond):
	}
	state.Store(&oldServer{})
	select {
	case <-g.known:
	case <-time.After(5 * time.Minute):
		t.Fatal("not known though the API server answers")
	}
	state.Store(&oldServer{gates: []string{"counters"}})
	g.failed(ctx, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil), "update slice")
	select {
	case <-g.Changed():
	case <-time.After(5 * time.Minute):
		t.Fatal("the change is not told")
	}
	if got := g.Lacking().Limit(gpu.Device{}, gpu.SharingMode{}).Partitions; got != gpu.PartitionsNone {
		t.Errorf("got partitions %s, want none", got)
	}
	cancel()
	<-ended
}

// A part of a slice that the API server does not store must not keep all devices from being published.
func TestUnstored(t *testing.T) {
	invalid := func(at string) error {
		return fmt.Errorf("update slice: %w", apierrors.NewInvalid(
			schema.GroupKind{Kind: "ResourceSlice"}, "slice", field.ErrorList{
				field.NotSupported(field.NewPath(at), "None", []string{"NoSchedule", "NoExecute"})}))
	}
	pool := resourceapi.ResourcePool{Name: "node"}
	withoutCounters := &resourceslice.DroppedFieldsError{
		DesiredSlice: &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Pool: pool,
			SharedCounters: []resourceapi.CounterSet{{Name: "gpu"}}}},
		ActualSlice: &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Pool: pool}}}
	for _, row := range []struct {
		name string
		err  error
		want string
	}{
		{"a taint is refused", invalid("spec.devices[0].taints[0].effect"), "[]"},
		{"counters are dropped", fmt.Errorf("create slice: %w", withoutCounters),
			"[DRAPartitionableDevices]"},
		{"no answer", errors.New("connection refused, taints unknown"), ""},
	} {
		got, g := "", newGates(PublisherConfig{})
		g.failed(t.Context(), row.err, "publish")
		if dropped := g.dropped.Load(); dropped != nil && len(g.now) == 1 {
			got = fmt.Sprint(*dropped)
		}
		if got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}

// Without counters nothing keeps the scheduler from giving a GPU to a virtual machine and to a container.
func TestLimitOfPassthrough(t *testing.T) {
	exclusive := gpu.SharingMode{Sharing: gpu.Exclusive}
	unlimited := gpu.SharingMode{Sharing: gpu.Unlimited, Isolation: gpu.IsolationNone}
	passable, byHand := &gpu.VFIO{Functions: []gpu.PCIFunction{{Driver: "nvidia"}}}, &gpu.VFIO{Bound: true}
	for _, row := range []struct {
		name, lacks string
		use         gpu.SharingMode
		vfio        *gpu.VFIO
		offered     bool
	}{
		{"everything", "", gpu.SharingMode{}, passable, true},
		{"no counters", "counters", exclusive, passable, false},
		{"no counters, bound by hand", "counters", exclusive, byHand, true},
		{"Kubernetes 1.34", "v1.34.4 counters", exclusive, passable, false},
		{"first patches of 1.36", "v1.36.1", exclusive, passable, false},
		{"counters of shares", "v1.35.6", gpu.SharingMode{}, passable, false},
		{"counters of shares, an exclusive GPU", "v1.35.6", exclusive, passable, true},
		{"counters of unlimited GPUs", "v1.36.3", unlimited, passable, false},
		{"counters of unlimited GPUs, a fractional one", "v1.36.3", gpu.SharingMode{}, passable, true},
		{"no shares", "shares", gpu.SharingMode{}, passable, true},
		{"the administrator keeps it", "shares", gpu.SharingMode{NoPassthrough: true}, passable, false},
	} {
		lacking := learned(t, &oldServer{gates: strings.Fields(row.lacks)}).Lacking()
		got := lacking.Limit(gpu.Device{VFIO: row.vfio}, row.use)
		if got.NoPassthrough == row.offered {
			t.Errorf("%s: got %s, want offered: %t", row.name, got, row.offered)
		}
	}
	lacking := learned(t, &oldServer{gates: []string{"counters"}}).Lacking()
	if got := lacking.Limit(gpu.Device{}, exclusive); got.NoPassthrough {
		t.Errorf("a GPU that no virtual machine can have: got %s", got)
	}
	if got := lacking.Limit(gpu.Device{VGPUs: &gpu.VGPUs{}}, exclusive); !got.NoPassthrough {
		t.Errorf("a GPU that could have vGPUs: got %s", got)
	}
	byAdmin := &gpu.VGPUs{Existing: []gpu.VGPU{{MDev: "by-hand"}}}
	if got := lacking.Limit(gpu.Device{VGPUs: byAdmin, VFIO: &gpu.VFIO{}}, exclusive); got.NoPassthrough {
		t.Errorf("a GPU with vGPUs that somebody else has made: got %s", got)
	}
}
