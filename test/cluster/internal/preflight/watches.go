// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"golang.org/x/sys/unix"
)

// inotify instances that programs use, counted in /proc/PID/fd of clusters that had run all end-to-end tests. The
// kernel's default limit is 128 per user.
const (
	// kube-apiserver has 6 and kube-controller-manager 5.
	watchesOfControlPlane = 6 + 5
	// The kubelet has 6, containerd 2, the MPS supervisor 1, and the plugin 3: one for files, one to see whether
	// metadata is mounted, and one of its simulated GPUs.
	watchesPerNode = 6 + 2 + 1 + 3
)

// CheckWatches returns ErrUnfit if the kubelets of that number of nodes would fail with "too many open files". It
// allocates that many inotify instances and frees them.
func CheckWatches(nodes int) error {
	wanted := watchesOfControlPlane + nodes*watchesPerNode
	var taken []int
	defer func() {
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}()
	for range wanted {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return unfit("%d nodes need about %d inotify instances and this user can have %d more: stop another "+
				"cluster, start fewer nodes, or raise the sysctl fs.inotify.max_user_instances",
				nodes, wanted, len(taken))
		}
		taken = append(taken, fd)
	}
	return nil
}
