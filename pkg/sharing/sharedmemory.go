// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"path"
	"slices"

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
}

// SharedMemoryOf returns the volume that the container of the pod mounts at /dev/shm.
func SharedMemoryOf(pod *corev1.PodSpec, c *corev1.Container) SharedMemory {
	for _, m := range c.VolumeMounts {
		if path.Clean("/"+m.MountPath) != sharedMemoryPath {
			continue
		}
		return SharedMemory{Volume: m.Name, Path: m.MountPath, Empty: slices.ContainsFunc(pod.Volumes,
			func(v corev1.Volume) bool { return v.Name == m.Name && v.EmptyDir != nil })}
	}
	return SharedMemory{}
}

// Refusal says why the container cannot have a share under MPS, and what to do; empty: it can.
func (m SharedMemory) Refusal() string {
	switch {
	case m.Volume == "":
		return ""
	case !m.Empty:
		return fmt.Sprintf("its volume %s at /dev/shm is no emptyDir: under MPS, the memory of the MPS daemon is "+
			"mounted there; use an emptyDir, or leave the volume out", m.Volume)
	case m.Path != sharedMemoryPath:
		return fmt.Sprintf("its volume %s has the mountPath %s, which would hide the memory of the MPS daemon: write "+
			"/dev/shm, or leave the volume out", m.Volume, m.Path)
	}
	return ""
}

// Notice says what is different under MPS; empty: nothing.
func (m SharedMemory) Notice() string {
	if m.Volume == "" || m.Refusal() != "" {
		return ""
	}
	return fmt.Sprintf("its volume %s at /dev/shm is not mounted: under MPS, /dev/shm is the memory of the GPU's MPS "+
		"daemon, of the size mps.sharedMemory of the chart for all of its containers together", m.Volume)
}
