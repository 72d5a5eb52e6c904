// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/simulator/clustertest"
)

// Pods without GPUs rather go to nodes without GPUs than to those whose GPUs a device plugin offers, as in a migration.
func TestNodesOfDevicePlugins(t *testing.T) {
	for _, row := range []struct {
		resource, amount string
		gpus             int
	}{
		{"nvidia.com/gpu", "4", 4}, {"nvidia.com/gpu.shared", "40", 8}, {"nvidia.com/mig-1g.10gb", "2", 2},
		{"amd.com/gpu", "8", 8}, {"gpu.intel.com/i915", "1", 1}, {"nvidia.com/gpu", "0", 0},
		{"nic.example.com/nic", "4", 0}, {"nvidia.com/hostdev", "8", 0}, {"aliyun.com/gpu-mem", "80", 8},
		{"tencent.com/vcuda-core", "200", 8}, {"volcano.sh/vgpu-number", "4", 4},
	} {
		w := newWorld(t, clustertest.SimNode{Name: "ours", Profile: "t4-x2"})
		w.nodes = append(w.nodes, "plugin", "cpu")
		for _, name := range []string{"plugin", "cpu"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("64")}
			if name == "plugin" {
				n.Status.Allocatable[corev1.ResourceName(row.resource)] = resource.MustParse(row.amount)
			}
			of, err := summarize(n)
			if err != nil {
				t.Fatal(err)
			}
			w.usage.setNode(of.(*nodeSummary))
		}
		if got := w.usage.nodes["plugin"].others; got != row.gpus {
			t.Errorf("%s: %s: got %d GPUs, want %d", row.resource, row.amount, got, row.gpus)
		}
		points := map[string]int64{}
		for _, s := range w.Prioritize(t.Context(), newPod("p", 4), w.nodes) {
			points[s.Host] = s.Score
		}
		if row.gpus > 0 && points["cpu"] < MaxScore-1 || row.gpus > 0 && points["plugin"] > MaxScore-20 {
			t.Errorf("%s: %s: got %v, want the node without GPUs far ahead", row.resource, row.amount, points)
		}
		if row.gpus == 0 && points["plugin"] < MaxScore-1 {
			t.Errorf("%s: %s: got %v, want both nodes without GPUs equal", row.resource, row.amount, points)
		}
	}
}

// Nor do they go to nodes whose GPUs another DRA driver has.
func TestNodesOfOtherDrivers(t *testing.T) {
	for _, row := range []struct {
		name, driver string
		node         *string
		devices      []int // of each slice
		gpus         int
	}{
		{"a driver of GPUs", "gpu.amd.com", ptr.To("other"), []int{4}, 4},
		{"two slices", "gpu.intel.com", ptr.To("other"), []int{2, 3}, 5},
		{"partitions count as a large node", "gpu.amd.com", ptr.To("other"), []int{64, 64}, 8},
		{"a slice without devices", "gpu.amd.com", ptr.To("other"), []int{0}, 0},
		{"a driver of other devices", "dra.cpu", ptr.To("other"), []int{4}, 0},
		{"devices of no single node", "gpu.amd.com", nil, []int{4}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, clustertest.SimNode{Name: "ours", Profile: "t4-x2"})
			w.nodes = append(w.nodes, "other", "cpu")
			w.setCPU("other", 64)
			w.setCPU("cpu", 64)
			var all []*sliceSummary
			for i, n := range row.devices {
				s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("slice", i)}}
				s.Spec.Driver, s.Spec.NodeName, s.Spec.Devices = row.driver, row.node, make([]resourceapi.Device, n)
				of, err := summarize(s)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, of.(*sliceSummary))
				w.usage.setSlice(all[i])
				w.usage.setSlice(all[i]) // an update
			}
			points := func() int64 {
				for _, s := range w.Prioritize(t.Context(), newPod("p", 4), w.nodes) {
					if s.Host == "other" {
						return s.Score
					}
				}
				return -1
			}
			if got := w.usage.others("other"); got != row.gpus {
				t.Errorf("got %d GPUs, want %d", got, row.gpus)
			}
			if got := points(); (got > MaxScore-20) != (row.gpus == 0) {
				t.Errorf("got %d points with %d GPUs", got, row.gpus)
			}
			for _, s := range all {
				w.usage.deleteSlice(s)
			}
			if got := points(); got < MaxScore-1 || len(w.usage.foreign)+len(w.usage.slices) > 0 {
				t.Errorf("got %d points after the driver has left, %v, %v", got, w.usage.foreign, w.usage.slices)
			}
		})
	}
}

// Equal nodes are told apart by their names, in whatever order the scheduler asks.
func TestTies(t *testing.T) {
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c", "a"}} {
		w := newWorld(t, clustertest.SimNode{Name: "a", Profile: "t4-x2"},
			clustertest.SimNode{Name: "b", Profile: "t4-x2"}, clustertest.SimNode{Name: "c", Profile: "t4-x2"})
		w.nodes = order
		if got, _ := w.best(w.pod("p", 1, oneGPU)); len(got) != 1 || got[0] != "a" {
			t.Errorf("%v: got %v, want a", order, got)
		}
	}
}

// Points tell how much more a pod costs, in GPUs: a bad node makes no other node better.
func TestPoints(t *testing.T) {
	for _, row := range []struct {
		name string
		all  []scored
		want []int64
	}{
		{"almost equal", []scored{{fits: true, score: -1}, {fits: true, score: -1.001}}, []int64{100, 99}},
		{"equal ones after the best", []scored{{fits: true}, {fits: true}, {fits: true}}, []int64{100, 99, 99}},
		{"0.05 GPU", []scored{{fits: true, score: 0.5}, {fits: true, score: 0.4499}}, []int64{100, 79}},
		{"beside a bad node, too", []scored{{fits: true, score: 0.5}, {fits: true, score: 0.4499},
			{fits: true, score: -9}}, []int64{100, 79, 1}},
		{"a node where it does not fit", []scored{{fits: true}, {}}, []int64{100, 0}},
		{"an earlier alternative counts more than any cost", []scored{{fits: true, score: -3}, {fits: true, score: -9},
			{fits: true, rank: 1, score: 9}, {fits: true, rank: 1, score: 8.9}}, []int64{100, 51, 49, 10}},
	} {
		scale(row.all, 0)
		var got []int64
		for _, s := range row.all {
			got = append(got, s.points)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}

// With verbosity 4, the log says what a pod costs on the best nodes.
func TestExplained(t *testing.T) {
	w := newWorld(t, clustertest.SimNode{Name: "large", Profile: "dgx-h100"},
		clustertest.SimNode{Name: "small", Profile: "t4-x2"})
	var lines []string
	logger := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{Verbosity: 4})
	w.Prioritize(log.IntoContext(t.Context(), logger), w.pod("p", 1, oneGPU), w.nodes)
	const want = `"best"=["small: 100 points, cost stranded 0.000, leftover 0.000, idle 0.049, model 0.000" ` +
		`"large: 19 points, cost stranded 0.000, leftover 0.000, idle 0.251, model 0.000"]`
	if got := strings.Join(lines, "\n"); !strings.Contains(got, want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
