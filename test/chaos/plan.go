// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// plan is what happens to the cluster in one round. The seed decides all of it; when a fault happens depends on how
// long the ones before took.
type plan struct {
	length time.Duration
	every  time.Duration // the average time between faults
	pods   []podPlan
	faults []faultPlan
}

// podPlan is a pod of the stream, or two with one claim.
type podPlan struct {
	at     time.Duration
	name   string
	kind   string
	life   time.Duration // 0: it ends by itself
	urgent bool
	force  bool // it is deleted without a grace period
}

// faultPlan is a fault. Pick chooses among what the fault can hit or fail.
type faultPlan struct {
	at   time.Duration
	kind string
	node string
	pick uint32
	hold time.Duration // how long it lasts
}

// podEvery is the average time between pods.
const podEvery = 900 * time.Millisecond

// newPlan returns the plan of a round of that length, or longer until every kind of fault has happened. Every kind
// happens once before one happens again. Every is the average time between faults.
func newPlan(seed, round uint64, length, every time.Duration, nodes []string) plan {
	r := rand.New(rand.NewPCG(seed, round)) //nolint:gosec // it must be repeatable
	between := func(from, to time.Duration) time.Duration {
		return (from + time.Duration(r.Int64N(int64(to-from)))).Round(time.Millisecond)
	}
	p := plan{length: length, every: every}
	// The stream ends with the last fault, which may be late.
	for at := time.Duration(0); at < 3*max(length, time.Minute); at += between(0, 2*podEvery) {
		pod := podPlan{at: at, name: fmt.Sprintf("p%d-%d", round, len(p.pods)), kind: kinds[r.IntN(len(kinds))],
			urgent: r.IntN(8) == 0, force: r.IntN(8) == 0}
		switch n := r.IntN(12); {
		case n == 0:
			pod.life = between(time.Minute, 2*time.Minute)
		case n > 4:
			pod.life = between(2*time.Second, 25*time.Second)
		}
		p.pods = append(p.pods, pod)
	}
	var order []int
	for at := every; at < length || len(p.faults) < len(faults); at += between(every/2, every*3/2) {
		if len(order) == 0 {
			order = r.Perm(len(faults))
		}
		p.faults = append(p.faults, faultPlan{at: at, kind: faults[order[0]].kind, node: nodes[r.IntN(len(nodes))],
			pick: r.Uint32(), hold: between(time.Second, 6*time.Second)})
		order = order[1:]
	}
	return p
}

// String is the plan as text.
func (p plan) String() string {
	var b strings.Builder
	for _, f := range p.faults {
		fmt.Fprintf(&b, "%8s %s\n", f.at, f)
	}
	for _, pod := range p.pods {
		fmt.Fprintf(&b, "%8s pod %s: %s for %s urgent=%t force=%t\n", pod.at, pod.name, pod.kind, pod.life, pod.urgent,
			pod.force)
	}
	return b.String()
}

func (f faultPlan) String() string {
	return fmt.Sprintf("%s on %s for %s (%d)", f.kind, f.node, f.hold, f.pick)
}
