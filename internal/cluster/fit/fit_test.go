// SPDX-License-Identifier: Apache-2.0

package fit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/fit"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/offer"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/simulator/simtest"
)

// world is a cluster with a view of it.
type world struct {
	t        *testing.T
	view     *cluster.View
	nodes    []clustertest.SimNode
	now      []*resourceapi.ResourceSlice // published
	slices   []*resourceapi.ResourceSlice // with what nodes would publish
	rules    []*resourceapi.DeviceTaintRule
	classes  allocator.Classes
	claims   []*resourceapi.ResourceClaim // that hold devices
	compiled *cel.Cache
	scratch  fit.Node
	refuses  func() bool // what estimate has given out last
}

func newWorld(t *testing.T, nodes ...clustertest.SimNode) *world {
	t.Helper()
	w := &world{t: t, view: clustertest.New(t, nodes...), nodes: nodes,
		classes: allocator.ClassesOf(clustertest.Classes(t)), compiled: allocator.NewCache(100)}
	for _, n := range nodes {
		w.now = append(w.now, clustertest.Slices(t, n)...)
	}
	w.slices = offer.All(w.now, nil)
	return w
}

// place asks the allocator about the claim on the node.
func (w *world) place(claim *resourceapi.ResourceClaim, node string) *resourceapi.AllocationResult {
	w.t.Helper()
	results, err := w.classes.Place(w.t.Context(), w.compiled, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		cluster.Tainted(w.slices, w.rules), allocator.HeldBy(w.claims, nil), claim)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(results) == 0 {
		return nil
	}
	return &results[0]
}

// gpusOf returns the GPUs of an allocation; nil: there is none.
func gpusOf(a *resourceapi.AllocationResult) (gpus []string) {
	if a != nil {
		for _, r := range a.Devices.Results {
			gpus = append(gpus, gpu.ParentName(r.Device))
		}
	}
	return gpus
}

// estimate returns the GPUs that the claim gets on the node by the estimate; nil: it does not fit.
func (w *world) estimate(claim *resourceapi.ResourceClaim, node string) (gpus []string, sure bool) {
	var d fit.Demand
	d.Add(w.t.Context(), w.view, &corev1.Pod{}, cluster.SlimClaim(claim))
	w.refuses = func() bool { return w.scratch.Refusal(&d) != nil }
	w.view.Nodes([]string{node}, func(_ int, devices *cluster.NodeDevices) {
		w.scratch.Reset(devices, nil)
		if _, ok := w.scratch.Estimate(&d); ok {
			for _, t := range w.scratch.Takes {
				gpus = append(gpus, t.GPU.Name)
			}
		}
	})
	return gpus, !w.scratch.Unsure
}

// checkAvailable checks that the view counts GPUs of a kind as available for the first request, by itself, exactly if
// it fits on some node with that kind only.
func (w *world) checkAvailable(claim *resourceapi.ResourceClaim) {
	w.t.Helper()
	alone := resourceapi.ResourceClaim{}
	alone.Spec.Devices.Requests = claim.Spec.Devices.Requests[:1]
	var d fit.Demand
	d.Add(w.t.Context(), w.view, nil, &alone)
	for i, s := range cluster.Subrequests(&alone.Spec) {
		if len(d.Requests) == 0 || s.All() {
			continue
		}
		a := d.Requests[0][i]
		for k, takes := range a.Takes {
			if k.Type() != gpu.TypeGPU {
				continue
			}
			fits := false
			a.Takes = map[*cluster.DeviceKind][]int64{k: takes}
			w.view.Nodes(w.names(), func(_ int, devices *cluster.NodeDevices) {
				w.scratch.Reset(devices, nil)
				_, ok := w.scratch.Estimate(&fit.Demand{Requests: []fit.Request{{a}}})
				fits = fits || ok
			})
			if got := w.view.Available(k, s, 1); got > 0 != fits {
				w.t.Errorf("%s of %s: %d are available, and it fits: %t", s.Name, k, got, fits)
			}
		}
	}
}

func (w *world) names() (all []string) {
	for _, n := range w.nodes {
		all = append(all, n.Name)
	}
	return all
}

func (w *world) hold(claim *resourceapi.ResourceClaim, a *resourceapi.AllocationResult) {
	claim.Status.Allocation = a
	w.claims = append(w.claims, claim)
	w.view.SetClaim(cluster.SlimClaim(claim))
}

func (w *world) release(i int) {
	w.view.DeleteClaim(types.NamespacedName{Namespace: w.claims[i].Namespace, Name: w.claims[i].Name})
	w.claims = slices.Delete(w.claims, i, i+1)
}

// reserve keeps all GPUs of a pool for a team, or one, or ends that.
func (w *world) reserve(r *rand.Rand) {
	number := fmt.Sprint(r.IntN(4))
	w.rules = slices.DeleteFunc(w.rules, func(o *resourceapi.DeviceTaintRule) bool {
		was := strings.HasPrefix(o.Name, number)
		if was {
			w.view.DeleteTaintRule(o.Name)
		}
		return was
	})
	s := w.slices[r.IntN(len(w.slices))]
	if r.IntN(2) == 0 || len(s.Spec.Devices) == 0 {
		return
	}
	taint := resourceapi.DeviceTaint{Key: cluster.ReservedTaint, Value: teams[r.IntN(len(teams))],
		Effect: resourceapi.DeviceTaintEffectNoSchedule}
	all, whole := r.IntN(5) == 0, gpu.ParentName(s.Spec.Devices[r.IntN(len(s.Spec.Devices))].Name)
	for _, other := range w.slices {
		for _, d := range other.Spec.Devices {
			if other.Spec.Pool.Name != s.Spec.Pool.Name || !all && gpu.ParentName(d.Name) != whole {
				continue
			}
			rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: number + d.Name}}
			rule.Spec.Taint = taint
			rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: &s.Spec.Driver,
				Pool: &s.Spec.Pool.Name, Device: ptr.To(d.Name)}
			w.rules = append(w.rules, rule)
			w.view.SetTaintRule(rule)
		}
	}
}

var teams = []string{"vision", "speech"}

// fleet is a cluster, and what its pods ask for.
type fleet struct {
	name    string
	nodes   []clustertest.SimNode
	request func(*rand.Rand) string
	// constraints of claims; nil: none
	constraints []string
}

const driver = "deviceClassName: gpu.nvidia.com"

func share(r *rand.Rand, gi int) string {
	var capacity []string
	if r.IntN(3) > 0 {
		capacity = append(capacity, fmt.Sprintf("memory: %dMi", 100+r.IntN(gi*1024)))
	}
	if r.IntN(2) > 0 || capacity == nil {
		capacity = append(capacity, fmt.Sprintf("cores: %d", 1+r.IntN(60)))
	}
	return driver + ", capacity: {requests: {" + strings.Join(capacity, ", ") + "}}"
}

func tolerations(r *rand.Rand) string {
	switch r.IntN(4) {
	case 0:
		return ", tolerations: [{key: " + cluster.ReservedTaint + ", operator: Equal, value: " +
			teams[r.IntN(len(teams))] + ", effect: NoSchedule}]"
	case 1:
		return ", tolerations: [{operator: Exists}]"
	}
	return ""
}

func exactly(of string) string { return "exactly: {" + of + "}" }

var fleets = []fleet{
	{"shares and whole GPUs", []clustertest.SimNode{{Name: "a", Profile: "l40s-x4"}, {Name: "b", Profile: "t4-x2"}},
		func(r *rand.Rand) string {
			if r.IntN(4) == 0 {
				return exactly(fmt.Sprintf("%s, count: %d%s", driver, 1+r.IntN(3), tolerations(r)))
			}
			return exactly(share(r, 20) + tolerations(r))
		}, nil},
	{"replicas", []clustertest.SimNode{{Name: "a", Profile: "l40s-x4", Use: gpu.SharingMode{Sharing: gpu.Replicated,
		Replicas: 4}}}, func(r *rand.Rand) string {
		return exactly(fmt.Sprintf("deviceClassName: shared.gpu.nvidia.com, count: %d%s", 1+r.IntN(2), tolerations(r)))
	}, nil},
	{"exclusive GPUs by model", []clustertest.SimNode{{Name: "a", Profile: "mixed", Use: gpu.SharingMode{
		Sharing: gpu.Exclusive}}}, func(r *rand.Rand) string {
		return exactly(driver + ", selectors: [{cel: {expression: \"device.attributes['gpu.nvidia.com'].productName." +
			"contains('" + []string{"L", "T", "A"}[r.IntN(3)] + "')\"}}]" + tolerations(r))
	}, nil},
	{"alternatives", []clustertest.SimNode{{Name: "a", Profile: "l40s-x4"}, {Name: "b", Profile: "t4-x2"}},
		func(r *rand.Rand) string {
			return "firstAvailable: [{name: two, count: 2, " + driver + tolerations(r) + "}, {name: some, " +
				share(r, 20) + tolerations(r) + "}, {name: none, deviceClassName: mig.nvidia.com}]"
		}, nil},
	{"partitions", []clustertest.SimNode{{Name: "a", Profile: "dgx-h100"}}, func(r *rand.Rand) string {
		return exactly(fmt.Sprintf("deviceClassName: %s.nvidia.com, count: %d%s", []string{"mig-1g.10gb",
			"mig-1g.20gb", "mig-1g.10gb.me", "mig-2g.20gb", "mig-3g.40gb", "mig-4g.40gb", "gpu"}[r.IntN(7)],
			1+r.IntN(2), tolerations(r)))
	}, nil},
	{"partitions of other models", []clustertest.SimNode{{Name: "a", Profile: "hgx-b200"},
		{Name: "b", Profile: "dgx-a100"}}, func(r *rand.Rand) string {
		return exactly(fmt.Sprintf("deviceClassName: mig.nvidia.com, count: %d, selectors: [{cel: {expression: \""+
			"device.attributes['gpu.nvidia.com'].profile.startsWith('%dg.')\"}}]%s", 1+r.IntN(2),
			[]int{1, 2, 3, 4, 7}[r.IntN(5)], tolerations(r)))
	}, nil},
	{"any partition", []clustertest.SimNode{{Name: "a", Profile: "rtxpro6000-x2"}, {Name: "b", Profile: "dgx-h100",
		Use: gpu.SharingMode{Partitions: gpu.PartitionsOnDemand}}},
		func(r *rand.Rand) string {
			if r.IntN(3) == 0 {
				return exactly("deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: \"device.capacity['" +
					"gpu.nvidia.com'].memory.isGreaterThan(quantity('" + fmt.Sprint(5+r.IntN(60)) + "Gi'))\"}}]" +
					tolerations(r))
			}
			return exactly("deviceClassName: mig.nvidia.com" + tolerations(r))
		}, nil},
	{"vGPUs", []clustertest.SimNode{{Name: "a", Profile: "a16-x4"}}, func(r *rand.Rand) string {
		return exactly(fmt.Sprintf("deviceClassName: %s.nvidia.com, count: %d%s", []string{"vgpu", "vgpu",
			"gpu"}[r.IntN(3)], 1+r.IntN(2), tolerations(r)))
	}, nil},
	{"GPUs for virtual machines", []clustertest.SimNode{{Name: "a", Profile: "l40s-x4"}, {Name: "b", Profile: "t4-x2"}},
		func(r *rand.Rand) string {
			if r.IntN(3) == 0 {
				return exactly(fmt.Sprintf("deviceClassName: vfio.gpu.nvidia.com, count: %d%s", 1+r.IntN(2),
					tolerations(r)))
			}
			return exactly(share(r, 20) + tolerations(r))
		}, nil},
	{"constraints", []clustertest.SimNode{{Name: "a", Profile: "dgx1-v100"}, {Name: "b", Profile: "mixed"}},
		func(r *rand.Rand) string {
			if r.IntN(3) == 0 {
				return fmt.Sprintf("firstAvailable: [{name: two, %s, count: 3%s}, {name: one, %s}]", driver,
					tolerations(r), driver)
			}
			return exactly(fmt.Sprintf("%s, count: %d%s", driver, 1+r.IntN(3), tolerations(r)))
		}, constraints},
	{"partitions with constraints", []clustertest.SimNode{{Name: "a", Profile: "rtxpro6000-x2"}},
		func(r *rand.Rand) string {
			return exactly(fmt.Sprintf("deviceClassName: %s, count: %d%s", []string{"mig.nvidia.com",
				"mig-1g.24gb.nvidia.com", "gpu.nvidia.com"}[r.IntN(3)], 1+r.IntN(2), tolerations(r)))
		}, constraints},
	{"all GPUs", []clustertest.SimNode{{Name: "a", Profile: "t4-x2"}, {Name: "b", Profile: "t4-x2"}},
		func(r *rand.Rand) string {
			if r.IntN(2) == 0 {
				return exactly(share(r, 4) + tolerations(r))
			}
			return exactly(driver + ", allocationMode: All" + tolerations(r))
		}, nil},
}

var constraints = []string{
	"[{matchAttribute: gpu.nvidia.com/nvlinkDomain}]", "[{matchAttribute: resource.kubernetes.io/pcieRoot}]",
	"[{matchAttribute: resource.kubernetes.io/numaNode}]", "[{matchAttribute: gpu.nvidia.com/productName}]",
	"[{matchAttribute: gpu.nvidia.com/parentUUID}]", "[{distinctAttribute: gpu.nvidia.com/parentUUID}]",
	"[{distinctAttribute: gpu.nvidia.com/uuid}]", "[{matchAttribute: gpu.nvidia.com/type, requests: [r0]}]",
	"[{matchAttribute: gpu.nvidia.com/nvlinkDomain, requests: [r0]}, {distinctAttribute: gpu.nvidia.com/productName}]",
	"[{distinctAttribute: gpu.nvidia.com/uuid}, {matchAttribute: resource.kubernetes.io/numaNode}]",
	"[{matchAttribute: resource.kubernetes.io/pcieRoot, requests: [r0]}]",
	"[{matchAttribute: gpu.nvidia.com/noSuchAttribute}]", "[]", "[]",
}

// configs are configurations of claims: some devices, nodes and shares refuse them.
var configs = []string{
	"GpuConfig, sharing: {strategy: TimeSlicing}", "GpuConfig, sharing: {strategy: MPS}",
	"GpuConfig, sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 20Gi}}",
	"MigDeviceConfig, sharing: {strategy: MPS}", "MigDeviceConfig, sharing: {strategy: TimeSlicing}",
	"VfioDeviceConfig", "LocalIPCConfig, enabled: true", "GpuConfig, sharing: {strategy: None}",
}

// published returns the device; nil: there is none.
func (w *world) published(r resourceapi.DeviceRequestAllocationResult) *resourceapi.Device {
	for _, s := range w.slices {
		for i := range s.Spec.Devices {
			if s.Spec.Pool.Name == r.Pool && s.Spec.Devices[i].Name == r.Device {
				return &s.Spec.Devices[i]
			}
		}
	}
	return nil
}

// What Estimate gives out, the allocator does, on the same GPUs: for random claims that come and go, while GPUs are
// kept for teams.
func TestEstimateIsPlace(t *testing.T) {
	for _, f := range fleets {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			placed, refused, unsure, notStarted := 0, 0, 0, 0
			for seed := range uint64(3) {
				r := rand.New(rand.NewPCG(seed, seed))
				w := newWorld(t, f.nodes...)
				for i := range 200 {
					if r.IntN(8) == 0 {
						w.reserve(r)
					}
					if r.IntN(10) == 0 { // a slice is updated, or made again; informers may make it slim twice
						slim := w.view.SlimSlice(w.view.SlimSlice(w.now[r.IntN(len(w.now))]))
						if r.IntN(2) == 0 {
							w.view.DeleteSlice(slim.Name)
						}
						w.view.SetSlice(slim)
					}
					for len(w.claims) > 0 && r.IntN(4) == 0 {
						w.release(r.IntN(len(w.claims)))
					}
					requests := "{name: r0, " + f.request(r) + "}"
					if r.IntN(3) == 0 {
						requests += ", {name: r1, " + f.request(r) + "}"
					}
					text := "requests: [" + requests + "]"
					if f.constraints != nil {
						text += "\nconstraints: " + f.constraints[r.IntN(len(f.constraints))]
					}
					if r.IntN(2) == 0 {
						text += "\nconfig: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: " +
							"resource.nvidia.com/v1beta1, kind: " + configs[r.IntN(len(configs))] + "}}}]"
					}
					claim := clustertest.Claim(t, text)
					claim.Name = fmt.Sprint("c", i)
					claim.UID = types.UID(claim.Name)
					w.checkAvailable(claim)
					for _, n := range f.nodes {
						got, sure := w.estimate(claim, n.Name)
						result := w.place(claim, n.Name)
						want := gpusOf(result)
						switch {
						case !sure:
							unsure++
						case !slices.Equal(got, want):
							t.Errorf("seed %d, claim %d on %s, %s: estimated %v, the allocator gives %v", seed, i,
								n.Name, requests, got, want)
						}
						if result == nil {
							refused++
							continue
						}
						placed++
						w.hold(claim, result)
						refusal := fit.Refusal(nil, []*resourceapi.ResourceClaim{claim}, w.published)
						if refusal != nil {
							notStarted++
						}
						if starts := !w.refuses(); sure && starts != (refusal == nil) {
							t.Errorf("seed %d, claim %d on %s, %s: estimated that it starts: %t; its node says %v",
								seed, i, n.Name, text, starts, refusal)
						}
						break
					}
				}
			}
			if placed < 100 || refused < 100 || notStarted < 10 {
				t.Errorf("%d were placed, of which %d would not start, and %d were not: this shows nothing", placed,
					notStarted, refused)
			}
			if most := (placed + refused) / 50; unsure > most {
				t.Errorf("%d of %d estimates say that they cannot know; want at most %d", unsure, placed+refused, most)
			}
		})
	}
}

// Two GPUs of one model, whose partitions differ: the second has one that somebody else has made, and is static or
// dynamic beside it, or has no partitions any more.
func TestGPUsWithOtherPartitions(t *testing.T) {
	for _, mode := range []gpu.Partitions{gpu.PartitionsStatic, gpu.PartitionsDynamic, gpu.PartitionsNone} {
		w := newWorld(t)
		devices := simtest.Discover(t, "dgx-h100")[:2]
		for i, mode := range []gpu.Partitions{gpu.PartitionsDynamic, mode} {
			devices[i].Use.Partitions = mode
		}
		publish := func() {
			inv := inventory.New(devices).WithPartitions(func(gpu.Placement) bool { return false })
			w.slices = inventory.Slices(clustertest.Driver, "a", inv.Pools("a"))
			for i, s := range w.slices {
				s.Name = fmt.Sprint(s.GenerateName, i)
				w.view.SetSlice(w.view.SlimSlice(s))
			}
		}
		if d := &devices[1]; mode == gpu.PartitionsNone {
			d.Use.Partitions = gpu.PartitionsDynamic // until now
			publish()
			d.Use.Partitions = mode
		} else {
			p := d.MIG.Profiles[0]
			d.MIG.Enabled = true
			d.MIG.Instances = []gpu.Partition{{Placement: gpu.Placement{Parent: d.UUID, Profile: p.Name, Start: 6,
				Size: p.Size}, Slices: p.Slices, Engines: p.Engines, Memory: p.Memory, UUID: "MIG-1"}}
		}
		publish()
		for _, profile := range []string{"1g.10gb", "2g.20gb", "3g.40gb"} {
			for _, count := range []int{1, 2, 3, 4, 7, 8, 12} {
				claim := clustertest.Claim(t, fmt.Sprintf("requests: [{name: r, exactly: {deviceClassName: "+
					"mig-%s.nvidia.com, count: %d}}]", profile, count))
				got, _ := w.estimate(claim, "a")
				want := gpusOf(w.place(claim, "a"))
				if !slices.Equal(got, want) {
					t.Errorf("%s, %d of %s: estimated %v, the allocator gives %v", mode, count, profile, got, want)
				}
			}
		}
	}
	w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
	if got, _ := w.estimate(clustertest.Claim(t, "requests: [{name: r, exactly: {deviceClassName: "+
		"mig-1g.10gb.nvidia.com, count: 33}}]"), "a"); got != nil {
		t.Errorf("33 devices: got %v, want that a claim has at most 32", got)
	}
}

// What is not known is not refused: configurations that are not kept, because they are large, and a GPU that a selector
// picks from those of its kind.
func TestUnknownRefusals(t *testing.T) {
	const share = "requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: " +
		"{memory: 5Gi}}%s}}]"
	const gpuConfig = "{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, " +
		"kind: GpuConfig, %s}}}"
	limit := fmt.Sprintf(gpuConfig, "sharing: {strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 1Gi}}")
	large := fmt.Sprintf(gpuConfig, "environment: {LARGE: "+strings.Repeat("x", 9000)+"}")
	uuid := `, selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].uuid == 'x'"}}]`
	for _, row := range []struct {
		name, claim string
		want        bool
	}{
		{"a limit that shares refuse", fmt.Sprintf(share, "") + "\nconfig: [" + limit + "]", true},
		{"and a large configuration after it, which rules", fmt.Sprintf(share, "") + "\nconfig: [" + limit + ", " +
			large + "]", false},
		{"and a selector of one GPU", fmt.Sprintf(share, uuid) + "\nconfig: [" + limit + "]", false},
	} {
		w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
		if gpus, _ := w.estimate(clustertest.Claim(t, row.claim), "a"); len(gpus) != 1 || w.refuses() != row.want {
			t.Errorf("%s: got %v, refused: %t; want a GPU, refused: %t", row.name, gpus, w.refuses(), row.want)
		}
	}
}

// Administrators may monitor a partition that stays, and none that claims make.
func TestAdminAccessToPartitions(t *testing.T) {
	slices := clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"})
	for _, static := range []bool{true, false} {
		claim := &resourceapi.ResourceClaim{}
		var partition resourceapi.Device
		for _, s := range slices {
			for _, d := range s.Spec.Devices {
				if gpu.IsPartition(d.Name) {
					partition = d
				}
			}
		}
		if static {
			partition.ConsumesCounters = nil
		}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: clustertest.Driver, Pool: "a",
				Device: partition.Name, AdminAccess: ptr.To(true)}}}}
		refusal := fit.Refusal(nil, []*resourceapi.ResourceClaim{claim},
			func(resourceapi.DeviceRequestAllocationResult) *resourceapi.Device { return &partition })
		if (refusal == nil) != static {
			t.Errorf("static: %t: got %v", static, refusal)
		}
	}
}
