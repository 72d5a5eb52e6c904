// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"container/heap"
	"math"

	"github.com/gpudra/gpu-dra-driver/test/placement/trace"
)

// Fill returns the percentage of the trace's GPUs that pods hold when pods for 100 % and for 130 % of them have
// arrived. As in the paper, it is the mean over the arrivals after which the rounded percentage is 100 or 130.
func Fill(t trace.Trace, p Policy, seed uint64) (at100, at130 float64) {
	c := newCluster(t, p, seed)
	var arrived, held int64
	var sums, counts [2]float64
	all := float64(t.GPUs()) * trace.Whole
	for _, pod := range t.Fill(seed, 1.305) {
		arrived += pod.Total()
		c.arrive(pod)
		if _, ok := c.place(pod); ok {
			held += pod.Total()
		}
		for i, percent := range [2]float64{100, 130} {
			at := math.Round(float64(arrived) / all * 100)
			if at == percent || at > percent && counts[i] == 0 { // one pod may be much of a small cluster
				sums[i], counts[i] = sums[i]+float64(held)/all*100, counts[i]+1
			}
		}
	}
	return sums[0] / counts[0], sums[1] / counts[1]
}

// Churn returns the percentage of the requested GPUs that pods got. Pods arrive at random, run, and leave; a pod that
// fits nowhere when it arrives is lost. The first third of the arrivals does not count.
func Churn(t trace.Trace, p Policy, seed uint64, load float64, arrivals int) float64 {
	c := newCluster(t, p, seed)
	var leaving queue
	var offered, got int64
	for i, v := range t.Churn(seed, load, arrivals) {
		for len(leaving) > 0 && leaving[0].at <= v.Arrives {
			gone := heap.Pop(&leaving).(departure)
			c.remove(gone.placed)
			c.leave(gone.Pod)
		}
		c.arrive(v.Pod)
		at, ok := c.place(v.Pod)
		if ok {
			heap.Push(&leaving, departure{at, v.Arrives + v.Runs})
		} else {
			c.leave(v.Pod)
		}
		if i >= arrivals/3 {
			offered += v.Total()
			if ok {
				got += v.Total()
			}
		}
	}
	return float64(got) / float64(offered) * 100
}

type departure struct {
	placed
	at float64
}

// queue is a heap of departures, the earliest first.
type queue []departure

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(departure)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
