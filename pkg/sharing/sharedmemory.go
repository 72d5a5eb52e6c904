// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// sharedMemoryPath is where a process shares memory with others, and under MPS with its daemon. NVIDIA's driver has no
// other place for it.
const sharedMemoryPath = "/dev/shm"

// SharedMemory is the volume that a container mounts at /dev/shm. Under MPS, the memory of the daemon is mounted
// instead: a CDI mount replaces a mount of the same path.
type SharedMemory struct {
	Volume string // empty: none
	Path   string // as the container writes it
	// Empty means that it is an emptyDir: no files of others are missing when it is not mounted.
	Empty bool
	Limit string   // the size that the pod gives it; empty: none
	With  []string // other containers that mount it
}

// SharedMemoryOf returns the volume that the container of the pod mounts at /dev/shm.
func SharedMemoryOf(pod *corev1.PodSpec, c *corev1.Container) SharedMemory {
	for _, m := range c.VolumeMounts {
		if path.Clean("/"+m.MountPath) != sharedMemoryPath {
			continue
		}
		found := SharedMemory{Volume: m.Name, Path: m.MountPath, With: others(pod, c, m.Name)}
		for _, v := range pod.Volumes {
			if v.Name != m.Name || v.EmptyDir == nil {
				continue
			}
			if found.Empty = true; v.EmptyDir.SizeLimit != nil {
				found.Limit = v.EmptyDir.SizeLimit.String()
			}
		}
		return found
	}
	return SharedMemory{}
}

// others returns the names of the other containers of the pod that mount the volume.
func others(pod *corev1.PodSpec, c *corev1.Container, volume string) (names []string) {
	for _, other := range slices.Concat(pod.InitContainers, pod.Containers) {
		if other.Name != c.Name && slices.ContainsFunc(other.VolumeMounts,
			func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			names = append(names, other.Name)
		}
	}
	return names
}

// Refusal says why the container cannot have a share under MPS, and what to do; empty: it can.
func (m SharedMemory) Refusal() (reason, change string) {
	switch {
	case m.Volume == "":
		return "", ""
	case !m.Empty:
		return fmt.Sprintf("its volume %s at /dev/shm is no emptyDir: under MPS, the memory of the MPS daemon is "+
			"mounted there", m.Volume), "use an emptyDir, or leave the volume out"
	case m.Path != sharedMemoryPath:
		return fmt.Sprintf("its volume %s has the mountPath %s, which would hide the memory of the MPS daemon",
			m.Volume, m.Path), "write /dev/shm, or leave the volume out"
	}
	return "", ""
}

// Notice says what is different under MPS; empty: nothing.
func (m SharedMemory) Notice() string {
	if reason, _ := m.Refusal(); m.Volume == "" || reason != "" {
		return ""
	}
	text := fmt.Sprintf("its volume %s at /dev/shm is not mounted: under MPS, /dev/shm is the memory of the GPU's MPS "+
		"daemon, of the size mps.sharedMemory of the chart for all of its containers together", m.Volume)
	if m.Limit != "" {
		text += ", and not " + m.Limit
	}
	if len(m.With) > 0 {
		text += "; what it writes there is not in the volume, which others mount too: " + strings.Join(m.With, ", ")
	}
	return text
}
