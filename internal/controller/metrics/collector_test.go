// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/controller/metrics"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
	"github.com/gpudra/gpu-dra-driver/test/clustermetrics"
)

func always() bool { return true }

// claim returns a claim that holds devices: "ml/train: gpu-3b-00-0 memory=5Gi cores=20, gpu-af-00-0". Devices are on
// the node a unless they are prefixed ("b/gpu-3b-00-0"). "admin" means admin access, and "other" another driver.
func claim(text string) *resourceapi.ResourceClaim {
	name, devices, _ := strings.Cut(text, ": ")
	namespace, short, _ := strings.Cut(name, "/")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, one := range strings.Split(devices, ", ") {
		words := strings.Fields(one)
		r := resourceapi.DeviceRequestAllocationResult{Driver: clustertest.Driver, Pool: "a", Device: words[0]}
		if node, device, ok := strings.Cut(words[0], "/"); ok {
			r.Pool, r.Device = node, device
		}
		for _, word := range words[1:] {
			switch what, amount, _ := strings.Cut(word, "="); what {
			case "admin":
				r.AdminAccess = ptr.To(true)
			case "other":
				r.Driver = "gpu.example.com"
			default:
				if r.ConsumedCapacity == nil {
					r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
				}
				r.ConsumedCapacity[resourceapi.QualifiedName(what)] = resource.MustParse(amount)
			}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
	return c
}

// waiting returns a pending claim.
func waiting(t *testing.T, name, class string) *resourceapi.ResourceClaim {
	c := clustertest.Claim(t, "requests: [{name: gpu, exactly: {deviceClassName: "+class+"}}]")
	c.Namespace, c.Name = "ml", name
	return c
}

// text returns the nonzero metrics, without prefix: "gpus Tesla T4 a free: 2". Memory is in MiB.
func text(t *testing.T, v *cluster.View) string {
	t.Helper()
	var lines []string
	for _, s := range samples(t, metrics.Collector{View: v, Active: always}) {
		if s.value == 0 {
			continue
		}
		if strings.HasSuffix(s.name, "bytes") {
			s.value /= 1 << 20
		}
		lines = append(lines, fmt.Sprintf("%s %s: %v", strings.TrimPrefix(s.name, "gpu_dra_cluster_"),
			strings.Join(s.labels, " "), s.value))
	}
	return strings.Join(lines, "\n")
}

type sample struct {
	name   string
	labels []string // their values
	value  float64
}

func samples(t *testing.T, c metrics.Collector) []sample {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []sample
	for _, family := range families {
		for _, m := range family.GetMetric() {
			s := sample{name: family.GetName(), value: m.GetGauge().GetValue()}
			for _, l := range m.GetLabel() {
				s.labels = append(s.labels, l.GetValue())
			}
			all = append(all, s)
		}
	}
	return all
}

// taint adds a NoSchedule taint to a GPU of the node and its partitions.
func taint(t *testing.T, v *cluster.View, n clustertest.SimNode, name string) {
	t.Helper()
	for _, s := range clustertest.Slices(t, n) {
		for i, d := range s.Spec.Devices {
			if gpu.ParentName(d.Name) == name {
				s.Spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/gpu-lost",
					Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
		v.SetSlice(v.SlimSlice(s))
	}
}

func TestCollect(t *testing.T) {
	for _, tc := range []struct {
		name    string
		node    clustertest.SimNode
		tainted string
		claims  []string
		want    string
	}{
		{"nobody has anything", clustertest.SimNode{Profile: "t4-x2"}, "", nil,
			"cores Tesla T4 a free: 200\ngpus Tesla T4 a free: 2\nmemory_bytes Tesla T4 a free: 30720"},
		{"one has a whole GPU", clustertest.SimNode{Profile: "t4-x2"}, "",
			[]string{"ml/train: gpu-3b-00-0 memory=15360Mi cores=0"}, `
claims ml allocated: 1
cores Tesla T4 a allocated: 100
cores Tesla T4 a free: 100
gpus Tesla T4 a allocated: 1
gpus Tesla T4 a free: 1
memory_bytes Tesla T4 a allocated: 15360
memory_bytes Tesla T4 a free: 15360
namespace_cores Tesla T4 ml a: 100
namespace_gpus Tesla T4 ml a: 1
namespace_memory_bytes Tesla T4 ml a: 15360`},
		{"a virtual machine has a GPU", clustertest.SimNode{Profile: "l40s-x4"}, "",
			[]string{"ml/vm: gpu-aa-00-0-vfio"}, `
claims ml allocated: 1
cores NVIDIA L40S a allocated: 100
cores NVIDIA L40S a free: 300
gpus NVIDIA L40S a allocated: 1
gpus NVIDIA L40S a free: 3
memory_bytes NVIDIA L40S a allocated: 46068
memory_bytes NVIDIA L40S a free: 138204
namespace_cores NVIDIA L40S ml a: 100
namespace_gpus NVIDIA L40S ml a: 1
namespace_memory_bytes NVIDIA L40S ml a: 46068`},
		{"a claim has two shares of a GPU and another one, another namespace a share of memory alone",
			clustertest.SimNode{Profile: "t4-x2"}, "",
			[]string{"ml/train: gpu-3b-00-0 memory=1Gi cores=10, gpu-3b-00-0 memory=2Gi cores=20, " +
				"gpu-af-00-0 memory=15360Mi cores=0", "web/a: gpu-3b-00-0 memory=4Gi cores=0"}, `
claims ml allocated: 1
claims web allocated: 1
cores Tesla T4 a allocated: 130
cores Tesla T4 a free: 70
gpus Tesla T4 a allocated: 2
memory_bytes Tesla T4 a allocated: 22528
memory_bytes Tesla T4 a free: 8192
namespace_cores Tesla T4 ml a: 130
namespace_gpus Tesla T4 ml a: 2
namespace_gpus Tesla T4 web a: 1
namespace_memory_bytes Tesla T4 ml a: 18432
namespace_memory_bytes Tesla T4 web a: 4096`},
		{"a tainted GPU is held in part", clustertest.SimNode{Profile: "t4-x2"}, "gpu-3b-00-0",
			[]string{"ml/train: gpu-3b-00-0 memory=5Gi cores=20"}, `
claims ml allocated: 1
cores Tesla T4 a allocated: 20
cores Tesla T4 a free: 100
cores Tesla T4 a tainted: 80
gpus Tesla T4 a allocated: 1
gpus Tesla T4 a free: 1
memory_bytes Tesla T4 a allocated: 5120
memory_bytes Tesla T4 a free: 15360
memory_bytes Tesla T4 a tainted: 10240
namespace_cores Tesla T4 ml a: 20
namespace_gpus Tesla T4 ml a: 1
namespace_memory_bytes Tesla T4 ml a: 5120
tainted_gpus Tesla T4 a: 1`},
		{"a tainted GPU is held by nobody", clustertest.SimNode{Profile: "t4-x2"}, "gpu-3b-00-0", nil, `
cores Tesla T4 a free: 100
cores Tesla T4 a tainted: 100
gpus Tesla T4 a free: 1
gpus Tesla T4 a tainted: 1
memory_bytes Tesla T4 a free: 15360
memory_bytes Tesla T4 a tainted: 15360
tainted_gpus Tesla T4 a: 1`},
		{"replicas count their part", clustertest.SimNode{Profile: "t4-x2",
			Use: gpu.SharingMode{Sharing: gpu.Replicated, Replicas: 4}}, "",
			[]string{"ml/a: gpu-3b-00-0 shares=1 memory=0 cores=0", "ml/b: gpu-3b-00-0 shares=2 memory=0 cores=0"}, `
claims ml allocated: 2
cores Tesla T4 a allocated: 75
cores Tesla T4 a free: 125
gpus Tesla T4 a allocated: 1
gpus Tesla T4 a free: 1
memory_bytes Tesla T4 a allocated: 11520
memory_bytes Tesla T4 a free: 19200
namespace_cores Tesla T4 ml a: 75
namespace_gpus Tesla T4 ml a: 1
namespace_memory_bytes Tesla T4 ml a: 11520`},
		{"an unlimited GPU counts what claims ask for", clustertest.SimNode{Profile: "t4-x2",
			Use: gpu.SharingMode{Sharing: gpu.Unlimited}}, "",
			[]string{"ml/a: gpu-3b-00-0 memory=0 cores=0", "ml/b: gpu-3b-00-0 memory=1073741824 cores=0"}, `
claims ml allocated: 2
cores Tesla T4 a free: 200
gpus Tesla T4 a allocated: 1
gpus Tesla T4 a free: 1
memory_bytes Tesla T4 a allocated: 1024
memory_bytes Tesla T4 a free: 29696
namespace_gpus Tesla T4 ml a: 1
namespace_memory_bytes Tesla T4 ml a: 1024`},
		{"partitions count what they have, also one with a sign in its profile",
			clustertest.SimNode{Profile: "dgx-h100"}, "",
			[]string{"ml/a: gpu-1b-00-0-mig-3g40gb-0, gpu-1b-00-0-mig-1g10gb-me-6", "ml/b: gpu-43-00-0-mig-7g80gb-0"}, `
claims ml allocated: 2
cores NVIDIA H100 80GB HBM3 a allocated: 157
cores NVIDIA H100 80GB HBM3 a free: 643
gpus NVIDIA H100 80GB HBM3 a allocated: 2
gpus NVIDIA H100 80GB HBM3 a free: 6
memory_bytes NVIDIA H100 80GB HBM3 a allocated: 131584
memory_bytes NVIDIA H100 80GB HBM3 a free: 520888
namespace_cores NVIDIA H100 80GB HBM3 ml a: 157
namespace_gpus NVIDIA H100 80GB HBM3 ml a: 2
namespace_memory_bytes NVIDIA H100 80GB HBM3 ml a: 131584`},
		{"what does not hold anything: admin access, other drivers, unknown nodes",
			clustertest.SimNode{Profile: "t4-x2",
				Use: gpu.SharingMode{Sharing: gpu.Exclusive}}, "",
			[]string{"ml/watch: gpu-3b-00-0 admin, monitor admin", "ml/nic: gpu-3b-00-0 other",
				"ml/gone: b/gpu-3b-00-0"}, `
claims ml allocated: 1
cores Tesla T4 a free: 200
gpus Tesla T4 a free: 2
memory_bytes Tesla T4 a free: 30720`},
		{"an exclusive GPU is all of it", clustertest.SimNode{Profile: "t4-x2",
			Use: gpu.SharingMode{Sharing: gpu.Exclusive}}, "",
			[]string{"ml/train: gpu-3b-00-0"}, `
claims ml allocated: 1
cores Tesla T4 a allocated: 100
cores Tesla T4 a free: 100
gpus Tesla T4 a allocated: 1
gpus Tesla T4 a free: 1
memory_bytes Tesla T4 a allocated: 15360
memory_bytes Tesla T4 a free: 15360
namespace_cores Tesla T4 ml a: 100
namespace_gpus Tesla T4 ml a: 1
namespace_memory_bytes Tesla T4 ml a: 15360`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.node.Name = "a"
			v := clustertest.New(t, tc.node)
			if tc.tainted != "" {
				taint(t, v, tc.node, tc.tainted)
			}
			for _, c := range tc.claims {
				v.SetClaim(cluster.SlimClaim(claim(c)))
			}
			if got, want := text(t, v), strings.TrimSpace(tc.want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			sums(t, v)
		})
	}
}

// sums checks that the states of each node and model add up to what is published, and namespaces to what is allocated.
func sums(t *testing.T, v *cluster.View) {
	t.Helper()
	published, got := map[string]float64{}, map[string]float64{}
	for p := range v.GPUs {
		published["gpus"]++
		published["memory_bytes"] += float64(p.Memory())
		published["cores"] += 100
	}
	for _, s := range samples(t, metrics.Collector{View: v, Active: always}) {
		name := strings.TrimPrefix(s.name, "gpu_dra_cluster_")
		got[name] += s.value
		if slices.Contains(s.labels, "allocated") {
			got["allocated "+name] += s.value
		}
	}
	for what, n := range published {
		if got[what] != n {
			t.Errorf("%s: the states add up to %v, want %v as published", what, got[what], n)
		}
		if all := got["namespace_"+what]; what != "gpus" && all != got["allocated "+what] {
			t.Errorf("%s: namespaces have %v together, want %v as allocated", what, all, got["allocated "+what])
		}
	}
}

// Only partitions are published if a GPU is in MIG mode and the driver cannot disable it.
func TestOnlyPartitions(t *testing.T) {
	possible, made := cluster.New(clustertest.Driver), cluster.New(clustertest.Driver)
	for _, s := range clustertest.Slices(t, clustertest.SimNode{Name: "a", Profile: "dgx-h100"}) {
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices,
			func(d resourceapi.Device) bool { return !gpu.IsPartition(d.Name) })
		possible.SetSlice(possible.SlimSlice(s))
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
			return d.Name != "gpu-1b-00-0-mig-3g40gb-0" && d.Name != "gpu-1b-00-0-mig-3g40gb-4" &&
				d.Name != "gpu-43-00-0-mig-1g10gb-0"
		})
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].ConsumesCounters = nil // as of partitions that somebody else has made
		}
		made.SetSlice(made.SlimSlice(s))
	}
	for _, tc := range []struct {
		name string
		view *cluster.View
		want string
	}{
		{"those that are possible", possible, `
claims ml allocated: 1
cores NVIDIA H100 80GB HBM3 a allocated: 45
cores NVIDIA H100 80GB HBM3 a free: 755
gpus NVIDIA H100 80GB HBM3 a allocated: 1
gpus NVIDIA H100 80GB HBM3 a free: 7
memory_bytes NVIDIA H100 80GB HBM3 a allocated: 40448
memory_bytes NVIDIA H100 80GB HBM3 a free: 608768
namespace_cores NVIDIA H100 80GB HBM3 ml a: 45
namespace_gpus NVIDIA H100 80GB HBM3 ml a: 1
namespace_memory_bytes NVIDIA H100 80GB HBM3 ml a: 40448`},
		{"those that somebody has made", made, `
claims ml allocated: 1
cores NVIDIA H100 80GB HBM3 a allocated: 50
cores NVIDIA H100 80GB HBM3 a free: 150
gpus NVIDIA H100 80GB HBM3 a allocated: 1
gpus NVIDIA H100 80GB HBM3 a free: 1
memory_bytes NVIDIA H100 80GB HBM3 a allocated: 40448
memory_bytes NVIDIA H100 80GB HBM3 a free: 50432
namespace_cores NVIDIA H100 80GB HBM3 ml a: 50
namespace_gpus NVIDIA H100 80GB HBM3 ml a: 1
namespace_memory_bytes NVIDIA H100 80GB HBM3 ml a: 40448`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.SetClaim(claim("ml/train: gpu-1b-00-0-mig-3g40gb-0"))
			if got, want := text(t, tc.view), strings.TrimSpace(tc.want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			sums(t, tc.view)
		})
	}
}

// The exact exposition of two nodes, with pending claims for this driver and for another.
func TestExposition(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, clustertest.SimNode{Name: "b",
		Profile: "workstation"})
	taint(t, v, clustertest.SimNode{Name: "a", Profile: "t4-x2"}, "gpu-af-00-0")
	v.SetClaim(cluster.SlimClaim(claim("web/a: gpu-3b-00-0 memory=4Gi cores=25")))
	v.SetClaim(cluster.SlimClaim(waiting(t, "ours", "strongest.gpu.nvidia.com")))
	v.SetClaim(cluster.SlimClaim(waiting(t, "nic", "nic.example.com")))
	want, err := os.Open("testdata/cluster.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	if err := testutil.CollectAndCompare(metrics.Collector{View: v, Active: always}, want); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(metrics.Collector{View: v, Active: always}); err != nil ||
		len(problems) > 0 {
		t.Errorf("got %v, %v, want names that follow Prometheus' conventions", problems, err)
	}
	if n := testutil.CollectAndCount(metrics.Collector{View: v, Active: func() bool { return false }}); n != 0 {
		t.Errorf("not the leader: got %d metrics, want none", n)
	}
	if n := testutil.CollectAndCount(clustermetrics.Example()); n < 8 {
		t.Errorf("the example has %d metrics, want one of each", n)
	}
}

func BenchmarkCollect(b *testing.B) {
	const nodes = 1000
	v := cluster.New(clustertest.Driver)
	slices := clustertest.Slices(b, clustertest.SimNode{Name: "node", Profile: "dgx-h100"})
	for n := range nodes {
		name := fmt.Sprintf("node-%d", n)
		for i, s := range slices {
			s = s.DeepCopy()
			s.Name, s.Spec.NodeName, s.Spec.Pool.Name = fmt.Sprintf("%s-%d", name, i), &name, name
			v.SetSlice(v.SlimSlice(s))
		}
		for i, d := range slices[0].Spec.Devices[:6] { // a quarter of the nodes' GPUs is free
			device := d.Name
			if i%2 == 1 {
				device += "-mig-3g40gb-0"
			}
			v.SetClaim(claim(fmt.Sprintf("team-%d/%s-%d: %s/%s", n%20, name, i, name, device)))
		}
	}
	c := metrics.Collector{View: v, Active: always}
	b.ReportAllocs()
	for b.Loop() {
		ch := make(chan prometheus.Metric, 1<<16)
		c.Collect(ch)
	}
}

// TestKeptGPUs: GPUs that kubectl gpu reserve keeps are not free. They are not among those whose taint is an alert.
func TestKeptGPUs(t *testing.T) {
	v := clustertest.New(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"})
	v.SetTaintRule(&resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: ptr.To("a")},
			Taint: resourceapi.DeviceTaint{Key: cluster.ReservedTaint, Value: "vision",
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}})
	const want = `cores Tesla T4 a tainted: 200
gpus Tesla T4 a tainted: 2
memory_bytes Tesla T4 a tainted: 30720`
	if got := text(t, v); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
