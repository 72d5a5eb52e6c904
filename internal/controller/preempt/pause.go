// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// unused is how long an owner's pods do not preempt after one has not used the devices in time. It doubles.
	unused = 10 * time.Minute
	// maxUnused bounds it. An owner whose pods preempt nobody for that long again starts with unused.
	maxUnused = 24 * time.Hour
	// pauseAnnotation of a pod has its pause, which the next leader reads.
	pauseAnnotation = "gpu.nvidia.com/preemption-pause"
)

// pause is how long the pods of an owner preempt nobody, because the last preemption was not used.
type pause struct {
	length time.Duration
	until  time.Time
}

func (p *pause) String() string {
	return fmt.Sprintf("%v until %s", p.length, p.until.UTC().Format(time.RFC3339))
}

// parsePause reads what String has written. nil: it is something else.
func parsePause(text string) *pause {
	var length, until string
	if _, err := fmt.Sscanf(text, "%s until %s", &length, &until); err != nil {
		return nil
	}
	d, err := time.ParseDuration(length)
	if err != nil || d < unused || d > maxUnused {
		return nil
	}
	t, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return nil
	}
	return &pause{d, t}
}

// ownerOf returns the controller of the pod, or the pod: a pod that replaces another one waits for the same reason.
func ownerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return owner.UID
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
	p.pauses[owner] = &pause{length, now.Add(length)}
}

// paused reports whether the owner's pods may not preempt now. It reads what an earlier leader has written.
func (p *Preemptor) paused(pod *corev1.Pod, now time.Time) bool {
	owner := ownerOf(pod)
	known := p.pauses[owner]
	text, ok := pod.Annotations[pauseAnnotation]
	if !ok { // few pods have one, and each is looked at in every round
		return known != nil && now.Before(known.until)
	}
	if read := parsePause(text); read != nil && (known == nil ||
		read.until.After(known.until)) && now.Before(read.until.Add(maxUnused)) {
		known, p.pauses[owner] = read, read
	}
	return known != nil && now.Before(known.until)
}
