// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpudra/gpu-dra-driver/internal/cluster/waiting"
)

const (
	// unused is how long an owner's pods do not preempt after one has not used the devices in time. It doubles.
	unused = 10 * time.Minute
	// maxUnused bounds it. An owner whose pods preempt nobody for that long again starts with unused.
	maxUnused = 24 * time.Hour
)

// pause is how long the pods of an owner preempt nobody, because the last preemption was not used.
type pause struct {
	length time.Duration
	until  time.Time
	seen   time.Time // the last round with a pod of the owner, whose annotation says so. Zero: this leader knows it
}

func (p *pause) String() string {
	return fmt.Sprintf("%v until %s", p.length, p.until.UTC().Format(time.RFC3339))
}

// parsePause reads what String has written, which has begun by now. nil: it is something else.
func parsePause(text string, now time.Time) *pause {
	var length, until string
	if _, err := fmt.Sscanf(text, "%s until %s", &length, &until); err != nil {
		return nil
	}
	d, err := time.ParseDuration(length)
	if err != nil || d < unused || d > maxUnused {
		return nil
	}
	t, err := time.Parse(time.RFC3339, until)
	if err != nil || t.After(now.Add(d)) {
		return nil
	}
	return &pause{d, t, now}
}

// ownerOf returns the controller and the shape of a pod that waits, or the pod: one that replaces another one waits for
// the same reason. Pods of one controller may differ: of a Workflow, a RayCluster, a StatefulSet.
func ownerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return types.UID(fmt.Sprintf("%s/%s/%s", pod.Namespace, owner.UID, pod.Annotations[waiting.ShapeAnnotation]))
	}
	return pod.UID
}

// notUsed doubles the pause of the owner. Other preemptions of the owner's pods may end unused meanwhile.
func (p *Preemptor) notUsed(owner types.UID, now time.Time) {
	length := unused
	if known := p.pauses[owner]; known != nil {
		if now.Before(known.until) {
			return
		}
		length = min(maxUnused, 2*known.length)
	}
	p.pauses[owner] = &pause{length: length, until: now.Add(length)}
}

// paused reports whether the owner's pods may not preempt now. It reads what an earlier leader has written.
func (p *Preemptor) paused(pod *corev1.Pod, now time.Time) bool {
	text, ok := pod.Annotations[waiting.PauseAnnotation]
	if !ok && len(p.pauses) == 0 {
		return false // of all pods that wait, in each round
	}
	owner := ownerOf(pod)
	known := p.pauses[owner]
	if ok {
		if read := parsePause(text, now); read != nil && (known == nil ||
			!known.seen.IsZero() && read.until.After(known.until)) && now.Before(read.until.Add(maxUnused)) {
			known, p.pauses[owner] = read, read
		}
	}
	if known != nil && !known.seen.IsZero() {
		known.seen = now
	}
	return known != nil && now.Before(known.until)
}
