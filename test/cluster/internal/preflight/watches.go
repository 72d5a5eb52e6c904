// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"golang.org/x/sys/unix"
)

// inotify instances that a machine's programs use, counted in /proc/PID/fd, plus one in six as reserve. The kernel's
// default limit is 128 per user.
const (
	watchesOfControlPlane = 13
	watchesPerNode        = 9
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
