// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// machines are the nodes of a generated trace.
var machines = []struct {
	Node
	of20 int // how many of 20 nodes
}{
	{Node{CPU: 32_000, Memory: 128 << 10, GPUs: 2, Model: "T4"}, 6},
	{Node{CPU: 96_000, Memory: 384 << 10, GPUs: 4, Model: "A10"}, 4},
	{Node{CPU: 64_000, Memory: 512 << 10, GPUs: 8, Model: "V100"}, 3},
	{Node{CPU: 128_000, Memory: 1024 << 10, GPUs: 8, Model: "A100"}, 7},
}

// requests are the pods of a generated trace, as shares of 100 pods. Amount 0 stands for a share of a GPU.
var requests = []struct {
	gpus   int
	amount int64
	of100  int
}{
	{0, 0, 14}, {1, 0, 42}, {1, Whole, 34}, {2, Whole, 4}, {4, Whole, 3}, {8, Whole, 3},
}

// accepted are lists of models that pods name, one of them in three pods with GPUs.
var accepted = [][]string{{"A100"}, {"A100"}, {"A10", "T4"}, {"T4"}, {"A100", "V100"}, {"V100"}}

// Generate returns a trace with the number of nodes, at least 20, and pods that request twice the GPUs of the nodes.
// Pods have no GPUs, a share of 5 to 95 %, or one to eight GPUs. Every third pod with GPUs names models. Same seed,
// same trace.
func Generate(seed uint64, nodes int) Trace {
	rng := rand.New(rand.NewPCG(seed, 2))
	t := Trace{Name: "generated"}
	for i := range max(nodes, 20) {
		at := i % 20
		for _, m := range machines {
			if at -= m.of20; at < 0 {
				n := m.Node
				n.Name = fmt.Sprintf("node-%04d", i)
				t.Nodes = append(t.Nodes, n)
				break
			}
		}
	}
	for sum, wanted := int64(0), int64(2*t.GPUs()*Whole); sum < wanted; {
		p := generatePod(rng)
		p.Name = fmt.Sprintf("pod-%05d", len(t.Pods))
		t.Pods, sum = append(t.Pods, p), sum+p.Total()
	}
	return t
}

func generatePod(rng *rand.Rand) Pod {
	at, i := rng.IntN(100), 0
	for ; at >= requests[i].of100; i++ {
		at -= requests[i].of100
	}
	p := Pod{GPUs: requests[i].gpus, Amount: requests[i].amount}
	if p.GPUs == 0 {
		p.CPU = []int64{2_000, 4_000, 8_000, 16_000}[rng.IntN(4)]
		p.Memory = p.CPU / 1000 << 12 // 4 GiB for a core
		return p
	}
	if p.Amount == 0 {
		p.Amount = 50 * (1 + rng.Int64N(19))
	}
	cores := []int64{4, 6, 8, 8, 10, 12}[rng.IntN(6)] // for a GPU
	p.CPU = max(500, cores*p.Total())
	p.Memory = p.CPU * 4096 / 1000
	if rng.IntN(3) == 0 {
		p.Models = slices.Clone(accepted[rng.IntN(len(accepted))])
	}
	if p.GPUs > 2 { // only nodes with enough GPUs and CPU
		p.CPU = min(p.CPU, 8_000*int64(p.GPUs))
		p.Models = []string{"A100"}
		p.Memory = p.CPU * 4096 / 1000
	}
	return p
}
