// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"math"
	"strings"
	"testing"
)

// node is a node with idle cores and GPUs; a GPU's model is the text before the colon, if any.
func node(cores int64, models string, idle ...int64) Node {
	n := Node{CPU: cores * 1000}
	for i, amount := range idle {
		list := strings.Fields(models)
		n.GPUs = append(n.GPUs, GPU{Model: list[min(i, len(list)-1)], Idle: amount})
	}
	return n
}

// asks is what a pod requests. It gets the first GPUs that are idle enough.
type asks struct {
	cores  int64
	gpus   int
	amount int64
}

func (a asks) on(t testing.TB, n Node) Pod {
	p := Pod{CPU: a.cores * 1000}
	for i, g := range n.GPUs {
		if g.Idle >= a.amount && len(p.Takes) < a.gpus {
			p.Takes = append(p.Takes, Take{i, a.amount})
		}
	}
	if len(p.Takes) < a.gpus {
		t.Fatalf("%+v does not fit on %+v", a, n)
	}
	return p
}

func TestScorePrefersTheBetterNode(t *testing.T) {
	usual := Demand{CPUPerGPU: 10}
	var (
		share     = asks{2, 1, 200}
		whole     = asks{8, 1, Whole}
		two       = asks{16, 2, Whole}
		noGPU     = asks{8, 0, 0}
		partition = asks{1, 1, 1000 / 7}
	)
	for _, row := range []struct {
		name          string
		policy        Policy
		pod           asks
		demand        Demand
		better, worse Node
	}{
		{"a share fills the fullest GPU that fits", Pack, share, usual,
			node(64, "A", 300, 0, 0, 0), node(64, "A", 600, 0, 0, 0)},
		{"also if its node has more idle GPUs", Pack, share, usual,
			node(96, "A", 300, Whole, Whole, Whole), node(96, "A", 600, 0, 0, 0)},
		{"a share uses up a GPU rather than leave a little", Pack, share, usual,
			node(64, "A", 200, 0), node(64, "A", 250, 0)},
		{"a share does not take a whole idle GPU while another node has room in one in use", Pack, share, usual,
			node(64, "A", 900, Whole, Whole, Whole), node(64, "A", 0, 0, 0, Whole)},
		{"a partition goes where a share of its size does", Pack, partition, usual,
			node(64, "A", 2*Whole/7, Whole), node(64, "A", 5*Whole/7, Whole)},
		{"a partition does not take a whole idle GPU either", Pack, partition, usual,
			node(64, "A", 6*Whole/7, Whole), node(64, "A", 0, Whole)},
		{"a pod with a whole GPU takes the last one of a node", Pack, whole, usual,
			node(64, "A", Whole, 0, 0, 0), node(64, "A", Whole, Whole, 0, 0)},
		{"an idle node of eight GPUs stays whole for a pod with one", Pack, whole, usual,
			node(48, "A", 0, 0, 0, 0, Whole, Whole, Whole, Whole),
			node(96, "A", Whole, Whole, Whole, Whole, Whole, Whole, Whole, Whole)},
		{"and for a pod with two", Pack, two, usual,
			node(96, "A", Whole, Whole), node(96, "A", Whole, Whole, Whole, Whole, Whole, Whole, Whole, Whole)},
		{"and for a share", Pack, share, usual,
			node(48, "A", 0, 0, 0, 0, Whole, Whole, Whole, Whole),
			node(96, "A", Whole, Whole, Whole, Whole, Whole, Whole, Whole, Whole)},
		{"a pod without GPUs avoids nodes with idle GPUs", Pack, noGPU, usual,
			node(32, "A", 0, 0), node(32, "A", Whole, Whole)},
		{"also if there is CPU for them", Pack, noGPU, usual, node(64, "A", 0, 0), node(64, "A", Whole, Whole)},
		{"and prefers nodes without GPUs", Pack, noGPU, usual, node(64, ""), node(64, "A", Whole, Whole)},
		{"a pod without GPUs leaves the CPU that idle GPUs need", Pack, noGPU, usual,
			node(64, "A", Whole, Whole), node(16, "A", Whole, Whole)},
		{"a pod with a GPU and little CPU takes a GPU that has little CPU", Pack, asks{1, 1, Whole}, usual,
			node(4, "A", Whole, Whole), node(32, "A", Whole, Whole)},
		{"a pod with a GPU and much CPU does not strand the other GPUs", Pack, asks{24, 1, Whole}, usual,
			node(64, "A", Whole, Whole, Whole), node(32, "A", Whole, Whole, Whole)},
		{"a pod with much CPU leaves a whole node its CPU, if less than the usual CPU remains elsewhere", Pack,
			asks{16, 1, Whole}, usual, node(41, "A", Whole, Whole, Whole, Whole),
			node(96, "A", Whole, Whole, Whole, Whole, Whole, Whole, Whole, Whole)},
		{"CPU does not matter as long as no pod with GPUs is known", Pack, asks{1, 1, Whole}, Demand{},
			node(4, "A", Whole), node(32, "A", Whole, Whole)},
		{"a model that others must have is spared", Pack, whole,
			Demand{CPUPerGPU: 10, Pressure: map[string]float64{"A": 0.5}},
			node(96, "B", Whole, Whole, Whole, Whole), node(96, "A", Whole, 0, 0, 0)},
		{"the model that fewer must have is used", Pack, share,
			Demand{CPUPerGPU: 10, Pressure: map[string]float64{"A": 1, "B": 0.5}},
			node(96, "B", 300, 0), node(96, "A", 300, 0)},
		{"of a node with two models, the GPU that the pod gets counts", Pack, whole,
			Demand{CPUPerGPU: 10, Pressure: map[string]float64{"A": 1}},
			node(96, "B A", Whole, Whole), node(96, "A B", Whole, Whole)},
		{"spread: a pod without GPUs goes where most CPU is idle", Spread, noGPU, usual,
			node(96, ""), node(64, "A", Whole, Whole)},
		{"spread: a share goes to the emptiest node", Spread, share, usual,
			node(64, "A", Whole, Whole), node(64, "A", 300, Whole)},
		{"spread: a pod with a whole GPU too", Spread, whole, usual,
			node(64, "A", Whole, Whole), node(64, "A", Whole, 0)},
		{"spread: CPU decides between equal GPUs", Spread, whole, usual,
			node(64, "A", Whole, Whole), node(32, "A", Whole, Whole)},
	} {
		t.Run(row.name, func(t *testing.T) {
			better := row.policy.Cost(row.better, row.pod.on(t, row.better), row.demand).Score()
			worse := row.policy.Cost(row.worse, row.pod.on(t, row.worse), row.demand).Score()
			if better <= worse {
				t.Errorf("got %.4f for the better node and %.4f for the other", better, worse)
			}
		})
	}
}

func TestTwoTakesOfOneGPUAreOneOfTheirSum(t *testing.T) {
	n, d := node(64, "A", 900, Whole), Demand{CPUPerGPU: 10, Pressure: map[string]float64{"A": 0.5}}
	two := Pack.Cost(n, Pod{CPU: 2000, Takes: []Take{{0, 200}, {0, 300}}}, d).Score()
	one := Pack.Cost(n, Pod{CPU: 2000, Takes: []Take{{0, 500}}}, d).Score()
	if math.Abs(two-one) > 1e-9 {
		t.Errorf("got %v, want %v", two, one)
	}
	if n.GPUs[0].Idle != 900 {
		t.Errorf("the score has changed the node: %+v", n)
	}
}

func BenchmarkScore(b *testing.B) {
	enough := Demand{CPUPerGPU: 10, Pressure: map[string]float64{"A": 0.5}}
	scarce := enough
	scarce.Scarcity = 1
	for i := range maxUsual {
		scarce.Shapes = append(scarce.Shapes, Usual{Shape{int64(1000 + 1000*i), 100, 1 + i%2, Whole}, 1. / maxUsual})
	}
	for _, row := range []struct {
		name   string
		pod    asks
		demand Demand
	}{
		{"share", asks{2, 1, 200}, enough}, {"whole", asks{8, 1, Whole}, enough},
		{"eight", asks{64, 8, Whole}, enough}, {"no_GPU", asks{cores: 8}, enough},
		{"whole_scarce", asks{8, 1, Whole}, scarce},
	} {
		b.Run(row.name, func(b *testing.B) {
			n := node(96, "A", Whole, Whole, Whole, Whole, Whole, Whole, Whole, Whole)
			p := row.pod.on(b, n)
			b.ReportAllocs()
			for b.Loop() {
				Pack.Cost(n, p, row.demand)
			}
		})
	}
}

// Pods without GPUs are not packed on nodes without GPUs: replicas of a web server are to be apart.
func TestNodesWithoutGPUsAreEqual(t *testing.T) {
	d := Demand{CPUPerGPU: 10}
	full, empty := Pack.Cost(node(2, ""), Pod{CPU: 1000}, d), Pack.Cost(node(64, ""), Pod{CPU: 1000}, d)
	if full != empty {
		t.Errorf("got %v for a full node and %v for an empty one, want the same", full, empty)
	}
}
