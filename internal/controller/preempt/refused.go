// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/evict"
	"github.com/gpudra/gpu-dra-driver/internal/controller/feature"
)

// refusedFor is how long a victim that the API refuses to evict is in no plan.
const refusedFor = 10 * time.Minute

// ask asks the API server in a dry run whether it would evict the victims, and remembers those that it refuses. The
// error is errStale if a budget forbids it.
func (p *Preemptor) ask(ctx context.Context, h *hold, now time.Time) (refused bool, err error) {
	for _, v := range h.Victims {
		switch outcome, err := p.evictPod(ctx, v, metav1.DryRunAll); {
		case outcome == evict.Denied:
			refused = true
			if err := p.refuse(ctx, h, v, err, now); err != nil {
				return refused, err
			}
		case outcome == evict.Budget:
			return refused, errStale
		case err != nil:
			return refused, err
		}
	}
	return refused, nil
}

// refuse remembers that the API refuses to evict the victim, and tells it: the log all of them, and an event of the pod
// one of them. The webhook's text may name a pod of another namespace, and is only in the log then.
func (p *Preemptor) refuse(ctx context.Context, h *hold, v victim, refusal error, now time.Time) error {
	if now.Before(p.refused[v.UID]) {
		return nil
	}
	p.refused[v.UID] = now.Add(refusedFor)
	log.FromContext(ctx).Info("The API refuses to evict a pod for one of higher priority", "pod",
		h.Namespace+"/"+h.Pod, "victim", v.Namespace+"/"+v.Name, "why", refusal.Error())
	text := fmt.Sprintf("on node %s, the API refuses to evict %s", h.Node,
		nameFor(h.Namespace, v.Namespace, v.Name, v.UID))
	if v.Namespace == h.Namespace {
		text += ": " + refusal.Error()
	}
	_, err := feature.CreateEvent(ctx, p.client, Events.Refused, reference(h.Namespace, h.Pod, h.uid),
		fmt.Sprintf("preemption-refused-%s", h.uid), text)
	return err
}

// forgetRefused forgets the victims that are gone, or may be evicted by now.
func (p *Preemptor) forgetRefused(s *cluster.Snapshot, now time.Time) {
	if len(p.refused) == 0 {
		return
	}
	exists := map[types.UID]bool{}
	for _, pod := range s.Pods {
		exists[pod.UID] = true
	}
	maps.DeleteFunc(p.refused, func(uid types.UID, until time.Time) bool { return !exists[uid] || !now.Before(until) })
}
