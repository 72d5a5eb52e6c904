// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"crypto/sha256"
	"encoding/json"
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
	// shapeAnnotation is on what slimWaiting returns, and has the shape of the pod.
	shapeAnnotation = "gpu.nvidia.com/preemption-shape"
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

// ownerOf returns the controller and the shape of a pod of slimWaiting, or the pod: one that replaces another one waits
// for the same reason. Pods of one controller may differ: of a Workflow, a RayCluster, a StatefulSet.
func ownerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return types.UID(fmt.Sprintf("%s/%s/%s", pod.Namespace, owner.UID, pod.Annotations[shapeAnnotation]))
	}
	return pod.UID
}

// shapeOf returns a text that is equal for pods of one controller that fit on the same nodes. Labels do not count:
// controllers number their pods by them.
func shapeOf(pod *corev1.Pod) string {
	text, err := json.Marshal(corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations, TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints,
		Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources, ResourceClaims: pod.Spec.ResourceClaims,
		Priority: pod.Spec.Priority, Volumes: slimVolumes(pod.Spec.Volumes),
		InitContainers: slimContainers(pod.Spec.InitContainers), Containers: slimContainers(pod.Spec.Containers)})
	if err != nil {
		panic(err) // it can be written as JSON
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
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
	text, ok := pod.Annotations[pauseAnnotation]
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
